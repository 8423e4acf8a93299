"""The English–Spanish phrase book: sentence pairs from readable tables, and what is held out.

The words, their classes and the frames stand in the folder `phrasebook` beside this file; nothing
of the languages is in code except how words agree and run together.

    book = PhraseBook.read()
    split = book.split(seed=0)
    split.held_out[0].english, split.held_out[0].spanish    the sky is blue, el cielo es azul
"""

import random
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from qkv.errors import ArgumentError
from qkv.train.data.frames import Frame, Pair
from qkv.train.data.lexicon import Lexicon
from qkv.train.data.rows import read_rows, refuse

FOLDER = Path(__file__).parent / "phrasebook"
HELD_OUT_SHARE = 0.1
"""Of the combinations of noun and adjective."""
KEPT = 3
"""Combinations that every noun and every adjective keeps in training, so that it can be learnt."""

Combination = tuple[str, str]


@dataclass(frozen=True)
class Split:
    """Training pairs, and held-out ones that no training pair shares a combination with.

    Attributes:
        combinations: the (noun, adjective) that never meet in training, in any frame.
    """

    training: tuple[Pair, ...]
    held_out: tuple[Pair, ...]
    combinations: frozenset[Combination]


@dataclass(frozen=True, eq=False)
class PhraseBook:
    """Words and frames, and the sentences that they make.

    Attributes:
        always: noun, adjective and frame that are held out whatever the seed.
    """

    lexicon: Lexicon
    frames: tuple[Frame, ...]
    always: tuple[tuple[str, str, str], ...]

    @classmethod
    def read(cls, folder: str | Path = FOLDER) -> "PhraseBook":
        """Read the book.

        Raises:
            FileError: a table cannot be read, or has bad lines; all of them are named, each by
                file and line.
        """
        folder, faults = Path(folder), list[str]()
        lexicon = Lexicon.read(folder, faults)
        refuse(faults)  # a frame that asks for a bad line's word would be called bad as well
        frames = read_rows(folder / "frames.txt", 3, partial(Frame.of, lexicon=lexicon), faults)
        refuse(faults)
        named = partial(_always, frames=frames)
        always = read_rows(folder / "held_out.txt", 3, named, faults)
        refuse(faults)
        return cls(lexicon, tuple(frames), tuple(always))

    def every(self) -> Iterator[Pair]:
        """Yield every sentence of every frame: millions, and some more than once."""
        for frame in self.frames:
            yield from frame.every()

    def combinations(self) -> list[Combination]:
        """Return each (noun, adjective) that the classes allow, in the files' order."""
        return [
            (noun, adjective.english)
            for noun, adjectives in self.lexicon.adjectives_of.items()
            for adjective in adjectives
        ]

    def split(self, seed: int, *, each: int = 1000, held_out: int = 1000) -> Split:
        """Return training pairs and held-out ones.

        A tenth of the combinations of noun and adjective never meet in training, in whichever
        frame or number: their sentences are the held-out ones, and every word of these, in both
        languages, occurs in training. No text stands on both sides in either language.

        Args:
            seed: decides what is held out (beside what always is) and which sentences are drawn.
            each: sentences drawn of each frame, or all that it has.
            held_out: held-out pairs wanted.

        Raises:
            ArgumentError: so few sentences are drawn that there are fewer held-out ones.
        """
        rng = random.Random(seed)
        apart = self._hold_out(rng)
        drawn = [pair for frame in self.frames for pair in frame.draw(each, rng)]
        rng.shuffle(drawn)
        first = [pair for always in self.always for pair in self._sentences(*always)]
        candidates = [pair for pair in first + drawn if apart.intersection(pair.combinations)]
        training = _different(pair for pair in drawn if not apart.intersection(pair.combinations))
        words, texts = _words(training), _texts(training)
        kept = _different(
            pair for pair in candidates if _words([pair]) <= words and not _texts([pair]) & texts
        )[:held_out]
        if len(kept) < held_out or not _texts(first) <= _texts(kept):
            raise ArgumentError(
                f"each={each} leaves {len(kept)} held-out pairs whose words all occur in training; "
                f"wanted {held_out}: draw more of each frame, or hold out fewer"
            )
        return Split(tuple(training), tuple(kept), frozenset(apart))

    def word_by_word(self, pairs: Iterable[Pair]) -> dict[str, str]:
        """Return each English word's most usual Spanish form, "" where it has none.

        Among the forms that the book knows for it, the one that occurs in the most translations
        of sentences with the word; among equals the first in the book.
        """
        known: dict[str, dict[str, None]] = {}
        for english, spanish in self.lexicon.candidates():
            known.setdefault(english, {})[spanish] = None
        met: Counter[tuple[str, str]] = Counter()
        for pair in pairs:
            translation = set(pair.spanish.split())
            for english in set(pair.english.split()):
                met.update(
                    (english, form) for form in known.get(english, ()) if form in translation
                )
        return {
            english: max(forms, key=lambda form, word=english: met[word, form])  # type: ignore[misc]
            for english, forms in known.items()
        }

    def _hold_out(self, rng: random.Random) -> set[Combination]:
        everything = list(dict.fromkeys(self.combinations()))
        left_of_noun = Counter(noun for noun, _ in everything)
        left_of_adjective = Counter(adjective for _, adjective in everything)
        apart = {(noun, adjective) for noun, adjective, _ in self.always}
        wanted = round(HELD_OUT_SHARE * len(everything))
        for noun, adjective in rng.sample(everything, len(everything)):
            if len(apart) >= wanted:
                break
            if min(left_of_noun[noun], left_of_adjective[adjective]) > KEPT:
                apart.add((noun, adjective))
                left_of_noun[noun] -= 1
                left_of_adjective[adjective] -= 1
        return apart

    def _sentences(self, noun: str, adjective: str, frame: str) -> list[Pair]:
        return [
            pair for one in self.frames if one.name == frame for pair in one.saying(noun, adjective)
        ]


def _always(cells: tuple[str, ...], frames: list[Frame]) -> tuple[str, str, str]:
    noun, adjective, frame = cells
    named = (one for one in frames if one.name == frame)
    if not any(True for one in named for _ in one.saying(noun, adjective)):
        raise ArgumentError(f"no sentence of the frame {frame!r} says {adjective!r} of {noun!r}")
    return noun, adjective, frame


def _different(pairs: Iterable[Pair]) -> list[Pair]:
    """Keep the first of pairs with the same English."""
    found: dict[str, Pair] = {}
    for pair in pairs:
        found.setdefault(pair.english, pair)
    return list(found.values())


def _texts(pairs: Iterable[Pair]) -> set[str]:
    return {text for pair in pairs for text in (pair.english, pair.spanish)}


def _words(pairs: Iterable[Pair]) -> set[tuple[str, str]]:
    """Return the words of both languages, each with its language."""
    return {("English", word) for pair in pairs for word in pair.english.split()} | {
        ("Spanish", word) for pair in pairs for word in pair.spanish.split()
    }
