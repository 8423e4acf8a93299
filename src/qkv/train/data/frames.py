"""Sentence frames, and the sentence pairs that come of them."""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from qkv.errors import ArgumentError
from qkv.train.data.fillings import Fillings
from qkv.train.data.lexicon import Lexicon
from qkv.train.data.slots import Slots, slots
from qkv.train.data.wording import (
    ADJECTIVES,
    NOUNS,
    Filling,
    MissingForm,
    Piece,
    pieces,
    unknown_words,
    wording,
)

TRIES = 4
"""Random fillings that are tried for each sentence wanted: some repeat, some make none."""


@dataclass(frozen=True)
class Pair:
    """A sentence and its translation.

    Attributes:
        frame: the frame's English.
        combinations: each adjective in it with the noun that it is said of, (noun, adjective),
            by their English names.
    """

    english: str
    spanish: str
    frame: str
    combinations: tuple[tuple[str, str], ...]


@dataclass(frozen=True, eq=False)
class Frame:
    """A pair of templates with slots.

    Attributes:
        name: its English as it stands in the file.
    """

    name: str
    english: tuple[Piece, ...]
    spanish: tuple[Piece, ...]
    slots: Slots
    lexicon: Lexicon

    @classmethod
    def of(cls, cells: tuple[str, ...], lexicon: Lexicon) -> "Frame":
        """Make it of English | Spanish | slots; an ArgumentError says what is wrong."""
        frame = cls(cells[0], pieces(cells[0]), pieces(cells[1]), slots(cells[2], lexicon), lexicon)
        unknown = unknown_words(frame.english, lexicon, "English")
        if unknown := unknown or unknown_words(frame.spanish, lexicon, "Spanish"):
            raise ArgumentError(f"{unknown[0]!r} in brackets is no word that agrees with a noun")
        for template in (frame.english, frame.spanish):
            frame._check_letters(template)
        if next(frame.every(), None) is None:
            raise ArgumentError("no words of the book fit its slots")
        return frame

    def _check_letters(self, template: tuple[Piece, ...]) -> None:
        used = {word.strip("()") for piece in template for word in piece.words}
        used &= {*NOUNS, *ADJECTIVES, "V"}
        if used != self.slots.letters:
            raise ArgumentError(
                f"slots {' '.join(sorted(self.slots.letters))} are described, "
                f"{' '.join(sorted(used))} stand in a sentence; wanted the same"
            )
        is_told = any("/" in word for piece in template for word in piece.words)
        if is_told and not any("is" in slot.uses for slot in self.slots.adjectives):
            raise ArgumentError("es/está wants an adjective with the use 'is' to choose by")

    def every(self) -> Iterator[Pair]:
        """Yield every sentence, in the order of the files."""
        for filling in Fillings(self.slots, self.lexicon).every():
            if pair := self._pair(filling):
                yield pair

    def saying(self, noun: str, adjective: str) -> Iterator[Pair]:
        """Yield every sentence that says this adjective of this noun, by their English names."""
        for filling in Fillings(self.slots, self.lexicon).every():
            if (noun, adjective) in self._combinations(filling) and (pair := self._pair(filling)):
                yield pair

    def draw(self, number: int, rng: random.Random) -> list[Pair]:
        """Return `number` different sentences in random order, or all where there are fewer."""
        fillings = Fillings(self.slots, self.lexicon)
        drawn: dict[str, Pair] = {}
        everything = list(islice(fillings.every(), TRIES * number + 1))
        if len(everything) <= TRIES * number:
            rng.shuffle(everything)
            source: Iterator[Filling | None] = iter(everything)
        else:
            source = (fillings.one(rng) for _ in range(TRIES * number))
        for filling in source:
            if len(drawn) == number:
                break
            if filling and (pair := self._pair(filling)):
                drawn.setdefault(pair.english, pair)
        return list(drawn.values())

    def _pair(self, filling: Filling) -> Pair | None:
        try:
            english = wording(self.english, filling, self.lexicon, "English")
            spanish = wording(self.spanish, filling, self.lexicon, "Spanish")
        except MissingForm:
            return None
        return Pair(english, spanish, self.name, self._combinations(filling))

    def _combinations(self, filling: Filling) -> tuple[tuple[str, str], ...]:
        return tuple(
            (filling.nouns[letter].noun.name, filling.adjectives[slot.letter].english)
            for slot in self.slots.adjectives
            for letter in slot.of
        )
