"""Where every number of a calculation stands in a workbook: pure geometry, nothing is written."""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

from xlsxwriter.utility import xl_col_to_name

from qkv.core.calculation import Calculation, Step
from qkv.core.operations import Operation
from qkv.errors import ArgumentError
from qkv.show.paper import printed_transposed

LEFT = 2
"""First column of values: A holds the labels of the rows, B their checks."""

CHECK = 1
"""The column of checks."""

HEAD = 3
"""Rows above the first block: title, state of the checks, an empty one."""

TITLE, LABELS = 2, 1
"""So many rows above its first value stand a block's title and the labels of its columns."""

ROWS = 128
"""Tokens at most in a computed matrix: beyond, nobody reads a worksheet."""

CELLS, SECTION_CELLS = 20_000, 250_000
"""Computed cells at most in a workbook of several sections, and in one of a single section."""

COLUMNS = 16_384 - LEFT
"""Columns that a worksheet has beside the labels and the checks."""

WINDOW = "(in the command: --tokens 10:40)"
"""How fewer tokens are chosen."""

letters: Callable[[int], str] = cache(xl_col_to_name)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a matrix stands; cells are asked for by the matrix's own rows and columns.

    Attributes:
        sheet: name of its worksheet.
        top: worksheet row of its first values, counted from 0.
        rows, columns: shape of the matrix, however it is printed.
        transposed: whether it is printed transposed.
        nonzero: whether it is a constant other than 0, so that dividing by it needs no guard.
        blank: whether its cells are left for a person to fill.
        prefix: what stands before an address: "" on its own sheet, "'head 1'!" on another.
    """

    sheet: str
    top: int
    rows: int
    columns: int
    transposed: bool = False
    nonzero: bool = False
    blank: bool = False
    prefix: str = ""

    @property
    def height(self) -> int:
        """Rows as printed."""
        return self.columns if self.transposed else self.rows

    @property
    def width(self) -> int:
        """Columns as printed."""
        return self.rows if self.transposed else self.columns

    def seen_from(self, sheet: str) -> "Place":
        """Return the place as the cells of a worksheet address it."""
        return replace(self, prefix="" if sheet == self.sheet else quoted(self.sheet))

    def cell(self, row: int, column: int) -> str:
        """Address of an entry; an axis of size 1 serves every index (broadcast)."""
        row = row if self.rows > 1 else 0
        column = column if self.columns > 1 else 0
        return self.prefix + self._address(row, column)

    def row(self, row: int) -> str:
        """Range of a whole row of the matrix."""
        return self._range(row, 0, row, self.columns - 1)

    def column(self, column: int) -> str:
        """Range of a whole column of the matrix."""
        return self._range(0, column, self.rows - 1, column)

    def whole(self) -> str:
        """Range of the whole matrix, as printed, without the sheet."""
        first, last = self._address(0, 0), self._address(self.rows - 1, self.columns - 1)
        return f"{first}:{last}"

    @property
    def checks(self) -> str:
        """Range of the checks of a computed step, one a row."""
        return f"B{self.top + 1}:B{self.top + self.rows}"

    @property
    def allowed(self) -> str:
        """The cell above the checks: how far a row may be from PyTorch's."""
        return f"B{self.top - LABELS + 1}"

    @property
    def differing(self) -> str:
        """The cell in the title of a computed step: how many rows differ from PyTorch's."""
        return f"B{self.top - TITLE + 1}"

    def _range(self, row: int, column: int, last_row: int, last_column: int) -> str:
        first, last = self._address(row, column), self._address(last_row, last_column)
        return f"{self.prefix}{first}:{last}"

    def _address(self, row: int, column: int) -> str:
        if self.transposed:
            row, column = column, row
        return f"{letters(LEFT + column)}{self.top + row + 1}"


@dataclass(frozen=True, slots=True)
class Sheet:
    """One worksheet and its twin of PyTorch's values.

    Attributes:
        name, twin: names of the two worksheets; at most 31 characters, legal, unique.
        title: the section.
        blocks: the steps from top to bottom, and where each stands.
    """

    name: str
    twin: str
    title: str
    blocks: tuple[tuple[Step, Place], ...]

    @property
    def last(self) -> int:
        """Last worksheet row that holds a value, counted from 0."""
        return max(place.top + place.height for _, place in self.blocks) - 1


def quoted(sheet: str) -> str:
    """Return what stands before the address of a cell on another sheet."""
    return f"'{sheet.replace(chr(39), chr(39) * 2)}'!"


def lay_out(calculation: Calculation, blank: frozenset[str] = frozenset()) -> tuple[Sheet, ...]:
    """Give every section a sheet and every step a place on it.

    Raises:
        ArgumentError: the calculation is too large for a workbook; says what to leave out.
    """
    _check_sizes(calculation)
    sections: dict[str, list[Step]] = {}
    for step in calculation:
        sections.setdefault(step.section, []).append(step)
    transposed = printed_transposed(calculation)
    taken = {"about", "history"}  # Excel keeps the second for itself
    sheets = []
    for section, steps in sections.items():
        name = _legal(section or "calculation", taken)
        places = _stack(steps, name, transposed, blank)
        twin = _legal(f"PyTorch {name}", taken)
        sheets.append(Sheet(name, twin, section or calculation.title, places))
    return tuple(sheets)


def addresses(sheets: tuple[Sheet, ...]) -> dict[str, Place]:
    """Return the place of every step by its name."""
    return {step.name: place for sheet in sheets for step, place in sheet.blocks}


def _stack(
    steps: list[Step], sheet: str, transposed: frozenset[str], blank: frozenset[str]
) -> tuple[tuple[Step, Place], ...]:
    blocks, top = [], HEAD
    for step in steps:
        rows, columns = step.value.shape
        place = Place(
            sheet, top + TITLE, rows, columns, transposed=step.name in transposed,
            nonzero=step.operation is Operation.CONSTANT and bool(step.value.all()),
            blank=step.name in blank,
        )  # fmt: skip
        blocks.append((step, place))
        top = place.top + place.height + 1
    return tuple(blocks)


def _legal(name: str, taken: set[str]) -> str:
    """Make a name a worksheet may bear, and remember it."""
    bare = re.sub(r"[\[\]:*?/\\\x00-\x1f]", " ", name).strip(" '") or "section"
    legal, number = bare[:31], 1
    while legal.casefold() in taken:
        number += 1
        legal = f"{bare[: 31 - len(f' {number}')]} {number}"
    taken.add(legal.casefold())
    return legal


def _check_sizes(calculation: Calculation) -> None:
    computed = [step for step in calculation if not step.is_input]
    for step in computed:
        if len(step.value) > ROWS and step.operation is not Operation.TRANSPOSE:
            raise ArgumentError(
                f"{step.name} has {len(step.value)} rows; a workbook takes {ROWS} tokens at "
                f"most: choose fewer tokens {WINDOW}"
            )
    for step in calculation:
        if step.value.shape[1] > COLUMNS:
            raise ArgumentError(
                f"{step.name} has {step.value.shape[1]:,} columns; a worksheet has room for "
                f"{COLUMNS:,}"
            )
    cells = sum(step.value.size for step in computed)
    sections = list(dict.fromkeys(step.section for step in computed))
    if len(sections) > 1 and cells > CELLS:
        one = next(section for section in sections if section)
        raise ArgumentError(
            f"the workbook would hold {cells:,} computed cells; with several sections it takes "
            f"{CELLS:,} at most: write one section, c[{one!r}].to_excel(…), or choose fewer "
            f"tokens {WINDOW}"
        )
    if cells > SECTION_CELLS:
        raise ArgumentError(
            f"the workbook would hold {cells:,} computed cells; it takes {SECTION_CELLS:,} at "
            f"most: choose fewer tokens {WINDOW}"
        )
