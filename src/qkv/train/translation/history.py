"""The history of translation by machine: five systems on the same sentences, and how they compare.

    history = History(Path("history"))
    outcomes = history.run(seeds=3)
    rows = summaries(outcomes)

Word by word with a dictionary; a recurrent network with a single vector; two with attention; and
the transformer. The four that learn see the same batches, equally often, and each is measured as it
is after the last step: none is chosen by what it is measured with.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from qkv.errors import ArgumentError
from qkv.models import load
from qkv.train.events import Listener
from qkv.train.folder import RECORD
from qkv.train.loop import train
from qkv.train.settings import Settings
from qkv.train.tasks.translate import Translate
from qkv.train.translation.corpus import CLAUSES, PHRASEBOOK
from qkv.train.translation.dictionary import Dictionary
from qkv.train.translation.measures import measured
from qkv.train.translation.systems import SYSTEMS, Sizes

DICTIONARY = "dictionary"

DATA = (PHRASEBOOK, CLAUSES)
"""Sentences of four to forty words."""

USUAL = Translate.usual.in_steps(800)
"""Those that attend have then learnt most of it, and the one that does not shows why."""

BEAMS = 4
"""Beginnings that are followed at once in a measure (Vaswani et al. 2017, section 6.1)."""

LENGTHS = (5, 10, 20)
"""Words of a source up to which it is short, and so on; what is longer comes last."""

FEWEST = 20
"""Sentences of a length that there must be, for a measure to say something."""

Watch = Callable[[str, int], Listener | None]
"""Is told which system begins with which seed, and returns who listens to it."""


@dataclass(frozen=True)
class Outcome:
    """What one system reached with one seed.

    Attributes:
        system: its name.
        seed: of the data that was held out, and of the training.
        parameters: numbers that were learnt; of the dictionary its entries.
        steps: how often they were changed; of the dictionary 0.
        seconds: that learning took, the one measure at its end included.
        overall: chrF, BLEU and the exact share.
        by_length: the same for sources of 6 to 10 words ("6–10"), and so on, where there are
            enough of them.
        sentences: how many were translated, all of them held out.
    """

    system: str
    seed: int
    parameters: int
    steps: int
    seconds: float
    overall: Mapping[str, float]
    by_length: Mapping[str, Mapping[str, float]]
    sentences: int


@dataclass(frozen=True)
class Summary:
    """What one system reached, over all seeds.

    Attributes:
        system: its name.
        says: what it is, in a few words.
        parameters, steps, seconds: as of an `Outcome`, on average.
        overall, by_length: mean and standard deviation (0 with one seed) of each measure.
    """

    system: str
    says: str
    parameters: float
    steps: float
    seconds: float
    overall: Mapping[str, tuple[float, float]]
    by_length: Mapping[str, Mapping[str, tuple[float, float]]]


class History:
    """A folder with every system that is trained: `seed-0/transformer`, and so on.

    Args:
        out: the folder; made where it is not there.
        data: as `Translate.open` takes it; the phrase book and its clauses by default.
        sizes: of the systems.
        limit: pairs that are taken of each set, about; all by default.
    """

    def __init__(
        self,
        out: Path,
        data: Sequence[str] = (),
        *,
        sizes: Sizes | None = None,
        limit: int | None = None,
    ) -> None:
        """Read nothing yet."""
        self.out, self.data, self.sizes, self.limit = out, tuple(data) or DATA, sizes, limit

    def run(
        self, settings: Settings = USUAL, *, seeds: int = 1, watch: Watch | None = None
    ) -> list[Outcome]:
        """Train what is not trained yet, go on with what was stopped, and measure all of it.

        Args:
            settings: how; but for the seed, and that a system is measured once, at the end.
            seeds: how many times, from seed 0 on; each holds out other data.
            watch: is told what begins.

        Returns:
            An outcome for each seed and system, seed by seed, in the order of history.

        Raises:
            ArgumentError: seeds below 1, or a folder with systems of other data or settings; names
                the fields that differ.
            FileError: data that cannot be read, or a folder that cannot be written to.
            MissingPackageError: what measures translations is not installed.
        """
        if seeds < 1:
            raise ArgumentError(f"seeds is {seeds}; wanted 1 or more")
        settings = replace(settings, measure_every=settings.steps)
        return [outcome for seed in range(seeds) for outcome in self._with(seed, settings, watch)]

    def folder(self, system: str, seed: int = 0) -> Path:
        """Where a trained system lies."""
        return self.out / f"seed-{seed}" / system

    def _with(self, seed: int, settings: Settings, watch: Watch | None) -> Iterator[Outcome]:
        task = Translate.open(self.data, seed=seed, sizes=self.sizes, limit=self.limit)
        yield _by_dictionary(task, seed)
        for system in SYSTEMS:
            listen = None if watch is None else watch(system, seed)
            yield self._trained(task.by(system), replace(settings, seed=seed), listen)

    def _trained(self, task: Translate, settings: Settings, listen: Listener | None) -> Outcome:
        folder = self.folder(task.system.name, settings.seed)
        resume = (folder / RECORD).exists()
        result = train(task, settings, folder, resume=resume, listen=listen)
        texts = [pair.source for pair in task.held_out]
        found = task.translations(load(folder), texts, beams=BEAMS)
        return _outcome(
            task, found, system=task.system.name, seed=settings.seed,
            parameters=result.parameters, steps=result.step, seconds=result.seconds,
        )  # fmt: skip


def summaries(outcomes: Sequence[Outcome]) -> list[Summary]:
    """Return a line for each system, in the order of history."""
    systems = dict.fromkeys(outcome.system for outcome in outcomes)
    return [_summary([one for one in outcomes if one.system == system]) for system in systems]


def _by_dictionary(task: Translate, seed: int) -> Outcome:
    start = time.perf_counter()
    dictionary = Dictionary.of(task.pairs)
    found = dictionary.translate([pair.source for pair in task.held_out])
    return _outcome(
        task, found, system=DICTIONARY, seed=seed, parameters=len(dictionary.entries), steps=0,
        seconds=time.perf_counter() - start,
    )  # fmt: skip


def _outcome(task: Translate, found: Sequence[str], **about: Any) -> Outcome:
    groups: dict[str, list[int]] = {_name(i): [] for i in range(len(LENGTHS) + 1)}
    for number, pair in enumerate(task.held_out):
        words = len(pair.source.split())
        groups[_name(sum(words > most for most in LENGTHS))].append(number)
    by_length = {
        name: measured([found[i] for i in numbers], [task.wanted[i] for i in numbers])
        for name, numbers in groups.items()
        if len(numbers) >= FEWEST
    }
    return Outcome(
        overall=measured(found, task.wanted), by_length=by_length, sentences=len(found), **about
    )


def _name(i: int) -> str:
    """Return what a group of lengths is called: 1–5, 6–10, 11–20, over 20."""
    if i == len(LENGTHS):
        return f"over {LENGTHS[-1]}"
    return f"{LENGTHS[i - 1] + 1 if i else 1}–{LENGTHS[i]}"


def _summary(outcomes: Sequence[Outcome]) -> Summary:
    first = outcomes[0]
    says = SYSTEMS[first.system].says if first.system in SYSTEMS else "word by word"
    lengths = [name for name in first.by_length if all(name in one.by_length for one in outcomes)]
    return Summary(
        first.system, says,
        mean(one.parameters for one in outcomes),
        mean(one.steps for one in outcomes),
        mean(one.seconds for one in outcomes),
        _spread([one.overall for one in outcomes]),
        {name: _spread([one.by_length[name] for one in outcomes]) for name in lengths},
    )  # fmt: skip


def _spread(values: Sequence[Mapping[str, float]]) -> dict[str, tuple[float, float]]:
    """Return mean and standard deviation of each measure."""
    columns = {name: [one[name] for one in values] for name in values[0]}
    return {name: (mean(x), stdev(x) if len(x) > 1 else 0.0) for name, x in columns.items()}
