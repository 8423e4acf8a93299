"""Books in the public domain; where they come from says books/README.md."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from qkv.errors import ArgumentError

FOLDER = Path(__file__).parent / "books"


@dataclass(frozen=True)
class Book:
    """A book of the package."""

    title: str
    author: str
    file: str

    @property
    def path(self) -> Path:
        """Where it lies."""
        return FOLDER / self.file


BOOKS: Mapping[str, Book] = {
    "alice": Book("Alice's Adventures in Wonderland", "Lewis Carroll", "alice.txt"),
    "as-you-like-it": Book("As You Like It", "William Shakespeare", "as-you-like-it.txt"),
    "paradise-lost": Book("Paradise Lost", "John Milton", "paradise-lost.txt"),
}


def read_books(names: Iterable[str] = tuple(BOOKS)) -> Iterator[str]:
    """Yield the lines of books, one book after the other; each ends in "\\n".

    Args:
        names: of the books; all of them, 730 kB, unless said.

    Raises:
        ArgumentError: there is no such book.
    """
    for name in names:
        if name not in BOOKS:
            raise ArgumentError(f"book is {name!r}; wanted one of {', '.join(BOOKS)}")
        with BOOKS[name].path.open(encoding="utf-8") as file:
            yield from file
