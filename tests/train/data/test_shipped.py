"""The texts in the package: verses and books."""

import re

import pytest

from qkv.errors import ArgumentError
from qkv.train.data.books import BOOKS, FOLDER, read_books
from qkv.train.data.verses import FILE, read_verses


def test_verses_are_short_clean_and_different() -> None:
    pairs = list(read_verses())
    assert len(pairs) == 12_022
    assert len({pair.source for pair in pairs}) == len({pair.target for pair in pairs}) == 12_022
    for pair in pairs:
        for side in pair:
            assert 2 <= len(side.split()) <= 20
            assert not re.search(r"[][()<>{}|“”‘’\"]|  ", side)
    assert FILE.stat().st_size < 2_000_000


def test_verses_say_the_same() -> None:
    """A name is on both sides, and mostly not where the next verse stands on the other."""
    both = [("David", "David"), ("Jerusalem", "Jerusalem"), ("Moses", "Moisés"), ("Jesus", "Jesús")]
    pairs = list(read_verses())
    for english, spanish in both:
        met = [place for place, pair in enumerate(pairs[:-1]) if english in pair.source]
        beside = [sum(spanish in pairs[place + by].target for place in met) for by in (0, 1)]
        assert beside[0] > 0.75 * len(met) > 50
        assert beside[1] < 0.4 * len(met)


def test_spanish_verses_are_spelt_as_today() -> None:
    words = {word for pair in read_verses() for word in re.findall(r"\w+", pair.target)}
    assert not words & {"á", "é", "ó", "fué", "dió", "vió", "Á", "É", "JEHOVÁ", "COMO"}
    assert {"a", "fue", "Jehová", "él", "qué"} <= words


@pytest.mark.parametrize(
    ("name", "size", "first", "last"),
    [
        ("alice", 148_426, "ALICE'S ADVENTURES IN WONDERLAND", "THE END"),
        ("as-you-like-it", 125_173, "AS YOU LIKE IT", "[Exeunt]"),
        ("paradise-lost", 456_856, "Paradise Lost", "Through Eden took their solitary way."),
    ],
)
def test_a_book_is_whole_and_nothing_but_the_book(
    name: str, size: int, first: str, last: str
) -> None:
    lines = list(read_books([name]))
    assert len("".join(lines).encode()) == size == BOOKS[name].path.stat().st_size
    assert (lines[0].strip(), lines[-1].strip()) == (first, last)
    assert not re.search(
        r"gutenberg|\betext|millennium fulcrum|copyright|\r", "".join(lines), re.IGNORECASE
    )


def test_books_come_one_after_the_other() -> None:
    assert list(read_books()) == [line for name in BOOKS for line in read_books([name])]
    with pytest.raises(ArgumentError, match="book is 'emma'; wanted one of alice"):
        list(read_books(["emma"]))


def test_where_they_come_from_is_said() -> None:
    said = (FOLDER / "README.md").read_text() + (FILE.parent / "README.md").read_text()
    assert all(book.title in said and book.author in said for book in BOOKS.values())
    assert "World English Bible" in said
    assert "Reina-Valera" in said
