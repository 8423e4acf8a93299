"""Two columns of a file, row by row: text with tabs, CSV or Parquet."""

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from qkv.errors import FileError
from qkv.train.data.faults import Faults
from qkv.train.data.lines import LONGEST, read_lines
from qkv.train.data.parquet import read_parquet

Row = tuple[str, str]
SUFFIXES = ".tsv or .txt (a tab between the columns), .csv or .parquet"


@dataclass(frozen=True)
class Columns:
    """What the two columns of a file may be called, and what a row of them makes.

    Attributes:
        first, second: names, in small letters; the first of them is the one that is told.
        rows: what the rows are called in messages: "pairs".
    """

    first: tuple[str, ...]
    second: tuple[str, ...]
    rows: str

    @property
    def names(self) -> Row:
        """What the columns are called in messages."""
        return self.first[0], self.second[0]

    def places(self, cells: Sequence[str]) -> tuple[int, int] | None:
        """Return where a header has the columns; None where it is no header."""
        names = [cell.strip().casefold() for cell in cells]
        found = [
            [place for place, name in enumerate(names) if name in known]
            for known in (self.first, self.second)
        ]
        return (found[0][0], found[1][0]) if [len(places) for places in found] == [1, 1] else None


def read_columns(path: Path, columns: Columns) -> Iterator[tuple[int, Row]]:
    """Yield the rows of a file, neither cell of which is empty, and where each begins.

    That is its line; of Parquet, which row it is, from 1.

    A first row that names both columns is a header: it may have them in any order, and others
    beside them. Without one there are two columns, and the first comes first.

    Raises:
        FileError: the file cannot be read or holds no rows; or, after all rows, some were bad:
            each is named by file and line, 20 at most.
    """
    faults, some = Faults(path), False
    for number, cells in _rows(path, columns, faults):
        if wrong := _wrong(cells, columns):
            faults.add(number, wrong)
        else:
            some = True
            yield number, cells
    faults.refuse()
    if not some:
        raise FileError(f"{path} holds no {columns.rows}")


def _wrong(cells: Row, columns: Columns) -> str:
    """Return what is wrong with a row; "" where nothing is."""
    for name, cell in zip(columns.names, cells, strict=True):
        if not cell:
            return f"the {name} is empty"
        if len(cell) > LONGEST:
            return f"the {name} has {len(cell):,} characters; wanted at most {LONGEST:,}"
    return ""


def _rows(path: Path, columns: Columns, faults: Faults) -> Iterator[tuple[int, Row]]:
    suffix = path.suffix.lower()
    if suffix == ".parquet":
        for number, (first, second) in read_parquet(path, (columns.first, columns.second)):
            yield number, (first.strip(), second.strip())
        return
    if suffix not in (".tsv", ".txt", ".csv"):
        raise FileError(f"{path} ends in {suffix or 'nothing'!r}; wanted {SUFFIXES}")
    lines, is_csv = read_lines(path, faults), suffix == ".csv"
    table = _csv(lines, faults) if is_csv else _tabs(lines)
    yield from _columns(table, columns, faults, "a comma" if is_csv else "a tab")


def _columns(
    table: Iterator[tuple[int, list[str]]], columns: Columns, faults: Faults, between: str
) -> Iterator[tuple[int, Row]]:
    """Take the two columns out of each row."""
    places, width, begun = (0, 1), 2, False
    for number, cells in table:
        header = None if begun else columns.places(cells)
        begun = True
        if header:
            places, width = header, len(cells)
        elif len(cells) != width:
            wanted = f"wanted {width} with {between} between them"
            names = f", or a first line that names them: {', '.join(columns.names)}"
            more = names if len(cells) > width == 2 else ""
            faults.add(number, f"{len(cells)} column{'s' * (len(cells) > 1)}, {wanted}{more}")
        else:
            yield number, (cells[places[0]].strip(), cells[places[1]].strip())


def _tabs(lines: Iterator[tuple[int, str]]) -> Iterator[tuple[int, list[str]]]:
    for number, line in lines:
        if line.strip():
            yield number, line.split("\t")


def _csv(lines: Iterator[tuple[int, str]], faults: Faults) -> Iterator[tuple[int, list[str]]]:
    """Yield the rows of CSV; a quoted cell may run over several lines, and counts by its first."""
    begun = list[int]()  # the numbers of the lines of a row

    def texts() -> Iterator[str]:
        for number, line in lines:
            begun.append(number)
            yield f"{line}\n"

    reader = csv.reader(texts(), strict=True)
    while True:
        begun.clear()
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            faults.add(
                begun[0], f"{error}; wanted CSV, where a quotation mark in a cell is doubled"
            )
            continue
        if any(cell.strip() for cell in cells):
            yield begun[0], cells
