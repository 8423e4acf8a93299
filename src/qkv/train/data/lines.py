"""The lines of a text file, one after the other: it may be larger than memory."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from qkv.disk import cannot_read
from qkv.errors import FileError
from qkv.train.data.faults import Faults

LONGEST = 100_000
"""Bytes of a line."""
MARK = b"\xef\xbb\xbf"
"""With which some editors begin a file of UTF-8."""


def read_lines(path: Path, faults: Faults) -> Iterator[tuple[int, str]]:
    """Yield each line, without its end, and its number.

    Args:
        path: of UTF-8 text.
        faults: takes the lines that are not UTF-8, hold a zero byte or are too long; they are not
            yielded.

    Raises:
        FileError: the file cannot be read.
    """
    with opened(path) as file:
        for number, line in enumerate(iter(lambda: file.readline(LONGEST + 1), b""), start=1):
            if len(line) > LONGEST and not line.endswith(b"\n"):
                size = len(line) + _skip(file)
                faults.add(number, f"{size:,} bytes in one line; wanted at most {LONGEST:,}")
            elif (text := decoded(line.rstrip(b"\r\n"), number, faults)) is not None:
                yield number, text


def decoded(line: bytes, number: int, faults: Faults) -> str | None:
    """Return a line as text; None, and a fault more, where it is none."""
    if b"\0" in line:
        faults.add(number, f"byte {line.index(0) + 1} is zero: this is no text in UTF-8")
        return None
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        byte = f"byte {error.start + 1} is {line[error.start]:#04x}"
        faults.add(number, f"{byte}: this is no text in UTF-8")
        return None


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """Open a file behind the mark that it may begin with.

    Raises:
        FileError: it cannot be opened or read.
    """
    try:
        with path.open("rb") as file:
            if file.peek(len(MARK)).startswith(MARK):
                file.read(len(MARK))
            yield file
    except FileNotFoundError as error:
        raise FileError(f"{path} is not there") from error
    except FileError:
        raise
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the name
        raise cannot_read(path, error) from error


def _skip(file: BinaryIO) -> int:
    """Read to the end of a line; return how many bytes stood before it."""
    size = 0
    while part := file.readline(LONGEST):
        size += len(part.rstrip(b"\r\n"))
        if part.endswith(b"\n"):
            break
    return size
