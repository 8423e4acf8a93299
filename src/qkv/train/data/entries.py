"""The words of the phrase book and how they agree: nouns, adjectives, verbs, determiners.

A form is chosen by gender and number. Forms are written out in the files, none is derived by rule,
so that an irregular one is no exception.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from qkv.errors import ArgumentError
from qkv.train.data.rows import one_of, unless_missing

Gender = Literal["m", "f"]
Forms = tuple[str | None, str | None, str | None, str | None]
"""Masculine, feminine, masculine plural, feminine plural."""

USES = frozenset({"is", "noun", "very", "state", "order"})
PERSONS = ("i", "she", "we", "they")


def agreeing(forms: Forms, gender: Gender, many: bool) -> str | None:
    """Return the form for this gender and number, None where there is none."""
    return forms[2 * many + (gender == "f")]


@dataclass(frozen=True, eq=False)
class Noun:
    """A noun in both languages.

    Attributes:
        english: for one, for many (None: it is not counted, or there is only one).
        spanish: the same.
        gender: in Spanish.
        stressed_a: feminine, but el and un stand right before it in the singular: el agua.
        classes: what it belongs to, which decides what may be said of it.
    """

    english: tuple[str, str | None]
    spanish: tuple[str, str | None]
    gender: Gender
    stressed_a: bool
    classes: frozenset[str]

    @property
    def name(self) -> str:
        """The noun in English, for one; unique in a book."""
        return self.english[0]

    @property
    def counted(self) -> bool:
        """Whether there can be many: otherwise it takes neither "a" nor a number."""
        return self.english[1] is not None


Known = Mapping[str, frozenset[str]]
"""Which nouns, by name, a class's name, a noun's own name, or "any" stands for."""


def stands_for(nouns: Sequence[Noun], classes: frozenset[str]) -> Known:
    """Return what selections may name, and the nouns that each name stands for."""
    members = {name: {noun.name for noun in nouns if name in noun.classes} for name in classes}
    members |= {noun.name: {noun.name} for noun in nouns}
    members["any"] = {noun.name for noun in nouns}
    return {name: frozenset(names) for name, names in members.items()}


@dataclass(frozen=True)
class Selection:
    """Nouns by class or by name: "person horse !baby".

    Attributes:
        wanted: the words that ask for nouns, as they were written.
        names: the nouns that it comes to, by their English names.
    """

    wanted: frozenset[str]
    names: frozenset[str]

    @classmethod
    def of(cls, text: str, known: Known) -> "Selection":
        """Read it; an ArgumentError names the word that is neither a class nor a noun."""
        words = [] if text == "-" else text.split()
        for word in words:
            if word.removeprefix("!") not in known:
                raise ArgumentError(f"{word!r} is neither a class nor a noun in English")
        wanted = frozenset(word for word in words if not word.startswith("!"))
        unwanted = [known[word[1:]] for word in words if word.startswith("!")]
        names = frozenset[str]().union(*(known[word] for word in wanted))
        return cls(wanted, names.difference(*unwanted))

    def __contains__(self, noun: Noun) -> bool:
        return noun.name in self.names


@dataclass(frozen=True, eq=False)
class Adjective:
    """An adjective: its forms, which "is" it takes, where it stands, what it is said of.

    Attributes:
        short: before a noun in the singular, masculine and feminine: buen, buena.
    """

    english: str
    forms: Forms
    verb: str
    before: bool
    short: tuple[str, str] | None
    uses: frozenset[str]
    goes_with: Selection

    def beside(self, gender: Gender, many: bool) -> str | None:
        """Return the form that stands beside its noun."""
        if self.short and self.before and not many:
            return self.short[gender == "f"]
        return agreeing(self.forms, gender, many)


@dataclass(frozen=True, eq=False)
class Verb:
    """A verb: forms by name in both languages, who does it, to whom.

    Attributes:
        english, spanish: by "to", "i", "she", "we", "they", "she past", "they past", "ing";
            a form that is not wanted is missing.
        objects: None for a verb that is done to nobody.
        personal: the objects that take the personal a.
    """

    english: dict[str, str]
    spanish: dict[str, str]
    subjects: Selection
    objects: Selection | None
    personal: Selection


@dataclass(frozen=True)
class Determiner:
    """What stands before a noun and agrees with it: the, this, my, three."""

    english: tuple[str | None, str | None]
    forms: Forms
    before_stressed_a: str | None
    counted: bool

    @property
    def names(self) -> tuple[str, str]:
        """What frames call it by, in English and in Spanish: its first forms."""
        return (
            next(form for form in self.english if form),
            next(form for form in self.forms if form),
        )


@dataclass(frozen=True)
class Agreement:
    """A word of the frames that agrees in number with a noun: is, are; es, son."""

    english: tuple[str, str]
    spanish: tuple[str | None, str | None]


def noun(cells: tuple[str, ...], classes: frozenset[str]) -> Noun:
    """Make a noun of English | plural | Spanish | plural | gender | classes."""
    gender = one_of(cells[4], "m", "f", "f el", column="gender")
    own = frozenset(cells[5].split()) - {"-"}
    if unknown := sorted(own - classes):
        raise ArgumentError(f"{unknown[0]!r} is not in the list of classes")
    if (cells[1] == "-") != (cells[3] == "-"):
        raise ArgumentError("a plural in one language only; wanted both, or - for both")
    return Noun(
        (cells[0], unless_missing(cells[1])),
        (cells[2], unless_missing(cells[3])),
        "m" if gender == "m" else "f",
        gender == "f el",
        own,
    )


def adjective(cells: tuple[str, ...], known: Known) -> Adjective:
    """Make an adjective of English | four forms | verb | place | short | uses | goes with."""
    verb = one_of(cells[5], "ser", "estar", "-", column="verb")
    uses = frozenset(cells[8].split())
    if unknown := sorted(uses - USES):
        raise ArgumentError(f"use {unknown[0]!r}; wanted some of {', '.join(sorted(USES))}")
    if (verb == "-") == ("is" in uses):
        raise ArgumentError("a verb (ser, estar) and the use 'is' go together: wanted both or none")
    short = None if cells[7] == "-" else cells[7].split("/")
    if short is not None and len(short) != 2:
        raise ArgumentError(f"short is {cells[7]!r}; wanted masculine/feminine, or -")
    masculine, feminine, masculines, feminines = map(unless_missing, cells[1:5])
    return Adjective(
        cells[0],
        (masculine, feminine, masculines, feminines),
        verb,
        one_of(cells[6], "before", "after", column="place") == "before",
        (short[0], short[1]) if short else None,
        uses,
        Selection.of(cells[9], known),
    )


def verb(cells: tuple[str, ...], known: Known) -> Verb:
    """Make a verb of four English and eight Spanish forms | subjects | objects | with a."""
    base, third, past, ing = cells[:4]
    english = {"she": third} | dict.fromkeys(("they", "to", "i", "we"), base) | {"ing": ing}
    english |= {"she past": past, "they past": past}
    names = ("to", "i", "she", "we", "they", "she past", "they past", "ing")
    spanish = dict(zip(names, cells[4:12], strict=True))
    return Verb(
        {name: form for name, form in english.items() if form != "-"},
        {name: form for name, form in spanish.items() if form != "-"},
        Selection.of(cells[12], known),
        None if cells[13] == "-" else Selection.of(cells[13], known),
        Selection.of(cells[14], known),
    )


def determiner(cells: tuple[str, ...]) -> Determiner:
    """Make a determiner of two English and five Spanish forms | before."""
    one, many, *forms, before = cells
    spanish = [unless_missing(form) for form in forms]
    if one == many == "-" or not any(spanish[:4]):
        raise ArgumentError("no form at all in one of the languages")
    return Determiner(
        (unless_missing(one), unless_missing(many)),
        (spanish[0], spanish[1], spanish[2], spanish[3]),
        spanish[4],
        one_of(before, "counted", "all", column="before") == "counted",
    )


def agreement(cells: tuple[str, ...]) -> Agreement:
    """Make it of English for one | for many | Spanish for one | for many."""
    spanish = unless_missing(cells[2]), unless_missing(cells[3])
    return Agreement((cells[0], cells[1]), spanish)
