"""A Calculation as a workbook that recalculates itself: every number a live formula.

A sheet says what this is, one sheet a section holds the steps, and a twin of each holds what
PyTorch recorded, at the same addresses. `reading` reads the inputs back.
"""

from dataclasses import dataclass, replace
from io import BytesIO
from math import isfinite, isnan
from os import PathLike
from pathlib import Path

import numpy as np
from xlsxwriter import Workbook
from xlsxwriter.worksheet import Worksheet

from qkv.core.calculation import Calculation, Step
from qkv.core.operations import BLOCKED, Operation
from qkv.core.recompute import Array
from qkv.disk import write_whole
from qkv.errors import ArgumentError
from qkv.show import about, checks, formulas, styles
from qkv.show.paper import is_share, printed
from qkv.show.sheets import (
    CHECK,
    HEAD,
    LABELS,
    LEFT,
    TITLE,
    Place,
    Sheet,
    addresses,
    lay_out,
    letters,
    quoted,
)
from qkv.show.styles import Pair
from qkv.show.text import cleaned, width

BAND = 10
"""A block's title band covers at least so many columns of values, room for its sentence."""

OPTIONS = {
    "in_memory": True,
    "strings_to_formulas": False,
    "strings_to_urls": False,
    "strings_to_numbers": False,
    "nan_inf_to_errors": True,
}


SCALE = {
    "type": "3_color_scale",  # a fair share of many tokens is small, and still to be seen
    "min_type": "num", "min_value": 0, "min_color": styles.PAPER,
    "mid_type": "num", "mid_value": 0.25, "mid_color": styles.SHARE_LIGHT,
    "max_type": "num", "max_value": 1, "max_color": styles.SHARE,
}  # fmt: skip


def write(
    calculation: Calculation,
    path: str | PathLike[str],
    *,
    minus_infinity: float = -1e30,
    blank: str | None = None,
    places: int = 4,
) -> None:
    """Write a workbook that recalculates itself.

    Args:
        calculation: what is written.
        path: the file; its name ends in .xlsx. It is replaced in one go, or left alone.
        minus_infinity: what stands for −∞, which worksheets don't have.
        blank: last part of a step's name; all steps that end in it are left for a person to
            fill in, and their checks turn green when they are right.
        places: decimal places shown, and wanted of what is filled in.

    Raises:
        ArgumentError: too large for a workbook, or an option that cannot be meant.
        NameNotFoundError: `blank` names no step.
        FileError: the file cannot be written.
    """
    target = Path(path)
    _check_options(target, minus_infinity, places)
    write_whole(target, contents(calculation, minus_infinity, blank, places))


def contents(
    calculation: Calculation,
    minus_infinity: float = -1e30,
    blank: str | None = None,
    decimals: int = 4,
) -> bytes:
    """Return the workbook as the bytes of its file."""
    checked = checks.make(calculation, blank, decimals)
    sheets = lay_out(calculation, checked.blank)
    stream = BytesIO()
    book = Workbook(stream, OPTIONS)
    book.set_properties({"title": cleaned(calculation.title, 255), "comments": about.WHAT})
    book.set_calc_mode("auto")
    style = styles.make(book, decimals)
    front = book.add_worksheet("about")
    pen = Pen(calculation, checked, style, addresses(sheets), minus_infinity, decimals)
    pages = [(book.add_worksheet(sheet.name), sheet) for sheet in sheets]
    twins = [(book.add_worksheet(sheet.twin), sheet) for sheet in sheets]
    about.write(book, front, calculation, sheets, checked, style)
    for page, sheet in pages:
        pen.sheet(page, sheet)
    for page, sheet in twins:
        pen.twin(page, sheet)
    book.close()
    return stream.getvalue()


@dataclass(frozen=True, eq=False)
class Pen:
    """Writes blocks: what every sheet of one workbook shares."""

    calculation: Calculation
    checked: checks.Checks
    style: styles.Styles
    at: dict[str, Place]
    minus_infinity: float
    decimals: int

    def sheet(self, page: Worksheet, sheet: Sheet) -> None:
        """Write the steps of a section: inputs as numbers, everything else as formulas."""
        self._page(page, sheet, sheet.title, styles.SHARE if _given_only(sheet) else styles.TITLE)
        page.write_string(1, 0, "rows that differ", self.style.note)
        differing = self.checked.differing([step for step, _ in sheet.blocks])
        page.write_formula(1, CHECK, about.differing_on(sheet), self.style.count, differing)
        for step, place in sheet.blocks:
            self._title(page, step, place)
            if step.is_input:
                self._inputs(page, step, place)
            else:
                self._computed(page, step, place)
                self._checks(page, step, place, sheet)
            if is_share(step, self.calculation):
                page.conditional_format(place.whole(), SCALE)

    def twin(self, page: Worksheet, sheet: Sheet) -> None:
        """Write what PyTorch recorded of a section's computed steps, at the same addresses."""
        self._page(page, sheet, f"PyTorch: {sheet.title}", styles.FAINT)
        page.write_string(1, 0, "what PyTorch computed; the checks compare", self.style.note)
        for step, place in sheet.blocks:
            if step.is_input:
                page.write_string(place.top - TITLE, 0, cleaned(step.short), self.style.label)
                page.write_string(place.top - TITLE, LEFT, "not computed", self.style.note)
            else:
                self._title(page, step, place)
                self._numbers(page, place, self._finite(step.value), self.style.recorded)
        if self.checked.blank:
            page.hide()  # it holds what a person is to find out

    def _page(self, page: Worksheet, sheet: Sheet, title: str, colour: str) -> None:
        page.write_string(0, 0, cleaned(title), self.style.heading)
        page.set_row(0, 28)
        page.hide_gridlines(2)
        page.freeze_panes(2, LEFT)
        page.set_tab_color(colour)
        blocks = [printed(step, self.calculation) for step, _ in sheet.blocks]
        rows = [label for block in blocks for label in block.rows]
        names = [step.short for step, _ in sheet.blocks]
        page.set_column(0, 0, width([*rows, *names], least=14, most=32))
        page.set_column(CHECK, CHECK, 9)
        last = LEFT + max(BAND, *(place.width for _, place in sheet.blocks)) - 1
        page.set_column(LEFT, last, self._number_width(sheet))
        values = f"{letters(LEFT)}{HEAD + 1}:{letters(last)}{sheet.last + 1}"
        page.conditional_format(values, self._blocked)
        everything = f"A1:{letters(last)}{sheet.last + 1}"
        page.ignore_errors({"number_stored_as_text": everything, "formula_range": everything})
        about.set_up_print(page, self.calculation.title)
        page.repeat_rows(0, 1)

    @property
    def _blocked(self) -> dict[str, object]:
        return {"type": "cell", "criteria": "<=", "value": BLOCKED, "format": self.style.blocked}

    def _number_width(self, sheet: Sheet) -> int:
        finite = [np.abs(s.value[np.isfinite(s.value)]).max(initial=0) for s, _ in sheet.blocks]
        largest = max((x for x in finite if x < -BLOCKED), default=0.0)
        labels = [c for s, _ in sheet.blocks for c in printed(s, self.calculation).columns]
        least = len(f"-{largest:.{self.decimals}f}") + 2
        return width(labels, least=min(24, max(9, least)), most=24)

    def _title(self, page: Worksheet, step: Step, place: Place) -> None:
        style, row = self.style, place.top - TITLE
        block = printed(step, self.calculation)
        page.set_row(row, 20)
        page.write_string(row, 0, cleaned(step.short), style.band)
        for column in range(CHECK, LEFT + max(BAND, place.width)):
            page.write_blank(row, column, None, style.band)
        parts = [style.symbol, cleaned(block.symbol)] if block.symbol else []
        parts += [style.says, f"   {cleaned(step.says)}"] if step.says else []
        if len(parts) > 2:
            page.write_rich_string(row, LEFT, *parts, style.band)
        elif parts:
            page.write_string(row, LEFT, parts[1], style.band)
        if step.operation is Operation.CONSTANT:
            return  # one number: its title says it all
        for column, label in enumerate(block.columns, LEFT):
            page.write_string(place.top - LABELS, column, cleaned(label), style.column)
        for i, label in enumerate(block.rows, place.top):
            page.write_string(i, 0, cleaned(label), style.label)

    def _inputs(self, page: Worksheet, step: Step, place: Place) -> None:
        given = step.operation is Operation.GIVEN
        style = self.style.given if given else self.style.constant
        value = self._finite(printed(step, self.calculation).values)
        self._numbers(page, place, value, style)

    def _numbers(self, page: Worksheet, place: Place, value: Array, look: Pair) -> None:
        for i, row in enumerate(value.tolist(), place.top):
            for j, number in enumerate(row, LEFT):
                page.write_number(i, j, number, look[number <= BLOCKED])

    def _computed(self, page: Worksheet, step: Step, place: Place) -> None:
        operands = [self.at[operand].seen_from(place.sheet) for operand in step.operands]
        value, look = self._finite(self.checked.values[step.name]).tolist(), self.style.computed
        for i, numbers in enumerate(value):
            row = place.top + i
            for j, number in enumerate(numbers):
                if place.blank:
                    page.write_blank(row, LEFT + j, None, self.style.fill)
                    continue
                formula = formulas.formula(step, operands, i, j)
                page.write_formula(row, LEFT + j, formula, look[number <= BLOCKED], stored(number))

    def _checks(self, page: Worksheet, step: Step, place: Place, sheet: Sheet) -> None:
        """Write how far each row is from PyTorch's, above it how far it may be, and the count."""
        most, off = self.checked.tolerances[step.name], self.checked.differing([step])
        allowed = f"=MAX({most:.0E},tolerance)"
        page.write_formula(place.allowed, allowed, self.style.most, most)
        page.write_formula(place.differing, about.differing(place), self.style.off, off)
        recorded = replace(place, sheet=sheet.twin, prefix=quoted(sheet.twin))
        blocked = checks.blocks(step)
        for i, distance in enumerate(self.checked.distances[step.name].tolist()):
            formula = formulas.check(place, recorded, i, blocks=blocked)
            shown = formulas.FILL_IN if place.blank else stored(distance)
            page.write_formula(place.top + i, CHECK, formula, self.style.check, shown)
        about.colour_checks(page, self.style, place)

    def _finite(self, value: Array) -> Array:
        return np.where(value == -np.inf, self.minus_infinity, value)


def stored(number: float) -> float | str:
    """Return what is stored beside a formula; a cell knows no NaN and no ∞, only errors."""
    if isfinite(number):
        return number
    return "#NUM!" if isnan(number) else "#DIV/0!"


def _given_only(sheet: Sheet) -> bool:
    return all(step.is_input for step, _ in sheet.blocks)


def _check_options(target: Path, minus_infinity: float, places: int) -> None:
    if target.suffix.lower() != ".xlsx":
        raise ArgumentError(f"path is {str(target)!r}; wanted a name that ends in .xlsx")
    if not -1e300 <= minus_infinity <= 100 * BLOCKED:
        raise ArgumentError(
            f"minus_infinity is {minus_infinity:g}; wanted -1e300 to {100 * BLOCKED:g}, as in "
            f"-1e30: far below any similarity, also after it was divided"
        )
    if not 0 <= places <= 12:
        raise ArgumentError(f"places is {places}; wanted 0 to 12 decimal places")
