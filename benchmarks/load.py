"""How long a model takes to load, and what memory: beside Hugging Face, from the same files.

    python -m benchmarks.load

Every load is a process of its own, ours and theirs in turns. Time runs from the call that loads
until each number has been read once: Hugging Face leaves safetensors mapped, to be fetched on
first use, and what is read later is part of the price. Both sides read the tokenizer too where
there is one, and have loaded a tiny model before, so that imports are not part of it. Memory is
the most that was resident in between, mapped pages included, less what was before, over the bytes
of the weights.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

if not __package__:  # run as a file: the checkout's root stands in for this folder
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks.pairing import Bar, bar_record, orders, ratio_of, table, write_json

TIME, MEMORY = 1.0, 1.2
SIDES = ("qkv", "Hugging Face")

START = """
import json, sys, time
import torch

def resident(key):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith(key))

def measured(load, warm, path):
    load(warm)
    before = resident("VmRSS")
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")
    start = time.perf_counter()
    model = load(path)
    loaded = time.perf_counter() - start
    with torch.no_grad():
        named = model.named_parameters()  # all are read; Hugging Face's pooler has no twin
        total = sum(float(p.sum()) for name, p in named if "pooler" not in name)
    seconds = time.perf_counter() - start
    size = sum(p.numel() * p.element_size() for p in model.parameters())
    memory = (resident("VmHWM") - before) / size
    print(json.dumps({"loaded": loaded, "seconds": seconds, "memory": memory, "sum": total}))
"""
OURS = (
    START
    + """
import qkv
measured(qkv.load, sys.argv[1], sys.argv[2])
"""
)
THEIRS = (
    START
    + """
from pathlib import Path
import transformers
transformers.logging.set_verbosity_error()
kind = getattr(transformers, sys.argv[3])

def load(path):
    path, file = Path(path), {}
    if path.is_file():
        path, file = path.parent, {"gguf_file": path.name}
    if file or (path / "tokenizer.json").exists():
        transformers.AutoTokenizer.from_pretrained(path, **file)
    return kind.from_pretrained(path, dtype=torch.float32, **file).eval()

measured(load, sys.argv[1], sys.argv[2])
"""
)


class Case(NamedTuple):
    """A model to load: where it is, and Hugging Face's class for it."""

    name: str
    path: Path
    theirs: str


def tiny(folder: Path) -> Path:
    """Write a model of a few numbers with a tokenizer, to be loaded first."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordPiece
    from transformers import BertConfig, BertModel, BertTokenizerFast

    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    BertModel(BertConfig(vocab_size=9, intermediate_size=8, **sizes)).save_pretrained(folder)
    special = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a")
    rules = Tokenizer(WordPiece({token: i for i, token in enumerate(special)}, unk_token="[UNK]"))
    BertTokenizerFast(tokenizer_object=rules).save_pretrained(folder)
    return folder


def safetensors_of(file: Path, folder: Path) -> Path:
    """Write the float32 numbers of a GGUF file as Hugging Face would."""
    from safetensors.torch import save_file

    from qkv.models import look

    found = look(file)
    folder.mkdir()
    tensors = {name: stored.read().contiguous() for name, stored in found.source.items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config = {**found.config, "architectures": ["LlamaForCausalLM"]}
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    return folder


def cases(folder: Path, gguf: bool) -> list[Case]:
    """Return what is installed."""
    from qkv.models.named import NAMED

    found = []
    if (minilm := NAMED["minilm"].find()) is not None:
        found.append(Case("MiniLM, safetensors", minilm, "BertModel"))
    if (smollm2 := NAMED["smollm2"].find()) is not None and find_spec("gguf") is not None:
        written = safetensors_of(smollm2, folder / "smollm2")
        found.append(Case("SmolLM2, safetensors", written, "LlamaForCausalLM"))
        if gguf and find_spec("accelerate") is not None:  # Hugging Face wants it for GGUF
            found.append(Case("SmolLM2, GGUF", smollm2, "LlamaForCausalLM"))
    return found


def fresh(code: str, *arguments: str) -> dict[str, float]:
    """Load in an interpreter of its own."""
    ended = subprocess.run(
        [sys.executable, "-c", code, *arguments], check=True, capture_output=True, text=True
    )
    measured: dict[str, float] = json.loads(ended.stdout.splitlines()[-1])
    return measured


def measure(case: Case, warm: Path, rounds: int) -> dict[str, list[dict[str, float]]]:
    """Load a model on both sides as often as asked, in turns, after one round to warm up."""
    loads = {
        "qkv": partial(fresh, OURS, str(warm), str(case.path)),
        "Hugging Face": partial(fresh, THEIRS, str(warm), str(case.path), case.theirs),
    }
    found: dict[str, list[dict[str, float]]] = {side: [load()] for side, load in loads.items()}
    sums = [runs.pop()["sum"] for runs in found.values()]
    if abs(sums[0] - sums[1]) > 1e-3 * max(1.0, abs(sums[1])):
        raise ValueError(f"{case.name}: the two sides hold other numbers: their sums are {sums}")
    rows = orders(len(SIDES))
    for i in range(rounds):
        for at in rows[i % len(rows)]:
            found[SIDES[at]].append(loads[SIDES[at]]())
    return found


def verdicts(found: dict[str, list[dict[str, float]]]) -> tuple[Bar, float]:
    """Return the bar of the times, and the median of our memory."""
    pairs = zip(*(found[side] for side in SIDES), strict=True)
    ratio = ratio_of([ours["seconds"] / theirs["seconds"] for ours, theirs in pairs])
    return Bar("Hugging Face", TIME, ratio), median(run["memory"] for run in found["qkv"])


def report(case: Case, found: dict[str, list[dict[str, float]]]) -> bool:
    """Print medians and verdicts; return whether both bars are met."""
    rows = [(case.name, "loaded s", "read once s", "memory / weights")]
    for side in SIDES:
        medians = (median(r[key] for r in found[side]) for key in ("loaded", "seconds", "memory"))
        rows.append((side, *(f"{value:.3f}" for value in medians)))
    bar, memory = verdicts(found)
    spared = memory <= MEMORY
    print(table(rows), f"  {bar}", sep="\n")
    print(f"  {'met' if spared else 'MISSED':<6}  ≤ {MEMORY:.2f} × the weights: {memory:.3f}")
    return bar.met and spared


def main() -> int:
    """Measure, print, and return 1 if a bar was missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.load", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--runs", type=int, default=1, help="repeat the whole; 3 for a verdict")
    parser.add_argument("--quick", action="store_true", help="few rounds: for development")
    parser.add_argument("--no-gguf", action="store_true", help="without the slowest of all")
    parser.add_argument("--json", type=Path, help="also write the measurements to this file")
    given = parser.parse_args()
    reached: list[bool] = []
    records: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        warm = tiny(Path(folder) / "tiny")
        found = cases(Path(folder), not given.no_gguf)
        for case in found * given.runs:
            runs = measure(case, warm, 6 if given.quick else 20)
            reached.append(report(case, runs))
            bar, memory = verdicts(runs)
            about = {"bars": [bar_record(bar)], "memory": memory}
            records.append({"case": case.name, "runs": runs, **about})
    if given.json:
        write_json(given.json, records)
    return 0 if all(reached) else 1


if __name__ == "__main__":
    sys.exit(main())
