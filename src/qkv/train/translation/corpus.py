"""Sentence pairs of one set or several, split into those that train and those that are held out.

    phrasebook      sentences of the phrase book; combinations of noun and adjective are held out
    clauses         two to four of these sentences joined to a longer one
    verses          of the Bible

and files of two columns. No sentence that is held out trains, whichever set it comes from and
however it is spelt: "The sky is blue." is the same as "the sky is blue", as it is to the models.
"""

import random
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np
import numpy.typing as npt

from qkv.errors import ArgumentError
from qkv.train.data.fingerprint import Fingerprint
from qkv.train.data.held_out import held_out
from qkv.train.data.pairs import TextPair, pairs_of
from qkv.train.data.phrasebook import PhraseBook, Split
from qkv.train.translation.spelling import plain

PHRASEBOOK, CLAUSES = "phrasebook", "clauses"

MOST, SHARE = 1000, 0.1
"""Pairs of a set that are held out at most, and their share in it."""

EACH, LEAST = 1000, 20
"""Sentences drawn of a frame of the phrase book, and the fewest where there is a limit."""

HELD_OUT_OF_EACH = 5
"""Pairs that are held out for each sentence drawn of a frame, where that is fewer than `MOST`."""

JOINTS = (("but", "pero"), ("because", "porque"), ("while", "mientras"))
"""What joins sentences: words that change nothing beside them, in either language."""

CLAUSES_MOST = 4
LONG = 0.4
"""Joined sentences for each sentence of the phrase book."""

Reading = Callable[[], Iterator[TextPair]]


class HeldOut(NamedTuple):
    """A pair that trains nothing.

    Attributes:
        source, target: the two sentences.
        origin: the set that it is from.
    """

    source: str
    target: str
    origin: str


@dataclass(frozen=True, eq=False)
class Part:
    """One set.

    Attributes:
        name: of the set, or the path of a file.
        reading: reads the pairs that train, as often as it is called.
        held_out: pairs that do not.
        about: what the pairs are, as JSON.
        words: a dictionary that came with them.
    """

    name: str
    reading: Reading
    held_out: tuple[HeldOut, ...]
    about: Mapping[str, Any]
    words: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Corpus:
    """Sentence pairs that are read as often as they are wanted, and never all held at once.

    Attributes:
        parts: the sets.
        seed: decided what is held out.
    """

    parts: tuple[Part, ...]
    seed: int

    @classmethod
    def open(cls, data: Sequence[str] = (), *, seed: int = 0, limit: int | None = None) -> "Corpus":
        """Read every set once.

        Args:
            data: "phrasebook", "clauses", "verses", or files of two columns; the phrase book by
                default.
            seed: decides what is held out.
            limit: pairs that are taken of each set, about; all by default.

        Raises:
            ArgumentError: a set twice, or one of fewer than two pairs.
            FileError: a file that cannot be read, holds nothing, or has bad lines; names them all.
        """
        names = tuple(data) or (PHRASEBOOK,)
        if len(set(names)) < len(names):
            raise ArgumentError(f"data are {', '.join(names)}; wanted each set once")
        if limit is not None and limit < 2:
            raise ArgumentError(f"limit is {limit}; wanted 2 pairs or more")
        files = {name: _file(name, seed, limit) for name in names
                 if name not in (PHRASEBOOK, CLAUSES)}  # fmt: skip
        ours = _book(set(names) - set(files), seed, limit)
        return cls(tuple((ours | files)[name] for name in names), seed)

    @property
    def sets(self) -> tuple[str, ...]:
        """Names of the sets."""
        return tuple(part.name for part in self.parts)

    @property
    def held_out(self) -> tuple[HeldOut, ...]:
        """The pairs that train nothing, set by set."""
        return tuple(pair for part in self.parts for pair in part.held_out)

    @property
    def words(self) -> Mapping[str, str]:
        """The dictionaries that came with the sets."""
        return {word: its for part in self.parts for word, its in part.words.items()}

    def training(self) -> Iterator[TextPair]:
        """Read the pairs that train, one after the other."""
        apart = {plain(pair.source) for pair in self.held_out}
        for part in self.parts:
            yield from (pair for pair in part.reading() if plain(pair.source) not in apart)

    def describe(self) -> Mapping[str, Any]:
        """Return what these pairs are, as JSON."""
        told = {part.name: dict(part.about) for part in self.parts}
        return {"sets": told, "held_out": len(self.held_out), "split": self.seed}


def _book(names: Collection[str], seed: int, limit: int | None) -> dict[str, Part]:
    """Read the phrase book; what it holds out is held out of the joined sentences too."""
    if not names:
        return {}
    book = PhraseBook.read()
    each = EACH if limit is None else max(LEAST, limit // len(book.frames))
    split = book.split(seed, each=each, held_out=min(MOST, HELD_OUT_OF_EACH * each))
    words = book.word_by_word(split.training) | dict(JOINTS)
    made = {PHRASEBOOK: _sentences, CLAUSES: _clauses}
    return {name: made[name](split, seed, words) for name in names}


def _sentences(split: Split, seed: int, words: Mapping[str, str]) -> Part:
    trains, apart = _pairs(split)
    kept = tuple(HeldOut(*pair, PHRASEBOOK) for pair in apart)
    return Part(PHRASEBOOK, partial(iter, trains), kept, _about(trains), words)


def _clauses(split: Split, seed: int, words: Mapping[str, str]) -> Part:
    trains, apart = _pairs(split)
    joined = partial(_joined, trains, round(LONG * len(trains)), seed)
    kept = tuple(HeldOut(*pair, CLAUSES) for pair in _joined(apart, len(apart), seed))
    return Part(CLAUSES, joined, kept, _about(joined()), words)


def _pairs(split: Split) -> tuple[list[TextPair], list[TextPair]]:
    """Return what trains, and what does not."""
    both = [[TextPair(one.english, one.spanish) for one in side]
            for side in (split.training, split.held_out)]  # fmt: skip
    return both[0], both[1]


def _joined(pairs: Sequence[TextPair], number: int, seed: int) -> Iterator[TextPair]:
    """Join sentences drawn by chance: as many of two as of three and of four."""
    drawn = random.Random(f"{seed} clauses")
    for _ in range(number):
        parts = [drawn.choice(pairs) for _ in range(drawn.randint(2, CLAUSES_MOST))]
        source, target = parts[0]
        for pair in parts[1:]:
            english, spanish = drawn.choice(JOINTS)
            source = f"{source} {english} {pair.source}"
            target = f"{target} {spanish} {pair.target}"
        yield TextPair(source, target)


def _file(name: str, seed: int, limit: int | None) -> Part:
    """Read a file, or a set that lies in one; a part of it is held out by chance."""
    seen = Fingerprint()
    read = partial(_read, name, limit)
    marks = np.fromiter(
        (crc32(plain(pair.source).encode()) for pair in seen.through(read())), np.int64
    )
    if len(set(marks.tolist())) < 2:
        raise ArgumentError(
            f"{name} holds one sentence; wanted 2 or more, for one of them is held out"
        )
    wanted = min(MOST, max(1, round(SHARE * len(marks))))
    training, _ = held_out(len(marks), wanted, seed, alike=marks)
    trains = np.isin(np.arange(len(marks)), training)
    kept = tuple(HeldOut(*pair, name) for pair in _chosen(read, ~trains))
    return Part(name, partial(_chosen, read, trains), kept, seen.describe())


def _read(name: str, limit: int | None) -> Iterator[TextPair]:
    return islice(pairs_of(name), limit)


def _chosen(read: Reading, which: npt.NDArray[np.bool_]) -> Iterator[TextPair]:
    return (pair for pair, wanted in zip(read(), which, strict=True) if wanted)


def _about(pairs: Iterator[TextPair] | Sequence[TextPair]) -> Mapping[str, Any]:
    seen = Fingerprint()
    for _ in seen.through(pairs):
        pass
    return seen.describe()
