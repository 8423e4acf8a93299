"""Texts from outside: given as arguments, in a file or on stdin; and how they are printed."""

import sys
import unicodedata
from collections.abc import Sequence
from pathlib import Path

from qkv.disk import cannot_read
from qkv.errors import ArgumentError, FileError

STDIN = "-"


def given(texts: Sequence[str], name: str) -> list[str]:
    """Return the texts; "-" is all that stdin holds, without the end of its last line.

    Args:
        texts: as they stand in the command.
        name: what they are called there.

    Raises:
        ArgumentError: none, an empty one, or "-" twice.
        FileError: stdin holds no text.
    """
    if not texts:
        raise ArgumentError(f"{name} is missing; wanted a text, or - to read it from stdin")
    if list(texts).count(STDIN) > 1:
        raise ArgumentError(f"{name} is - more than once; stdin can be read once only")
    read = [_ended(from_stdin()) if text == STDIN else text for text in texts]
    for number, text in enumerate(read, start=1):
        if not text.strip():
            which = f"{name} {number}" if len(read) > 1 else name
            raise ArgumentError(f"{which} is {text[:40]!r}; wanted a text")
    return read


def lines_of(path: Path) -> list[str]:
    """Return the lines of a file, or of stdin where its name is "-"; blank ones are left out.

    Raises:
        ArgumentError: there is no line that is not blank.
        FileError: it cannot be read, or is not UTF-8.
    """
    text = from_stdin() if str(path) == STDIN else from_file(path)
    found = [line.strip() for line in text.split("\n") if line.strip()]
    if not found:
        raise ArgumentError(f"file is {str(path)!r}, which holds no text; wanted a text a line")
    return found


def from_file(path: Path) -> str:
    """Return what a file of UTF-8 holds."""
    try:
        content = path.read_bytes()
    except FileNotFoundError as error:
        raise FileError(f"{path} is not there; wanted a file of text") from error
    except (OSError, ValueError) as error:
        raise cannot_read(path, error) from error
    return _decoded(content, str(path))


def from_stdin() -> str:
    """Return what stdin holds."""
    if sys.stdin is None:
        raise FileError("stdin is closed: there is nothing to read from it")
    try:
        return _decoded(sys.stdin.buffer.read(), "stdin")
    except OSError as error:
        if isinstance(error, FileError):
            raise
        raise cannot_read("stdin", error) from error


def _decoded(content: bytes, name: str) -> str:
    try:
        return content.decode("utf-8-sig")  # Notepad writes a mark
    except UnicodeDecodeError as error:
        raise FileError(
            f"{name} is no text in UTF-8: byte {error.start} is {content[error.start]:#04x}"
        ) from error


def _ended(text: str) -> str:
    return text.removesuffix("\n").removesuffix("\r")


def legible(text: str) -> str:
    """Return a text that may have several lines, without what a terminal would obey.

    Unlike `printable` it leaves what joins or separates letters: some scripts need it.
    """
    return "".join(c if c in "\n\t" or unicodedata.category(c) not in HIDDEN else "�" for c in text)


HIDDEN = ("Cc", "Cs")
"""Control characters, and halves of characters."""
