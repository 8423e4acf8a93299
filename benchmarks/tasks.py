"""What the tasks of `qkv train` reach on what was held out, each from its usual settings.

    python -m benchmarks.tasks
    python -m benchmarks.tasks --only caption --seeds 3
    python -m benchmarks.tasks --history build/history --seeds 3

caption     the share of captions that are right to the last word: 95 % at least
words       perplexity from the four words before, as a bag and in their places: these tell more
history     who translates better: attention than a single vector, by a margin that grows with the
            length of a sentence; the transformer than all others (what lies in the folder already
            is not trained again)
"""

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

if not __package__:  # run as a file: the checkout's root stands in for this folder
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks.pairing import write_json
from qkv.train.loop import Result, train
from qkv.train.settings import Settings
from qkv.train.task import Task
from qkv.train.tasks.caption import Caption
from qkv.train.tasks.words import Words
from qkv.train.translation.history import DICTIONARY, USUAL, History, Summary, summaries

EXACT = 0.95
"""Of captions."""

ATTENDING = ("additive", "dot", "transformer")


class Told(NamedTuple):
    """One bar: what was to be shown, and the numbers that show it or do not."""

    met: bool
    what: str

    def __str__(self) -> str:
        return f"{'met' if self.met else 'MISSED':<6}  {self.what}"


def trained(task: Task[Any], seed: int, steps: int | None) -> Result:
    """Train as the command does, and measure once, at the end: nothing is chosen by the test."""
    usual: Settings = type(task).usual
    settings = usual if steps is None else usual.in_steps(steps)
    settings = replace(settings, seed=seed, measure_every=settings.steps)
    with tempfile.TemporaryDirectory() as folder:
        return train(task, settings, Path(folder) / "out")


def caption(seed: int, steps: int | None) -> Iterator[Told]:
    """Train a captioner."""
    result = trained(Caption.open(seed=seed), seed, steps)
    exact, seconds = result.values["exact"], result.seconds
    yield Told(exact >= EXACT, f"caption: {exact:.1%} exact, wanted {EXACT:.0%} ({seconds:.0f} s)")


def words(seed: int, steps: int | None) -> Iterator[Told]:
    """Train the network of four words twice."""
    bag, places = (
        trained(Words.open(seed=seed, positions=positions), seed, steps).values["perplexity"]
        for positions in (False, True)
    )
    yield Told(places < bag, f"words: perplexity {bag:.1f} as a bag, {places:.1f} in their places")


TASKS: Mapping[str, Callable[[int, int | None], Iterator[Told]]] = {
    "caption": caption,
    "words": words,
}


def history(folder: Path, seeds: int, steps: int | None) -> Iterator[Told]:
    """Train what is not trained yet, and compare."""
    settings = USUAL if steps is None else USUAL.in_steps(steps)
    yield from orderings(summaries(History(folder).run(settings, seeds=seeds)))


def orderings(rows: Sequence[Summary]) -> Iterator[Told]:
    """Tell who is better: by BLEU, overall and by length."""
    by_name = {row.system: row for row in rows}
    single = by_name["single"]
    for name in ATTENDING:
        margins = {
            length: by_name[name].by_length[length]["bleu"][0] - values["bleu"][0]
            for length, values in single.by_length.items()
        }
        told = ", ".join(f"{length} {margin:+.1f}" for length, margin in margins.items())
        grows = list(margins.values()) == sorted(margins.values())
        yield Told(grows and min(margins.values()) >= 0, f"{name} over single, BLEU: {told}")
    best = max(rows, key=lambda row: row.overall["bleu"][0])
    told = ", ".join(
        f"{row.system} {row.overall['bleu'][0]:.2f} ± {row.overall['bleu'][1]:.2f}" for row in rows
    )
    yield Told(best.system == "transformer", f"the transformer is best, BLEU: {told}")
    worst = min(rows, key=lambda row: row.overall["bleu"][0])
    yield Told(worst.system == DICTIONARY, "word by word is worst")


def options() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tasks", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--only", choices=TASKS, action="append", help="train only these")
    parser.add_argument("--history", type=Path, metavar="FOLDER", help="only compare translators")
    parser.add_argument("--seeds", type=int, default=1, help="times, each with other data held out")
    parser.add_argument("--steps", type=int, help="train so many steps: for development")
    parser.add_argument("--json", type=Path, help="write what was found")
    asked = parser.parse_args()
    if asked.history and asked.only:
        parser.error("--history compares translators alone: leave --only out")
    return asked


def main() -> int:
    """Train, print, and return 1 if something was missed."""
    asked, found = options(), []
    for seed in range(1 if asked.history else asked.seeds):
        if asked.history:
            told = history(asked.history, asked.seeds, asked.steps)
        else:
            told = (one for name in asked.only or TASKS for one in TASKS[name](seed, asked.steps))
        for one in told:
            print(f"seed {seed}  {one}" if not asked.history else one, flush=True)
            found.append(one)
    if asked.json is not None:
        write_json(asked.json, [one._asdict() for one in found])
    return 0 if all(one.met for one in found) else 1


if __name__ == "__main__":
    sys.exit(main())
