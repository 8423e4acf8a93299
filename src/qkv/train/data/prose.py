"""Plain text, line by line, of files and of the books in the package."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from qkv.errors import ArgumentError, FileError
from qkv.train.data.books import BOOKS, read_books
from qkv.train.data.faults import Faults
from qkv.train.data.lines import LONGEST, decoded, opened
from qkv.train.data.parquet import read_parquet

ALL_BOOKS = "books"


def read_prose(path: str | Path) -> Iterator[str]:
    """Yield the lines of a text, which may be larger than memory.

    Each ends in "\\n" as in the file: joined they are the text. A line of more than 100,000 bytes
    comes in pieces, cut behind a space where there is one. Of Parquet each row is a text, and
    ends in "\\n" as well.

    Args:
        path: of UTF-8 text; or of Parquet, with a column of strings called text, or only one.

    Raises:
        FileError: the file cannot be read or holds no text; or, after all lines, some are bad:
            each is named by file and line, 20 at most.
        MissingPackageError: it is a Parquet file, and pyarrow is not installed.
    """
    path, some = Path(path), False
    faults = Faults(path)
    parquet = path.suffix.lower() == ".parquet"
    for piece in _texts(path) if parquet else _pieces(path, faults):
        some = some or bool(piece.strip())
        yield piece
    faults.refuse()
    if not some:
        raise FileError(f"{path} holds no text")


def prose_of(data: str) -> Iterator[str]:
    """Return the lines of what `--data` names: a book, "books", or a file.

    Raises:
        FileError: it is none of them, or as `read_prose` says.
        MissingPackageError: it is a Parquet file, and pyarrow is not installed.
    """
    names = sources([data])
    return read_books(names) if names[0] in BOOKS else read_prose(data)


def sources(data: Sequence[str]) -> list[str]:
    """Return the names of books and files that `--data` means, each book by its own name.

    Args:
        data: names of books, "books" for all of them, or files; none means all books.

    Raises:
        ArgumentError: one is there twice, as "alice" and "books" is: it would be read twice.
        FileError: one is neither a book nor a file.
    """
    names = [n for name in data or [ALL_BOOKS] for n in (BOOKS if name == ALL_BOOKS else [name])]
    for name in names:
        if name not in BOOKS and not Path(name).exists():
            known = ", ".join([ALL_BOOKS, *BOOKS])
            raise FileError(f"data is {name!r}; wanted {known}, or a file of text or .parquet")
    places = [BOOKS[name].path if name in BOOKS else Path(name).resolve() for name in names]
    if twice := [name for i, name in enumerate(names) if places[i] in places[:i]]:
        raise ArgumentError(f"data has {', '.join(twice)} twice; wanted each text once")
    return names


def _texts(path: Path) -> Iterator[str]:
    for _, (text,) in read_parquet(path, (("text",),)):
        yield f"{text}\n"


def _pieces(path: Path, faults: Faults) -> Iterator[str]:
    """Yield lines, and pieces of long ones; what begins a piece was left of the one before."""
    number, left = 1, b""
    with opened(path) as file:
        while line := left + file.readline(LONGEST - len(left)):
            left = b""
            if len(line) == LONGEST and not line.endswith(b"\n"):
                line, left = _cut(line)
            ended = line.endswith(b"\n")
            text = decoded(line[:-2] + b"\n" if line.endswith(b"\r\n") else line, number, faults)
            if text is not None:
                yield text
            number += ended


def _cut(line: bytes) -> tuple[bytes, bytes]:
    """Cut behind the last space; where there is none, between two characters."""
    place = line.rfind(b" ") + 1
    if not place:
        place = len(line) - 4
        while line[place] & 0xC0 == 0x80 and place < len(line) - 1:  # within a character of UTF-8
            place += 1
    return line[:place], line[place:]
