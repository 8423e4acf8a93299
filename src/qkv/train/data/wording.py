"""A frame's two templates and how their words are filled in and agree.

In brackets stand words that agree with one noun: "[the A N]", "[un N A]", "[is (N)]".
"""

import re
from dataclasses import dataclass, field
from itertools import pairwise

from qkv.errors import ArgumentError
from qkv.train.data.entries import PERSONS, Adjective, Gender, Noun, Verb, agreeing
from qkv.train.data.lexicon import Language, Lexicon

NOUNS, ADJECTIVES = ("N", "M"), ("A", "B")


class MissingForm(Exception):  # noqa: N818 - no error: this filling makes no sentence
    """A word has no form for what the frame asks, as "a" has none for many."""


@dataclass(frozen=True)
class Said:
    """A noun as it is said: one or many."""

    noun: Noun
    many: bool


@dataclass(frozen=True)
class Filling:
    """What stands in a frame's slots.

    Attributes:
        agreement: gender and number for each adjective's letter.
    """

    nouns: dict[str, Said] = field(default_factory=dict)
    adjectives: dict[str, Adjective] = field(default_factory=dict)
    agreement: dict[str, tuple[Gender, bool]] = field(default_factory=dict)
    verb: Verb | None = None


@dataclass(frozen=True)
class Piece:
    """A bare word, or what stands between brackets.

    Attributes:
        noun: the letter of the noun that the bracket agrees with, None for a bare word and for
            a verb that agrees with none.
    """

    words: tuple[str, ...]
    bracketed: bool
    noun: str | None


def pieces(template: str) -> tuple[Piece, ...]:
    """Cut a template into its pieces."""
    found = []
    for text in re.findall(r"\[[^\[\]]*\]|[^\s\[\]]+|[\[\]]", template):
        if text in ("[", "]"):
            raise ArgumentError(f"a bracket of {template!r} has no partner")
        words = tuple(text.strip("[]").split())
        nouns = [word.strip("()") for word in words if word.strip("()") in NOUNS]
        bracketed = text.startswith("[")
        if len(nouns) > 1 or (bracketed and not nouns and words[:1] != ("V",)):
            raise ArgumentError(f"{text} names {len(nouns)} nouns; wanted one: N, M, (N) or (M)")
        found.append(Piece(words, bracketed, nouns[0] if nouns else None))
    return tuple(found)


def unknown_words(template: tuple[Piece, ...], lexicon: Lexicon, language: Language) -> list[str]:
    """Return the words in brackets that do not agree with anything, as far as the book knows."""
    agreeing_words = set(lexicon.determiners_by_name(language)) | set(
        lexicon.number_by_name(language)
    )
    if language == "Spanish":
        agreeing_words |= {"a?"}
    slots = {*NOUNS, *ADJECTIVES, "(N)", "(M)"}
    verb_words = slots | {"V", "to", "ing", "past", *PERSONS}
    return [
        word
        for piece in template
        if piece.bracketed
        for words in (piece.words,)
        for word in (part for whole in words for part in whole.split("/"))
        if word not in (verb_words if words[0] == "V" else slots | agreeing_words)
    ]


def wording(
    template: tuple[Piece, ...], filling: Filling, lexicon: Lexicon, language: Language
) -> str:
    """Return the sentence; MissingForm says that the filling makes none."""
    words = [
        word
        for piece in template
        for word in (
            _bracket(piece, filling, lexicon, language)
            if piece.bracketed
            else _bare(piece.words[0], filling, language)
        )
    ]
    joined = _articles(words, lexicon) if language == "English" else _contractions(words)
    return " ".join(joined)


def _form(form: str | None) -> str:
    if form is None:
        raise MissingForm
    return form


def _bare(word: str, filling: Filling, language: Language) -> list[str]:
    if word in filling.nouns:
        return [_noun(filling.nouns[word], language)]
    if word in filling.adjectives:
        adjective = filling.adjectives[word]
        if language == "English":
            return [adjective.english]
        return [_form(agreeing(adjective.forms, *filling.agreement[word]))]
    return [word]


def _noun(said: Said, language: Language) -> str:
    forms = said.noun.english if language == "English" else said.noun.spanish
    return _form(forms[said.many])


def _bracket(piece: Piece, filling: Filling, lexicon: Lexicon, language: Language) -> list[str]:
    if piece.words[0] == "V":
        return [_verb(piece, filling, language)]
    said = filling.nouns[piece.noun or ""]
    phrase = [word for word in piece.words if word == piece.noun or word in filling.adjectives]
    front = [word for word in piece.words if word not in phrase and not word.startswith("(")]
    body = _noun_phrase(phrase, said, filling, language)
    noun_first = bool(phrase) and body[0] == _noun(said, language)
    return [
        word
        for place, name in enumerate(front)
        for word in _agreeing_word(
            name, said, filling, lexicon, language, noun_first and place == len(front) - 1
        )
    ] + body


def _noun_phrase(phrase: list[str], said: Said, filling: Filling, language: Language) -> list[str]:
    """Return noun and adjective in the language's own order."""
    before: list[str] = []
    after: list[str] = []
    for word in phrase:
        if word not in filling.adjectives:
            continue
        adjective = filling.adjectives[word]
        if language == "English":
            before.append(adjective.english)
        else:
            form = _form(adjective.beside(said.noun.gender, said.many))
            (before if adjective.before else after).append(form)
    named = [_noun(said, language)] if any(word in NOUNS for word in phrase) else []
    return before + named + after


def _verb(piece: Piece, filling: Filling, language: Language) -> str:
    name = " ".join(word for word in piece.words[1:] if not word.startswith("("))
    if piece.noun:
        person = "they" if filling.nouns[piece.noun].many else "she"
        name = f"{person} {name}".strip()
    verb = filling.verb
    if verb is None:
        raise ArgumentError("the frame has V in brackets; wanted 'V of …' among its slots")
    return _form((verb.english if language == "English" else verb.spanish).get(name))


def _agreeing_word(
    name: str, said: Said, filling: Filling, lexicon: Lexicon, language: Language, at_noun: bool
) -> list[str]:
    """Return a determiner's or a form's word for this noun."""
    noun = said.noun
    if name == "a?":
        return ["a"] if filling.verb and noun in filling.verb.personal else []
    if "/" in name:  # es/está: the adjective tells which
        verb = next(one.verb for one in filling.adjectives.values() if one.verb != "-")
        name = name.split("/")[verb == "estar"]
    if determiner := lexicon.determiners_by_name(language).get(name):
        if determiner.counted and not noun.counted:
            raise MissingForm
        if language == "English":
            return [_form(determiner.english[said.many])]
        if noun.stressed_a and at_noun and not said.many:
            return [_form(determiner.before_stressed_a)]
        return [_form(agreeing(determiner.forms, noun.gender, said.many))]
    return [_form(lexicon.number_by_name(language)[name][said.many])]


def _articles(words: list[str], lexicon: Lexicon) -> list[str]:
    """Write "an" for "a" before a vowel's sound."""
    said = list(words)
    for place, (word, following) in enumerate(pairwise(words)):
        if word == "a":
            by_letter = "an" if following[0] in "aeiou" else "a"
            said[place] = lexicon.articles.get(following, by_letter)
    return said


def _contractions(words: list[str]) -> list[str]:
    """Write al and del, e for y before i, u for o before o."""
    said: list[str] = []
    for word in words:
        last = said[-1] if said else ""
        if word == "el" and last in ("a", "de"):
            said[-1] = "al" if last == "a" else "del"
            continue
        if last == "y" and re.match(r"h?[ií](?!e)", word):
            said[-1] = "e"
        if last == "o" and re.match(r"h?[oó]", word):
            said[-1] = "u"
        said.append(word)
    return said
