"""How well labels of texts are told: an encoder tuned, from scratch, frozen; and a bag of words.

    python -m benchmarks.classify
    python -m benchmarks.classify --only tuned --seeds 3

The 10,605 movie-review snippets of Hutto and Gilbert 2014, and whether people found each of them
positive; a fifth is held out, the same for all four:

    tuned       MiniLM with a linear layer on top, both trained (qkv train classify --model minilm)
    frozen      a logistic regression on MiniLM's embeddings as they are
    bag         a logistic regression on the words of a text, by their tf-idf
    scratch     a small encoder from nothing (qkv train classify)

What is tuned should be the best of them. The texts are third parties'; they are read from the
package that carries them.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import NamedTuple

import numpy as np

if not __package__:  # run as a file: the checkout's root stands in for this folder
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks.embeddings import reviews
from benchmarks.pairing import table
from qkv.train.loop import train
from qkv.train.tasks.classify import Classify, macro_f1


class Reached(NamedTuple):
    """What one of them reached on the held-out texts."""

    accuracy: float
    macro_f1: float
    seconds: float


class Data(NamedTuple):
    """The file of labelled texts, and the seed of what is held out."""

    file: Path
    seed: int
    steps: int | None

    def task(self, model: str | None = None) -> Classify:
        """Return the task on these texts."""
        return Classify.open((str(self.file),), seed=self.seed, model=model)


def trained(data: Data, model: str | None) -> Reached:
    """Train the task, as the command does, and keep the last model: none is chosen by the test."""
    task = data.task(model)
    settings = task.usual.in_steps(data.steps or task.usual.steps)
    settings = replace(settings, seed=data.seed, measure_every=settings.steps)
    with tempfile.TemporaryDirectory() as folder:
        result = train(task, settings, Path(folder) / "mood")
    return Reached(result.values["accuracy"], result.values["macro_f1"], result.seconds)


def regressed(
    task: Classify, rows: Callable[[list[str], list[str]], tuple[object, object]]
) -> Reached:
    """Fit a logistic regression on what `rows` makes of training and held-out texts."""
    from sklearn.linear_model import LogisticRegression

    sides = [[task.texts[i] for i in side] for side in (task.training, task.held_out)]
    texts = [[one.text for one in side] for side in sides]
    truth = [np.array([task.labels.index(one.label) for one in side]) for side in sides]
    start = time.perf_counter()
    x, tried = rows(*texts)
    found = LogisticRegression(max_iter=1000).fit(x, truth[0]).predict(tried)
    seconds = time.perf_counter() - start
    f1 = macro_f1(truth[1], found, len(task.labels))
    return Reached(float((found == truth[1]).mean()), f1, seconds)


def frozen(data: Data) -> Reached:
    """A logistic regression on embeddings."""
    from qkv import load

    model = load("minilm")

    def rows(texts: list[str], tried: list[str]) -> tuple[object, object]:
        return model.embed(texts).numpy(), model.embed(tried).numpy()

    return regressed(data.task(), rows)


def bag(data: Data) -> Reached:
    """A logistic regression on words and pairs of words."""
    from sklearn.feature_extraction.text import TfidfVectorizer

    def rows(texts: list[str], tried: list[str]) -> tuple[object, object]:
        words = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True)
        return words.fit_transform(texts), words.transform(tried)

    return regressed(data.task(), rows)


RIVALS: dict[str, Callable[[Data], Reached]] = {
    "tuned": lambda data: trained(data, "minilm"),
    "frozen": frozen,
    "bag": bag,
    "scratch": lambda data: trained(data, None),
}


def written(folder: str) -> Path:
    """Write the snippets as a file of texts and labels; what would break a row is a space."""
    path = Path(folder) / "reviews.tsv"
    rows = zip(*reviews(), strict=True)
    lines = (
        f"{' '.join(text.split())}\t{'positive' if good else 'negative'}\n" for text, good in rows
    )
    path.write_text("".join(lines), "utf-8")
    return path


def main() -> int:
    """Measure, print, and return 1 if what is tuned is not the best."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.classify", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--only", choices=RIVALS, action="append", help="measure only these")
    parser.add_argument("--seeds", type=int, default=1, help="splits, and beginnings, to average")
    parser.add_argument("--steps", type=int, help="train so many steps: for development")
    parser.add_argument("--json", type=Path, help="write what was measured")
    asked = parser.parse_args()
    found: dict[str, list[Reached]] = {}
    with tempfile.TemporaryDirectory() as folder:
        file = written(folder)
        for seed in range(asked.seeds):
            for name in asked.only or RIVALS:
                one = RIVALS[name](Data(file, seed, asked.steps))
                found.setdefault(name, []).append(one)
                print(f"seed {seed}  {name:<8} accuracy {one.accuracy:.4f}", flush=True)
    rows: list[tuple[str, ...]] = [("", "accuracy", "from", "to", "macro F1", "seconds")]
    for name, reached in found.items():
        right = [one.accuracy for one in reached]
        numbers = (mean(right), min(right), max(right), mean(one.macro_f1 for one in reached))
        spent = mean(one.seconds for one in reached)
        rows.append((name, *(f"{number:.4f}" for number in numbers), f"{spent:.1f}"))
    print(table(rows))
    if asked.json is not None:
        told = {name: [one._asdict() for one in reached] for name, reached in found.items()}
        asked.json.write_text(json.dumps(told, indent=1) + "\n", "utf-8")
    if "tuned" not in found or len(found) < 2:
        return 0
    best = max(found, key=lambda name: mean(one.accuracy for one in found[name]))
    print("met" if best == "tuned" else f"MISSED: {best} is better")
    return 0 if best == "tuned" else 1


if __name__ == "__main__":
    sys.exit(main())
