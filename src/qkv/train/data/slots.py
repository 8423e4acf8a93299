"""The slots of a sentence frame: which nouns, adjectives and verbs may stand in it."""

from dataclasses import dataclass

from qkv.errors import ArgumentError
from qkv.train.data.entries import USES, Selection
from qkv.train.data.lexicon import Lexicon
from qkv.train.data.wording import ADJECTIVES, NOUNS


@dataclass(frozen=True)
class NounSlot:
    """Which nouns may stand here, and whether as one, as many (None: both)."""

    letter: str
    nouns: Selection
    many: bool | None


@dataclass(frozen=True)
class AdjectiveSlot:
    """Which adjectives may stand here.

    Attributes:
        of: the nouns that it must go with; it agrees with the first, or with both together.
        together: it agrees with both: the king and the queen are tired.
        uses: what it must be good for.
        verb: ser or estar, where only those are wanted.
    """

    letter: str
    of: tuple[str, ...]
    together: bool
    uses: frozenset[str]
    verb: str | None


@dataclass(frozen=True)
class VerbSlot:
    """Who does it (a noun's letter, or a class) and to whom (a noun's letter, None: to nobody)."""

    subject: str
    to: str | None


@dataclass(frozen=True)
class Slots:
    """A frame's slots, in the order in which they are filled: verb, nouns, adjectives."""

    verb: VerbSlot | None
    nouns: tuple[NounSlot, ...]
    adjectives: tuple[AdjectiveSlot, ...]

    @property
    def letters(self) -> set[str]:
        """The letters that stand for them in the sentences."""
        named = {slot.letter for slot in self.nouns} | {slot.letter for slot in self.adjectives}
        return named | {"V"} if self.verb else named


def slots(text: str, lexicon: Lexicon) -> Slots:
    """Read "N: person; A of N: is"; an ArgumentError says what is wrong."""
    nouns, adjectives, verb = [], [], None
    for part in text.split(";"):
        head, _, rest = (side.strip() for side in part.partition(":"))
        words = head.split()
        if words and words[0] in NOUNS:
            nouns.append(_noun_slot(words, rest, lexicon))
        elif len(words) > 2 and words[0] in ADJECTIVES and words[1] == "of":
            adjectives.append(_adjective_slot(words, rest))
        elif len(words) in (3, 4) and words[:2] == ["V", "of"]:
            verb = VerbSlot(words[2], words[3] if len(words) == 4 else None)
            if words[2] not in lexicon.known.keys() | set(NOUNS) or verb.to not in (None, *NOUNS):
                raise ArgumentError(f"slot {head!r}; wanted V of N, V of N M or V of person M")
        else:
            raise ArgumentError(f"slot {part.strip()!r}; wanted N: …, A of N: …, or V of N")
    letters = {slot.letter for slot in nouns}
    asked = {letter for slot in adjectives for letter in slot.of}
    asked |= {letter for letter in NOUNS if verb and letter in (verb.subject, verb.to)}
    if missing := sorted(asked - letters):
        raise ArgumentError(f"no slot {missing[0]} is described; wanted '{missing[0]}: classes'")
    return Slots(verb, tuple(nouns), tuple(adjectives))


def _noun_slot(words: list[str], rest: str, lexicon: Lexicon) -> NounSlot:
    if len(words) > 2 or words[1:] not in ([], ["one"], ["many"]):
        raise ArgumentError(f"slot {' '.join(words)!r}; wanted N, N one or N many")
    many = None if len(words) == 1 else words[1] == "many"
    return NounSlot(words[0], Selection.of(rest, lexicon.known), many)


def _adjective_slot(words: list[str], rest: str) -> AdjectiveSlot:
    of = tuple(word for word in words[2:] if word != "+")
    wanted = frozenset(rest.split())
    verbs = wanted & {"ser", "estar"}
    if unknown := sorted(wanted - USES - verbs):
        raise ArgumentError(f"use {unknown[0]!r}; wanted some of {', '.join(sorted(USES))}")
    if not set(of) <= set(NOUNS) or len(verbs) > 1:
        raise ArgumentError(f"slot {' '.join(words)!r}; wanted A of N, A of N M or A of N + M")
    verb = next(iter(verbs), None)
    return AdjectiveSlot(words[0], of, "+" in words, wanted - verbs, verb)
