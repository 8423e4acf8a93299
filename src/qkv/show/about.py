"""The first sheet of a workbook: what it is, whether it agrees, and where the inputs stand."""

from xlsxwriter import Workbook
from xlsxwriter.format import Format
from xlsxwriter.worksheet import Worksheet

from qkv.core.calculation import Calculation, Step
from qkv.core.operations import Operation
from qkv.show.checks import LEAST, Checks
from qkv.show.formulas import FILL_IN
from qkv.show.sheets import HEAD, Place, Sheet, quoted
from qkv.show.styles import Styles
from qkv.show.text import cleaned

WHAT = (
    "Every number that is computed here is a formula over the cells before it. "
    "Change an input and everything follows."
)

LINES = (
    WHAT,
    "Column B says how far each row is from PyTorch's, and above that how far it may be:",
    "green within, red where a change of yours goes beyond. The last sheets hold PyTorch's.",
)

TABLE = ("name", "sheet", "range", "printed", "what it is")
"""Header of the table of inputs and constants, by which a reader knows a workbook of ours."""

LINE = 15
"""Height of a line of text, in points."""

TRANSPOSED = "transposed"
"""How the table marks a matrix that is printed transposed."""

CONSTANT = "constant"
"""How it marks a constant."""


def differing(place: Place) -> str:
    """Return the formula that counts the rows of a step that differ from PyTorch's."""
    checks = place.checks
    return f'=COUNTIF({checks},">"&{place.allowed})+SUMPRODUCT(1*ISERROR({checks}))'


def differing_on(sheet: Sheet) -> str:
    """Return the formula that counts the rows that differ on a whole sheet."""
    counts = [place.differing for step, place in sheet.blocks if not step.is_input]
    return f"={'+'.join(counts) or '0'}"


def write(
    book: Workbook,
    page: Worksheet,
    calculation: Calculation,
    sheets: tuple[Sheet, ...],
    checked: Checks,
    style: Styles,
) -> None:
    """Write the sheet, and define the name `tolerance`, below which no step's own lies."""
    page.hide_gridlines(2)
    page.set_tab_color("#12572A")
    for column, size in enumerate((24, 20, 20, 12, 56)):
        page.set_column(column, column, size)
    page.set_row(0, 32)
    page.write_string(0, 0, cleaned(calculation.title), style.heading)
    for row, line in enumerate(LINES, 1):
        page.write_string(row, 0, line, style.note)
    row = _state(book, page, len(LINES) + 2, calculation, sheets, checked, style)
    row = _legend(page, row + 1, checked, style)
    row = _sheets(page, row + 1, sheets, checked, style)
    _inputs(page, row + 1, sheets, style)
    set_up_print(page, calculation.title)


def colour_checks(page: Worksheet, style: Styles, place: Place) -> None:
    """Colour checks: green within the tolerance, red beyond or in error, violet to fill in."""
    cells, most = place.checks, place.allowed.replace("B", "$B$")
    first = cells.partition(":")[0]
    rules = (
        (f"=IF(ISNUMBER({first}),{first}<={most},FALSE)", style.good),
        (f"=IF(ISNUMBER({first}),{first}>{most},ISERROR({first}))", style.bad),
        (f'=IF(ISTEXT({first}),{first}="{FILL_IN}",FALSE)', style.waiting),
    )
    for criteria, look in rules:
        rule = {"type": "formula", "criteria": criteria, "format": look}
        page.conditional_format(cells, rule)


def set_up_print(page: Worksheet, title: str) -> None:
    """Landscape, one page wide, title and page number below."""
    page.set_landscape()
    page.set_paper(9)
    page.fit_to_pages(1, 0)
    page.set_margins(left=0.4, right=0.4, top=0.5, bottom=0.6)
    page.set_footer(f"&L{cleaned(title, 80).replace('&', '&&')}&C&A&R&P / &N")


def _state(
    book: Workbook,
    page: Worksheet,
    row: int,
    calculation: Calculation,
    sheets: tuple[Sheet, ...],
    checked: Checks,
    style: Styles,
) -> int:
    steps = list(calculation)
    differ = checked.differing(steps)
    total = "+".join(f"{quoted(sheet.name)}B2" for sheet in sheets)
    page.write_string(row, 0, "rows that differ", style.strong)
    page.write_formula(row, 1, f"={total}", style.count, differ)
    here = f"B{row + 1}"
    says = f'=IF({here}=0,"every row agrees with PyTorch","of {_rows(steps)} rows")'
    shown = f"of {_rows(steps)} rows" if differ else "every row agrees with PyTorch"
    _verdict(page, here, style)
    empty = checked.empty(steps)
    if empty:
        waiting = "+".join(f'COUNTIF({_checks(sheet)},"{FILL_IN}")' for sheet in sheets)
        row += 1
        page.write_string(row, 0, "rows to fill in", style.strong)
        page.write_formula(row, 1, f"={waiting}", style.count, empty)
        says = f'=IF(B{row + 1}>0,"fill in the violet cells",{says[1:]})'
        shown = "fill in the violet cells"
    page.write_formula(row - bool(empty), 2, says, style.strong, shown)
    row += 1
    page.write_string(row, 0, "least tolerance", style.strong)
    page.write_number(row, 1, LEAST, style.tolerance)
    says = "  every step has its own, above its checks; raise this one to allow more everywhere"
    page.write_string(row, 2, says, style.note)
    book.define_name("tolerance", f"=about!$B${row + 1}")
    return row + 1


def _verdict(page: Worksheet, cell: str, style: Styles) -> None:
    green = {"type": "formula", "criteria": f"=IF(ISNUMBER({cell}),{cell}=0,FALSE)"}
    page.conditional_format(cell, green | {"format": style.good})
    red = {"type": "formula", "criteria": f"=IF(ISNUMBER({cell}),{cell}>0,TRUE)"}
    page.conditional_format(cell, red | {"format": style.bad})


def _legend(page: Worksheet, row: int, checked: Checks, style: Styles) -> int:
    page.write_string(row, 0, "the cells", style.band)
    for column in range(1, len(TABLE)):
        page.write_blank(row, column, None, style.band)
    entries: list[tuple[Format, float | None, str]] = [
        (style.given[0], 1.16, "an input: may be changed, everything follows"),
        (style.constant[0], 1.4142, "a constant: follows from the sizes or the recipe"),
        (style.computed[0], 0.7621, "a formula over the cells before it"),
        (style.recorded[0], 0.7621, "what PyTorch computed, on the last sheets"),
    ]
    if checked.blank:
        entries.append((style.fill, None, "to fill in; its check turns green when it is right"))
    for look, sample, says in entries:
        row += 1
        page.write(row, 0, sample, look)
        page.write_string(row, 1, f"  {says}", style.note)
    return row + 1


def _sheets(
    page: Worksheet, row: int, sheets: tuple[Sheet, ...], checked: Checks, style: Styles
) -> int:
    _header(page, row, ("the sheets", "rows that differ", "PyTorch's values", "steps", ""), style)
    first = row + 2
    for sheet in sheets:
        row += 1
        steps = [step for step, _ in sheet.blocks]
        _link(page, row, 0, sheet.name, style)
        differ = checked.differing(steps)
        page.write_formula(row, 1, f"={quoted(sheet.name)}B2", style.count, differ)
        if checked.blank:
            page.write_string(row, 2, "hidden", style.note)
        else:
            _link(page, row, 2, sheet.twin, style)
        page.write_number(row, 3, len(steps), style.count)
        names = cleaned(", ".join(step.short for step in steps))
        page.set_row(row, LINE * (1 + len(names) // 60))
        page.write_string(row, 4, names, style.text)
    for line in range(first, row + 2):
        _verdict(page, f"B{line}", style)
    return row + 2


def _inputs(page: Worksheet, row: int, sheets: tuple[Sheet, ...], style: Styles) -> None:
    page.write_string(row, 0, "the inputs and constants, by which they are read back", style.strong)
    row += 1
    _header(page, row, TABLE, style)
    given = [
        (step, place, sheet) for sheet in sheets for step, place in sheet.blocks if step.is_input
    ]
    for step, place, sheet in given:
        row += 1
        _input(page, row, step, place, sheet, style)


def _input(
    page: Worksheet, row: int, step: Step, place: Place, sheet: Sheet, style: Styles
) -> None:
    page.write_string(row, 0, cleaned(step.name), style.strong)
    _link(page, row, 1, sheet.name, style)
    page.write_string(row, 2, place.whole(), style.note)
    printed = TRANSPOSED if place.transposed else "as it is"
    printed = CONSTANT if step.operation is Operation.CONSTANT else printed
    page.write_string(row, 3, printed, style.note)
    page.write_string(row, 4, cleaned(step.says), style.note)


def _header(page: Worksheet, row: int, names: tuple[str, ...], style: Styles) -> None:
    for column, name in enumerate(names):
        page.write_string(row, column, name, style.band)


def _link(page: Worksheet, row: int, column: int, sheet: str, style: Styles) -> None:
    page.write_url(row, column, f"internal:{quoted(sheet)}A1", style.link, string=sheet)


def _checks(sheet: Sheet) -> str:
    return f"{quoted(sheet.name)}B{HEAD + 1}:B{sheet.last + 1}"


def _rows(steps: list[Step]) -> int:
    return sum(len(step.value) for step in steps if not step.is_input)
