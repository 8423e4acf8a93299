"""Make the English–Spanish verse pairs, `src/qkv/train/data/verses/en-es.tsv`.

Both Bibles are in the public domain and lie in Debian 12 as modules for SWORD:

    apt-get install sword-text-web=426.0-1 sword-text-sparv=2.60-1
    pip install pysword==0.2.8
    python tools/verses.py /usr/share/sword src/qkv/train/data/verses/en-es.tsv

Packages that are unpacked elsewhere will do as well. What is left out, and what is altered, stands
in the folder's README.md.
"""

import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

ENGLISH, SPANISH = "engWEB2015eb", "spaRV1909eb"
FEWEST, MOST = 2, 20
"""Words of a verse, on both sides."""
TIMES, FORGIVEN = 2, 3
"""So many times as long one side may be as the other, and some words."""
SPELLING = {
    "á": "a", "é": "e", "ó": "o", "ú": "u",  # 1911
    "fué": "fue", "fuí": "fui", "dió": "dio", "vió": "vio", "dí": "di",  # 1959
}  # fmt: skip
"""Spanish words, as the Academy's reforms left them."""

UNFIT = r"[][()]|[A-ZÁ-Ú]{2}[a-zá-ú]"
"""Brackets, and words that ran together."""

Sides = tuple[str, str]


def main(sword: str, file: str) -> None:
    """Read both Bibles and write the pairs."""
    cleaned = [(clean_english(en), clean_spanish(es)) for en, es in verses(sword)]
    usual = usual_spelling(spanish for _, spanish in cleaned)
    pairs = list(chosen((en, without_capitals(es, usual)) for en, es in cleaned))
    Path(file).write_text("".join(f"{en}\t{es}\n" for en, es in pairs), encoding="utf-8")
    print(f"{len(pairs)} pairs")


def verses(sword: str) -> Iterator[Sides]:
    """Yield the verses of chapters that both Bibles count alike, with SWORD's markup."""
    from pysword.modules import SwordModules

    modules = SwordModules(sword)
    modules.parse_modules()
    english, spanish = (modules.get_bible_from_module(name) for name in (ENGLISH, SPANISH))
    lengths = {book.name: book.chapter_lengths for book in books(english)}
    for book in books(spanish):
        for chapter, length in enumerate(book.chapter_lengths, start=1):
            if lengths[book.name][chapter - 1] != length:
                continue
            # the Spanish has a psalm's title in its first verse, the English before it
            for verse in range(2 if book.name == "Psalms" else 1, length + 1):
                place = {"books": [book.name], "chapters": [chapter], "verses": [verse]}
                yield english.get(**place, clean=False), spanish.get(**place, clean=False)


def books(bible: Any) -> list[Any]:
    """Return the books of a Bible, in order."""
    return [book for part in ("ot", "nt") for book in bible.get_structure().get_books()[part]]


def clean_english(text: str) -> str:
    """Take away markup, and quotation marks: the Spanish has none."""
    text = re.sub(r"(?<=[a-z])’(?=[a-z])", "'", without_markup(text))
    if "‘" not in text:  # else it may end a quotation
        text = re.sub(r"s’(?= \w)", "s'", text)
    return re.sub("[“”‘’]", "", text)


def clean_spanish(text: str) -> str:
    """Take away markup, and spell as today."""
    return re.sub(r"\w+", lambda word: modern(word[0]), without_markup(text))


def without_markup(text: str) -> str:
    """Take away notes, titles and tags; close up before a stop."""
    text = re.sub(r"<(note|title)\b.*?</\1>|</?(l|lg|div)\b[^>]*>", " ", text, flags=re.DOTALL)
    text = re.sub(r"<[^>]*>", "", text)
    return re.sub(r" (?=[,.;:!?])", "", " ".join(text.split()))


def modern(word: str) -> str:
    """Spell a word as today."""
    spelt = SPELLING.get(word.lower())
    if spelt is None:
        return word
    return spelt.capitalize() if word[0].isupper() else spelt


def usual_spelling(texts: Iterable[str]) -> dict[str, str]:
    """Return how each word is mostly written, apart from capitals throughout."""
    met = Counter(word for text in texts for word in re.findall(r"\w+", text))
    return {word.lower(): word for word, _ in reversed(met.most_common()) if not is_capitals(word)}


def without_capitals(text: str, usual: dict[str, str]) -> str:
    """Write words in capitals, with which a chapter begins, as they are mostly written."""
    text = re.sub(
        r"\w+",
        lambda word: (
            usual.get(word[0].lower(), word[0].capitalize()) if is_capitals(word[0]) else word[0]
        ),
        text,
    )
    return re.sub(r"^\W*\w", lambda start: start[0].upper(), text)


def is_capitals(word: str) -> bool:
    """Whether it is written in capitals throughout; Y and Ó are at the beginning of a sentence."""
    return len(word) > 1 and word.isupper()


def chosen(pairs: Iterable[Sides]) -> Iterator[Sides]:
    """Yield pairs that are short, of like length, fit and different from all before."""
    met: set[str] = set()
    for pair in pairs:
        lengths = [len(side.split()) for side in pair]
        alike = max(lengths) <= TIMES * min(lengths) + FORGIVEN
        short = min(lengths) >= FEWEST and max(lengths) <= MOST
        if alike and short and not met & set(pair) and not re.search(UNFIT, " ".join(pair)):
            met |= set(pair)
            yield pair


if __name__ == "__main__":
    main(*sys.argv[1:])
