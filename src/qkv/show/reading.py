"""Reads the inputs and constants back from a workbook of ours, as a person has changed them."""

from collections.abc import Mapping
from dataclasses import dataclass
from io import BytesIO
from os import PathLike
from pathlib import Path
from typing import Any
from zipfile import BadZipFile
from zlib import error as ZlibError

import numpy as np
from openpyxl import load_workbook
from openpyxl.utils import get_column_letter
from openpyxl.utils.cell import range_boundaries

from qkv.core.operations import BLOCKED
from qkv.core.recompute import Array
from qkv.disk import cannot_read
from qkv.errors import FileError
from qkv.show.about import CONSTANT, TABLE, TRANSPOSED
from qkv.show.sheets import LABELS

Rows = list[tuple[Any, ...]]

UNREADABLE = (BadZipFile, ZlibError, EOFError, KeyError, ValueError, SyntaxError)
"""What a broken archive, a missing part or broken XML raises while it is read."""


@dataclass(frozen=True, eq=False)
class Inputs:
    """What a workbook gives, by the name of the step: "encodings", "WQ", "head 2/WK", "mask".

    Attributes:
        values: the matrices as a Calculation holds them (weights out × in), −∞ where blocked.
        rows: the labels of their rows; those of the encodings are the tokens.
        constants: the numbers that follow from the sizes or the recipe: "√d_k", "head 1/scale".
    """

    values: Mapping[str, Array]
    rows: Mapping[str, tuple[str, ...]]
    constants: Mapping[str, float]


def read_inputs(path: str | PathLike[str]) -> Inputs:
    """Read every given matrix and constant of a workbook of ours, whoever saved it since.

    Raises:
        FileError: it cannot be read, is no workbook of ours, or a cell holds no number.
    """
    source = Path(path)
    try:
        table, contents = _contents(source)
    except UNREADABLE as error:
        raise FileError(f"{source} is not a workbook (.xlsx) that can be read") from error
    values, rows, constants = {}, {}, {}
    for name, sheet, cells, printed in table:
        value, down, across = _matrix(source, name, sheet, contents[sheet], cells)
        if printed == CONSTANT:
            constants[name] = float(value[0, 0])
        else:
            turned = printed == TRANSPOSED
            values[name], rows[name] = (value.T, across) if turned else (value, down)
    return Inputs(values, rows, constants)


def _contents(source: Path) -> tuple[list[tuple[str, str, str, str]], dict[str, Rows]]:
    """Return the table of inputs, and the rows of every sheet that it names."""
    try:
        data = source.read_bytes()
    except OSError as error:
        raise cannot_read(source, error) from error
    book = load_workbook(BytesIO(data), read_only=True, data_only=True)
    try:
        table = _table(source, _rows(book, source, "about"))
        return table, {name: _rows(book, source, name) for name in {entry[1] for entry in table}}
    finally:
        book.close()


def _rows(book: Any, source: Path, sheet: str) -> Rows:
    if sheet not in book.sheetnames:
        raise FileError(
            f"{source} has no sheet {sheet!r}, so it is no workbook of ours, or its sheet was "
            f"renamed; it has: {', '.join(book.sheetnames)}"
        )
    page = book[sheet]
    page.reset_dimensions()  # what a program wrote as the extent is not always the extent
    return [tuple(row) for row in page.iter_rows(values_only=True)]


def _table(source: Path, rows: Rows) -> list[tuple[str, str, str, str]]:
    """Return name, sheet, range and way of printing of every input."""
    header = [i for i, row in enumerate(rows) if row[: len(TABLE)] == TABLE]
    if not header:
        raise FileError(
            f"{source} has no table of inputs on its sheet 'about'; wanted a workbook that "
            f"`qkv explain --excel` wrote"
        )
    entries = []
    for row in rows[header[0] + 1 :]:
        if not row or row[0] is None:
            break
        name, sheet, cells, printed = (str(text) for text in row[:4])
        entries.append((name, sheet, cells, printed))
    return entries


def _matrix(
    source: Path, name: str, sheet: str, rows: Rows, cells: str
) -> tuple[Array, tuple[str, ...], tuple[str, ...]]:
    left, top, right, bottom = _bounds(source, name, cells)
    value = np.empty((bottom - top + 1, right - left + 1))
    for i in range(top, bottom + 1):
        for j in range(left, right + 1):
            got = _cell(rows, i, j)
            if isinstance(got, bool) or not isinstance(got, int | float):
                where = f"{get_column_letter(j)}{i} of sheet {sheet!r}"
                what = "is empty" if got is None else f"holds {got!r}"
                raise FileError(f"{source}: {where} ({name}) {what}; wanted a number")
            value[i - top, j - left] = -np.inf if got <= BLOCKED else got
    down = tuple(_text(_cell(rows, i, 1)) for i in range(top, bottom + 1))
    across = tuple(_text(_cell(rows, top - LABELS, j)) for j in range(left, right + 1))
    return value, down, across


def _bounds(source: Path, name: str, cells: str) -> tuple[int, int, int, int]:
    try:
        left, top, right, bottom = range_boundaries(cells)
        if None not in (left, top, right, bottom):
            return left, top, right, bottom
    except ValueError:
        pass
    raise FileError(f"{source}: the range of {name} is {cells!r}; wanted one like C6:D8")


def _cell(rows: Rows, row: int, column: int) -> Any:
    """Return the cell of a row and column counted from 1; None beyond what is filled."""
    if row > len(rows) or column > len(rows[row - 1]):
        return None
    return rows[row - 1][column - 1]


def _text(label: Any) -> str:
    return "" if label is None else str(label)
