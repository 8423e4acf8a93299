"""Tables in plain text: one row a line, columns between bars, comments behind `#`."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

from qkv.disk import cannot_read
from qkv.errors import ArgumentError, FileError

T = TypeVar("T")


def read_rows(
    file: Path, columns: int, parse: Callable[[tuple[str, ...]], T], faults: list[str]
) -> list[T]:
    """Return what `parse` makes of every row, in the file's order.

    Args:
        file: UTF-8 text; empty lines and lines that begin with `#` are passed by.
        columns: cells that a row must have, each with something in it.
        parse: makes one thing of one row's cells; its ArgumentError is that line's fault.
        faults: takes one line, "file:line: what is wrong", for each row that is not returned.

    Raises:
        FileError: the file cannot be read, or is not UTF-8.
    """
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        at = file.read_bytes()[: error.start].count(b"\n") + 1
        raise FileError(f"{file}:{at}: byte {error.start} is not UTF-8 text") from error
    except OSError as error:
        raise cannot_read(file, error) from error
    found = []
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        try:
            found.append(parse(_cells(line, columns)))
        except ArgumentError as fault:
            faults.append(f"{file}:{number}: {fault}")
    return found


def _cells(line: str, columns: int) -> tuple[str, ...]:
    cells = tuple(cell.strip() for cell in line.split("|"))
    if len(cells) != columns:
        raise ArgumentError(f"{len(cells)} columns, wanted {columns} with | between them")
    if "" in cells:
        raise ArgumentError(
            f"column {cells.index('') + 1} is empty; where nothing is meant write -"
        )
    return cells


def refuse(faults: Iterable[str]) -> None:
    """Raise FileError with all the faults, one a line, if there are any."""
    if lines := list(faults):
        raise FileError("\n".join(lines))


def one_of(cell: str, *allowed: str, column: str) -> str:
    """Return the cell, or raise ArgumentError: it has none of the allowed values."""
    if cell not in allowed:
        raise ArgumentError(f"{column} is {cell!r}; wanted one of {', '.join(allowed)}")
    return cell


def unless_missing(cell: str) -> str | None:
    """Return the cell, None where it is `-`."""
    return None if cell == "-" else cell
