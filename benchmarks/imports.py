"""What starting costs: our import beside that of PyTorch, and `qkv --help` without it.

    python -m benchmarks.imports --runs 3

Every sample is a fresh interpreter, in turns; one run of each before warms the file cache and
writes the bytecode.
"""

import argparse
import subprocess
import sys
from functools import partial
from pathlib import Path

if not __package__:  # run as a file: the checkout's root stands in for this folder
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks.pairing import Bar, Pace, Timing, bar_record, interleave, timing_table, write_json

OURS, TORCH = "from qkv import MultiHeadAttention", "import torch"
LIMIT = 1.15
HELP = """
import sys
from qkv.cli.main import run
sys.argv = ["qkv", "--help"]
try:
    run()
except SystemExit as end:
    code = end.code
sys.exit(code or ("torch" in sys.modules) * 3)
"""
"""Ends with 3 where the help loaded PyTorch."""


def fresh(*arguments: str) -> None:
    """Run an interpreter anew.

    Raises:
        subprocess.CalledProcessError: it failed.
    """
    subprocess.run([sys.executable, *arguments], check=True, capture_output=True)


def measure(pace: Pace) -> tuple[Timing, Bar]:
    """Time the two imports, and an interpreter that does nothing."""
    statements = (OURS, TORCH, "pass")
    timing = interleave({name: partial(fresh, "-c", name) for name in statements}, pace)
    return timing, Bar(TORCH, LIMIT, timing.ratio(OURS, TORCH))


def help_verdict(pace: Pace) -> tuple[str, bool]:
    """Return what there is to say about `qkv --help`, and whether it stays without PyTorch."""
    ended = subprocess.run(
        [sys.executable, "-c", HELP], check=False, capture_output=True, text=True
    )
    if ended.returncode == 3:
        return "MISSED  qkv --help imports torch", False
    if ended.returncode:
        reason = ended.stderr.strip().splitlines()[-1:] or ["no message"]
        return f"MISSED  qkv --help does not run: {reason[0]}", False
    calls = {name: partial(fresh, "-c", code) for name, code in (("help", HELP), ("", "pass"))}
    seconds = interleave(calls, pace).median("help")
    return f"met     qkv --help without importing torch: {seconds * 1e3:.0f} ms", True


def options() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.imports", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--runs", type=int, default=1, help="repeat the whole; 3 for a verdict")
    parser.add_argument("--quick", action="store_true", help="few rounds: for development")
    parser.add_argument("--json", type=Path, help="also write the measurements to this file")
    return parser.parse_args()


def main() -> int:
    """Measure, print, and return 1 if something was missed."""
    given = options()
    pace = Pace(seconds=3, least=6) if given.quick else Pace(seconds=60, least=20)
    reached, records = [], []
    for _ in range(given.runs):
        timing, bar = measure(pace)
        said, without_torch = help_verdict(Pace(seconds=5, least=6))
        print(timing_table(timing, OURS), f"  {bar}", f"  {said}", sep="\n")
        reached += [bar.met, without_torch]
        records.append({"seconds": timing.seconds, "bars": [bar_record(bar)], "help": said})
    if given.json:
        write_json(given.json, records)
    return 0 if all(reached) else 1


if __name__ == "__main__":
    sys.exit(main())
