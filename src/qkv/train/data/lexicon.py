"""All the words of a phrase book, read from its folder."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Literal

from qkv.errors import ArgumentError
from qkv.train.data import entries
from qkv.train.data.entries import Adjective, Agreement, Determiner, Known, Noun, Verb
from qkv.train.data.rows import one_of, read_rows

Language = Literal["English", "Spanish"]
NumberForms = tuple[str | None, str | None]
"""For one, for many."""


@dataclass(frozen=True)
class Lexicon:
    """The words, in the order of their files.

    Attributes:
        small: the words of the frames that never change, each with its Spanish, "" for none.
        known: what selections of nouns may name.
        articles: English words whose first letter misleads, with the "a" or "an" before them.
    """

    nouns: tuple[Noun, ...]
    adjectives: tuple[Adjective, ...]
    verbs: tuple[Verb, ...]
    determiners: tuple[Determiner, ...]
    agreements: tuple[Agreement, ...]
    small: tuple[tuple[str, str], ...]
    articles: dict[str, str]
    known: Known

    @classmethod
    def read(cls, folder: Path, faults: list[str]) -> "Lexicon":
        """Read the tables of the folder; `faults` takes a line for each bad row."""
        classes = frozenset(
            name for name, _ in read_rows(folder / "classes.txt", 2, lambda cells: cells, faults)
        )
        seen: set[str] = set()
        nouns = read_rows(
            folder / "nouns.txt", 6, partial(_new_noun, classes=classes, seen=seen), faults
        )
        known = entries.stands_for(nouns, classes)
        read = partial(read_rows, faults=faults)
        return cls(
            tuple(nouns),
            tuple(
                read(folder / "adjectives.txt", 10, partial(entries.adjective, known=known)),
            ),
            tuple(read(folder / "verbs.txt", 15, partial(entries.verb, known=known))),
            tuple(read(folder / "determiners.txt", 8, entries.determiner)),
            tuple(read(folder / "forms.txt", 4, entries.agreement)),
            tuple(read(folder / "words.txt", 2, _small)),
            dict(read(folder / "sounds.txt", 2, _article)),
            known,
        )

    @cached_property
    def _determiners(self) -> tuple[dict[str, Determiner], dict[str, Determiner]]:
        return (
            {one.names[0]: one for one in self.determiners},
            {one.names[1]: one for one in self.determiners},
        )

    @cached_property
    def _numbers(self) -> tuple[dict[str, NumberForms], dict[str, NumberForms]]:
        return (
            {one.english[0]: one.english for one in self.agreements},
            {one.spanish[0]: one.spanish for one in self.agreements if one.spanish[0]},
        )

    @cached_property
    def adjectives_of(self) -> dict[str, tuple[Adjective, ...]]:
        """The adjectives that go with each noun, by its English name, in the file's order."""
        return {
            noun.name: tuple(one for one in self.adjectives if noun in one.goes_with)
            for noun in self.nouns
        }

    def determiners_by_name(self, language: Language) -> dict[str, Determiner]:
        """Return the determiners by what frames in this language call them."""
        return self._determiners[language == "Spanish"]

    def number_by_name(self, language: Language) -> dict[str, NumberForms]:
        """Return the forms for one and for many by the one for one: is, es."""
        return self._numbers[language == "Spanish"]

    def candidates(self) -> Iterator[tuple[str, str]]:
        """Yield each English word with every Spanish word that it may become.

        What is most usual by rule comes first: the masculine before the feminine.
        """
        yield from self.small
        for determiner in self.determiners:
            yield from _agreeing(determiner.english, determiner.forms)
        for agreement in self.agreements:
            yield from _both(agreement.english, agreement.spanish)
        for noun in self.nouns:
            yield from _both(noun.english, noun.spanish)
        for adjective in self.adjectives:
            for form in (*adjective.forms, *(adjective.short or ())):
                if form:
                    yield adjective.english, form
        for verb in self.verbs:
            for name, form in verb.english.items():
                if name in verb.spanish:
                    yield form, verb.spanish[name]


def _new_noun(cells: tuple[str, ...], classes: frozenset[str], seen: set[str]) -> Noun:
    noun = entries.noun(cells, classes)
    if noun.name in seen:
        raise ArgumentError(f"the noun {noun.name!r} is there already")
    if noun.name in classes | {"any"}:
        raise ArgumentError(f"the noun {noun.name!r} has the name of a class")
    seen.add(noun.name)
    return noun


def _small(cells: tuple[str, ...]) -> tuple[str, str]:
    return cells[0], "" if cells[1] == "-" else cells[1]


def _article(cells: tuple[str, ...]) -> tuple[str, str]:
    return cells[0], one_of(cells[1], "a", "an", column="article")


def _both(
    english: tuple[str | None, str | None], spanish: tuple[str | None, str | None]
) -> Iterator[tuple[str, str]]:
    for from_word, to_word in zip(english, spanish, strict=True):
        if from_word and to_word:
            yield from_word, to_word


def _agreeing(
    english: tuple[str | None, str | None], forms: entries.Forms
) -> Iterator[tuple[str, str]]:
    yield from _both((english[0], english[0]), (forms[0], forms[1]))
    yield from _both((english[1], english[1]), (forms[2], forms[3]))
