"""Every question of `Weights` beside one fused call of the same sizes, in one run.

    python -m benchmarks.weights --runs 3 --json weights.json
    python -m benchmarks.weights --long

A `Weights` is made anew for each question, so nothing is answered from what an earlier question
left. Before anything is timed the answers are compared with the dense matrix in float64. `--long`
asks each question of 65,536 tokens, 8 heads of 64, in a process of its own, and prints the time
and the peak of its memory.
"""

import argparse
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

if not __package__:  # run as a file: the checkout's root stands in for this folder
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks.pairing import (
    QUICK,
    Bar,
    Pace,
    Timing,
    bar_record,
    interleave,
    table,
    write_json,
)
from qkv.core.mask import Mask
from qkv.weights.matrix import Weights

FUSED = "one fused call"
SUMMARY = "summary"
ROWS = range(100, 108)


class Size(NamedTuple):
    """(batch, heads, tokens, width of a head)."""

    batch: int
    heads: int
    tokens: int
    width: int


SIZES = (Size(1, 12, 512, 32), Size(1, 12, 2048, 32), Size(1, 8, 2048, 64))
LONG = Size(1, 8, 65_536, 64)
LONG_MASKS = {"causal": Mask.causal(), "window": Mask.causal() & Mask.window(512)}
LONG_GB = 4.0

Question = Callable[[Weights, Tensor], Any]
QUESTIONS: dict[str, Question] = {
    "weights @ x": lambda w, x: w @ x,
    "weights.mT @ x": lambda w, x: w.mT @ x,
    "logsumexp": lambda w, x: w.logsumexp,
    "entropy": lambda w, x: w.entropy(),
    "received": lambda w, x: w.received(),
    "diagonal": lambda w, x: w.diagonal(-1),
    "rows": lambda w, x: w.rows(ROWS),
    "tile": lambda w, x: w.tile(ROWS, ROWS),
    "map 64 × 64": lambda w, x: w.map(64, 64),
    "top 8": lambda w, x: w.top(8).weights,
    SUMMARY: lambda w, x: w.summary(),
}


def limit(question: str, size: Size) -> float:
    """Fused calls that a question may cost; a map by each head-width of its columns."""
    special = {"received": 2.0, "weights.mT @ x": 2.5, "top 8": 3.0, SUMMARY: 4.0}
    if question.startswith("map"):
        return 1.2 * 64 / size.width
    return special.get(question, 1.5)


def dense(p: Tensor, x: Tensor) -> dict[str, Tensor]:
    """Answer the same questions by the whole matrix, in float64."""
    queries, keys = p.shape[-2:]
    regions = p.unflatten(-1, (64, keys // 64)).sum(-1).unflatten(-2, (64, queries // 64)).mean(-2)
    return {
        "weights @ x": p @ x,
        "weights.mT @ x": p.mT @ x,
        "entropy": torch.special.entr(p).sum(-1),
        "received": p.sum(-2),
        "diagonal": p.diagonal(-1, -2, -1),
        "rows": p[..., ROWS.start : ROWS.stop, :],
        "tile": p[..., ROWS.start : ROWS.stop, ROWS.start : ROWS.stop],
        "map 64 × 64": regions,
        "top 8": p.topk(8, -1).values,
    }


def compare(q: Tensor, k: Tensor, x: Tensor) -> None:
    """Confirm each answer.

    Raises:
        AssertionError: one is further from the dense matrix than 1e-4 of its largest number.
    """
    logits = q.double() @ k.double().mT * q.shape[-1] ** -0.5
    wanted = {**dense(torch.softmax(logits, -1), x.double()), "logsumexp": logits.logsumexp(-1)}
    for name, right in wanted.items():
        distance = float(
            (QUESTIONS[name](Weights(q, k), x) - right).abs().max() / right.abs().max()
        )
        if not distance <= 1e-4:
            raise AssertionError(f"{name} is {distance:.1e} from the dense matrix")


class Result(NamedTuple):
    """What was measured at a size."""

    size: Size
    timing: Timing
    bars: list[Bar]

    def record(self) -> dict[str, Any]:
        """Return it as JSON takes it."""
        return {
            "size": self.size,
            "rounds": self.timing.rounds,
            "median_ms": {name: 1e3 * self.timing.median(name) for name in self.timing.seconds},
            "bars": [bar_record(bar) for bar in self.bars],
        }


def measure(size: Size, pace: Pace) -> Result:
    """Compare, then time all questions in turns with the fused call."""
    torch.manual_seed(0)
    q, k, x = (torch.randn(*size) for _ in range(3))
    compare(q[:, :2], k[:, :2], x[:, :2])  # two heads: the dense matrix is large

    def ask(question: Question) -> object:
        return question(Weights(q, k), x)

    calls: dict[str, Callable[[], object]] = {
        FUSED: lambda: F.scaled_dot_product_attention(q, k, x)
    }
    calls |= {name: partial(ask, question) for name, question in QUESTIONS.items()}
    timing = interleave(calls, pace)
    bars = [Bar(name, limit(name, size), timing.ratio(name, FUSED)) for name in QUESTIONS]
    return Result(size, timing, bars)


def shown(result: Result) -> str:
    """Return medians and ratios, a line a question."""
    timing = result.timing
    rows = [("", "median ms", "of a fused call", "95 % interval", "at most", "")]
    rows.append((FUSED, f"{1e3 * timing.median(FUSED):.2f}", "", "", "", ""))
    for bar in result.bars:
        r, ms = bar.ratio, f"{1e3 * timing.median(bar.what):.2f}"
        interval = f"{r.low:.2f} to {r.high:.2f}"
        verdict = "met" if bar.met else "MISSED"
        rows.append((bar.what, ms, f"{r.median:.2f}", interval, f"{bar.limit:.2f}", verdict))
    return table(rows)


def ask_long(kind: str, question: str) -> None:
    """Ask one question of 65,536 tokens in this process; print the seconds and the peak."""
    torch.manual_seed(0)
    q, k, x = (torch.randn(*LONG) for _ in range(3))
    start = time.perf_counter()
    with torch.no_grad():
        QUESTIONS[question](Weights(q, k, mask=LONG_MASKS[kind]), x)
    seconds = time.perf_counter() - start
    print(seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9)


def long(kinds: list[str]) -> int:
    """Ask everything of 65,536 tokens; return 1 if a question needs more memory than it may."""
    missed, root = 0, Path(__file__).resolve().parents[1]
    for kind in kinds:
        rows = [(f"{kind}, {tuple(LONG)}", "seconds", "peak GB", "")]
        for question in QUESTIONS:
            command = [sys.executable, "-m", "benchmarks.weights", "--ask", kind, question]
            done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=root)
            seconds, gb = map(float, done.stdout.split()[-2:])
            missed += gb > LONG_GB
            rows.append(
                (question, f"{seconds:.1f}", f"{gb:.2f}", "" if gb <= LONG_GB else "MISSED")
            )
        print(table(rows), flush=True)
    return int(missed > 0)


def options() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.weights", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--runs", type=int, default=1, help="repeat the whole; 3 for a verdict")
    parser.add_argument("--quick", action="store_true", help="few rounds: for development")
    parser.add_argument("--threads", type=int, help="threads of PyTorch; its own choice otherwise")
    parser.add_argument("--json", type=Path, help="also write the measurements to this file")
    parser.add_argument(
        "--long", nargs="*", choices=[*LONG_MASKS], help="65,536 tokens, under these masks or all"
    )
    parser.add_argument("--ask", nargs=2, metavar=("MASK", "QUESTION"), help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> int:
    """Measure, print the verdict, and return 1 if a bar was missed."""
    given = options()
    if given.threads:
        torch.set_num_threads(given.threads)
    if given.ask:
        ask_long(*given.ask)
        return 0
    if given.long is not None:
        return long(given.long or [*LONG_MASKS])
    print(f"PyTorch {torch.__version__}, {torch.get_num_threads()} threads")
    runs: list[list[Result]] = []
    for number in range(1, given.runs + 1):
        runs.append([])
        for size in SIZES:
            result = measure(size, QUICK if given.quick else Pace())
            runs[-1].append(result)
            print(f"\nrun {number}: {tuple(size)}, {result.timing.rounds} rounds")
            print(shown(result), flush=True)
    if given.json:
        about = {"torch": torch.__version__, "threads": torch.get_num_threads()}
        write_json(given.json, [[result.record() for result in run] for run in runs], **about)
    missed = [bar for run in runs for result in run for bar in result.bars if not bar.met]
    print(f"\n{len(missed)} bars missed" if missed else "\nevery bar met")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
