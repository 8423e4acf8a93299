"""Training: the language task beside Hugging Face's `Trainer` and a plain loop, in one run.

    python -m benchmarks.train --runs 3 --json train.json
    python -m benchmarks.train --reached 180

The same text, batches, sizes and AdamW for all; models of like size, drawn anew each time. A
sample is the mean of a few steps in a row, from the end of the first one to the end of the last:
neither measures nor files are in it. Then our own bfloat16 beside our own float32, with the losses
after the same steps, and two processes of a thread each beside one. `--reached` gives our model
and a small GPT in plain PyTorch the same seconds, and prints the perplexity of held-out text.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

if not __package__:  # run as a file: the checkout's root stands in for this folder
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks.pairing import (
    Bar,
    Timing,
    bar_record,
    orders,
    ratio_of,
    table,
    timing_table,
    write_json,
)
from benchmarks.train_peers import PlainModel, Seconds, SmallGPT, ends_of_theirs, plain_steps
from qkv.train.distributed import World, world
from qkv.train.events import Event, Stepped
from qkv.train.loop import train
from qkv.train.packed import Packed
from qkv.train.settings import Settings
from qkv.train.tasks.language import Language

OURS, SHORT, THEIRS, PLAIN = "qkv", "qkv, bfloat16", "Trainer", "plain loop"
ONE, TWO = "one process", "two processes"

FASTER, FASTER_SHORT, FASTER_TWO = 1.05, 1.5, 1.6
LOSS = 1.01
"""How far the loss in bfloat16 may be from that in float32, as a ratio of the greater."""

STEPS, ALIKE_STEPS, LAST = 8, 200, 20
"""Steps of a sample, and until losses are compared: those of the last so many.

Sixty steps are too few: they end on a plateau, which rounding leaves a little sooner or later."""

Sample = Callable[[], float]


def ends_of_ours(
    task: Language, settings: Settings, among: World | None = None
) -> tuple[Seconds, Seconds]:
    """Train ours; return when each step ended, and its loss."""
    ends: Seconds = []
    losses: list[float] = []

    def listen(event: Event) -> None:
        if isinstance(event, Stepped):
            ends.append(time.perf_counter())
            losses.append(event.loss)

    with tempfile.TemporaryDirectory() as folder:
        train(task, settings, Path(folder) / "out", world=among, listen=listen)
    return ends, losses


def a_step(ends: Sequence[float]) -> float:
    """Return the mean seconds from the end of the first step to that of the last."""
    return (ends[-1] - ends[0]) / (len(ends) - 1)


def in_turns(samples: Mapping[str, Sample], rounds: int) -> Timing:
    """Take samples in balanced turns, after one of each that does not count."""
    names = list(samples)
    for sample in samples.values():
        sample()
    seconds: dict[str, Seconds] = {name: [] for name in names}
    rows = orders(len(names))
    for i in range(rounds):
        for at in rows[i % len(rows)]:
            seconds[names[at]].append(samples[names[at]]())
    return Timing(seconds, 1)


def contestants(task: Language, settings: Settings) -> dict[str, Sample]:
    """Return what takes a sample of each."""
    short = replace(settings, precision="bfloat16")
    return {
        OURS: lambda: a_step(ends_of_ours(task, settings)[0]),
        SHORT: lambda: a_step(ends_of_ours(task, short)[0]),
        PLAIN: lambda: a_step(list(plain_steps(PlainModel(task), task, settings))),
        THEIRS: lambda: a_step(ends_of_theirs(task, settings)),
    }


def speed(task: Language, settings: Settings, rounds: int) -> tuple[Timing, list[Bar]]:
    """Time a step of each; ours in float32 beside the faster peer, and beside our bfloat16."""
    timing = in_turns(contestants(task, replace(settings, steps=STEPS)), rounds)
    faster = min((PLAIN, THEIRS), key=timing.median)
    return timing, [
        Bar(f"{faster}, the faster of the two", 1 / FASTER, timing.ratio(OURS, faster)),
        Bar(f"{OURS} in float32, in bfloat16", 1 / FASTER_SHORT, timing.ratio(SHORT, OURS)),
    ]


def alike(task: Language, settings: Settings, steps: int) -> Bar:
    """Compare the losses of the last of so many steps in both precisions."""
    settings = replace(settings, steps=steps, warmup=min(settings.warmup, steps // 4))
    exact = ends_of_ours(task, settings)[1]
    short = ends_of_ours(task, replace(settings, precision="bfloat16"))[1]
    pairs = list(zip(exact, short, strict=True))[-LAST:]
    ratio = ratio_of([max(a, b) / min(a, b) for a, b in pairs])
    return Bar(f"the loss in float32 after {steps} steps, in bfloat16", LOSS, ratio)


def several(rounds: int, steps: int) -> tuple[Timing, Bar]:
    """Time a step of one process and of two, each of one thread."""
    samples = {
        name: lambda processes=processes: workers(processes, steps)
        for name, processes in ((ONE, 1), (TWO, 2))
    }
    timing = in_turns(samples, rounds)
    return timing, Bar(f"{ONE}, by {TWO}", 1 / FASTER_TWO, timing.ratio(TWO, ONE))


def workers(processes: int, steps: int) -> float:
    """Start processes of one thread under torchrun; return the seconds of a step."""
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node",
        str(processes), __file__, "--worker", str(steps),
    ]  # fmt: skip
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if ran.returncode:
        raise SystemExit(f"torchrun failed:\n{ran.stderr[-3000:]}")
    return float(ran.stdout.split()[-1])


def worker(steps: int) -> None:
    """Train as one of several processes; the first prints the seconds of a step."""
    task, settings = opened()
    with world() as among:
        ends, _ = ends_of_ours(task, replace(settings, steps=steps), among)
    if among.first:
        print(a_step(ends))


def reached(budget: float) -> list[dict[str, Any]]:
    """Give ours and the small GPT the same seconds; print what they reach, on the same text."""
    task = Language.open()
    records = []
    for name in (OURS, "small GPT"):
        torch.manual_seed(0)
        step = a_step(ends_by(name, task, replace(Language.usual, steps=STEPS))[0])
        steps = max(2, int(budget / step))
        settings = replace(Language.usual, steps=steps, warmup=min(50, steps // 4))
        torch.manual_seed(0)
        ends, model = ends_by(name, task, settings)
        values = task.measure(model.eval())
        numbers = sum(p.numel() for p in model.parameters())
        records.append({"who": name, "steps": steps, "seconds": ends[-1] - ends[0],
                        "parameters": numbers, **values})  # fmt: skip
        print(f"{name}: {numbers:,} parameters, {steps} steps in {ends[-1] - ends[0]:.0f} s: "
              f"perplexity {values['perplexity']:.2f}, {values['bits a byte']:.3f} bits a byte",
              flush=True)  # fmt: skip
    return records


def ends_by(name: str, task: Language, settings: Settings) -> tuple[Seconds, nn.Module]:
    """Train ours or the small GPT, without measures on the way; return the model of the end."""
    model = task.model() if name == OURS else SmallGPT(task)
    if name != OURS:
        return list(plain_steps(model, task, settings)), model
    held = Kept(task)
    return ends_of_ours(held, replace(settings, measure_every=settings.steps))[0], held.last


class Kept(Language):
    """A task that remembers the model it was asked to save: the last, which alone is measured."""

    last: nn.Module

    def __init__(self, task: Language) -> None:
        """Be that task."""
        self.__dict__.update(task.__dict__)

    def save(self, model: nn.Module, folder: Path) -> None:
        """Remember it."""
        self.last = model


def opened() -> tuple[Language, Settings]:
    """Return the task of the books with hardly any held-out text, and its settings."""
    whole = Language.open()
    few = Packed.of([whole.held_out.window(0, whole.context + 2)], whole.tokenizer.size)
    task = Language(whole.tokenizer, whole.training, few, whole.describe())
    return task, Language.usual


def run(rounds: int, *, processes: bool) -> tuple[list[Bar], dict[str, Any]]:
    """Measure everything once, and print it."""
    task, settings = opened()
    sizes = {"qkv, Trainer": task.model(), PLAIN: PlainModel(task)}
    for name, model in sizes.items():
        print(f"{name}: {sum(p.numel() for p in model.parameters()):,} parameters")
    timing, bars = speed(task, settings, rounds)
    tokens = settings.batch * task.context
    print(
        f"\na step of {settings.batch} × {task.context} tokens, {torch.get_num_threads()} threads"
    )
    print(
        table([(name, f"{tokens / timing.median(name):,.0f} tokens/s") for name in timing.seconds])
    )
    print(timing_table(timing, OURS), flush=True)
    bars.append(alike(task, settings, ALIKE_STEPS))
    record: dict[str, Any] = {"tokens": tokens, "seconds": timing.seconds}
    if processes:
        beside, bar = several(rounds, STEPS)
        print(f"\n{timing_table(beside, TWO)}")
        bars.append(bar)
        record["processes"] = beside.seconds
    print("", *(f"  {bar}" for bar in bars), sep="\n", flush=True)
    return bars, {**record, "bars": [bar_record(bar) for bar in bars]}


def options() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.train", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--runs", type=int, default=1, help="repeat the whole; 3 for a verdict")
    parser.add_argument("--rounds", type=int, default=16, help="samples of each, 6 or more")
    parser.add_argument("--quick", action="store_true", help="6 rounds, and no processes")
    parser.add_argument("--reached", type=float, metavar="SECONDS", help="perplexity in that time")
    parser.add_argument("--json", type=Path, help="also write the measurements to this file")
    parser.add_argument("--worker", type=int, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> int:
    """Measure, print, and return 1 if something was missed."""
    given = options()
    if given.worker:
        worker(given.worker)
        return 0
    bars: list[Bar] = []
    records: list[Any] = []
    for _ in range(given.runs):
        if given.reached:
            records.append(reached(given.reached))
            continue
        rounds = 6 if given.quick else given.rounds
        found, record = run(rounds, processes=not given.quick)
        bars += found
        records.append(record)
    if given.json:
        write_json(given.json, records, torch=torch.__version__, threads=torch.get_num_threads())
    return 0 if all(bar.met for bar in bars) else 1


if __name__ == "__main__":
    sys.exit(main())
