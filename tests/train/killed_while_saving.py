"""Save checkpoints and models without end, be killed at a random moment, and see what is left.

    python killed_while_saving.py FOLDER TIMES

Every child is a fork: PyTorch is imported once. What a checkpoint of step n holds is n everywhere,
so that parts of two would be seen.
"""

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

import torch
from torch import nn

from qkv.models import load
from qkv.models.formats.files import Files
from qkv.models.llama import LLAMA, LlamaConfig, build
from qkv.models.saving import save_folder
from qkv.train.checkpoint import FOLDER, Checkpoint

CONFIG = LlamaConfig(17, 8, 1, 2, 16, 32, tie_word_embeddings=True)


def numbers(step: int) -> dict[str, torch.Tensor]:
    return {f"tensor {i}": torch.full((50 * i + 1, 33), float(step)) for i in range(9)}


def save_for_ever(out: Path, model: nn.Module, step: int) -> None:
    while True:
        step += 1
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.fill_(step)
        save_folder(model, LLAMA, out)
        Checkpoint(step, {"best": step}, numbers(step)).save(out)


def look(out: Path) -> int:
    """Return the step of what is there; whatever is not whole is an error."""
    kept = Checkpoint.last(out)
    step = 0 if kept is None else kept.step
    if kept is not None:
        assert kept.numbers == {"best": step}
        for name, tensor in numbers(step).items():
            assert torch.equal(kept.tensors[name], tensor)
    if (out / "model.safetensors").exists():
        values = {float(v) for p in load(out).parameters() for v in p.detach().unique()}
        assert len(values) == 1
        assert values <= {float(step), step + 1.0}
    else:
        assert kept is None
    return step


def main() -> None:
    out, times, chance = Path(sys.argv[1]), int(sys.argv[2]), random.Random(20170612)
    torch.set_num_threads(1)
    model = build(CONFIG, Files(out))
    signals, steps, halves = [], [look(out)], 0
    for _ in range(times):
        child = os.fork()
        if child == 0:
            save_for_ever(out, model, steps[-1])
        time.sleep(chance.uniform(0.02, 0.2))
        os.kill(child, signal.SIGKILL)
        signals.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        halves += len(list((out / FOLDER).glob("step-*.*"))) + len(list(out.glob(".*")))
        steps.append(look(out))
    told = {"signals": [-number for number in signals], "steps": steps[1:], "halves": halves}
    sys.stdout.write(json.dumps(told))


if __name__ == "__main__":
    main()
