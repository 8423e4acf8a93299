"""A Calculation in the terminal: every step a labelled matrix, its equation above it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import StringIO

from rich.cells import cell_len, set_cell_size
from rich.console import Console, Group, RenderableType
from rich.text import Text

from qkv.core.calculation import Calculation, Step
from qkv.core.operations import BLOCKED, Operation
from qkv.core.recompute import Array
from qkv.show.paper import is_share, printed
from qkv.show.spelling import number, spelled

LABEL = 14
"""Widest label of a row; a longer token is cut."""

FOLDED = 60
"""With more steps than this only the first section of each shape is printed in full."""


Part = tuple[str, tuple[str, ...], Sequence[tuple[str, ...]]]
"""A heading, the names of the columns, and the rows."""


@dataclass(frozen=True)
class Window:
    """How much of a matrix is printed.

    Attributes:
        width: characters a line.
        rows: rows of a matrix at most.
        places: decimal places.
    """

    width: int = 100
    rows: int = 16
    places: int = 4


def text(calculation: Calculation, window: Window | None = None) -> str:
    """Return a Calculation as plain text."""
    window = window or Window()
    console = Console(file=StringIO(), width=window.width, color_system=None)
    with console.capture() as capture:
        console.print(rendered(calculation, window), soft_wrap=True)
    return capture.get().rstrip("\n")


def rendered(calculation: Calculation, window: Window) -> Group:
    """Return what rich prints: the title, then section after section, step after step."""
    parts: list[RenderableType] = [Text(calculation.title, style="bold")]
    parts.append(Text("═" * cell_len(calculation.title)))
    folded = _folded(calculation)
    section = ""
    for step in calculation:
        if step.section != section:
            section = step.section
            parts.append(_section_line(section, folded.get(section), window))
        if section in folded:
            continue
        parts.extend(_step(step, calculation, window))
    return Group(*parts)


def matrix(
    values: Array,
    rows: tuple[str, ...],
    columns: tuple[str, ...],
    window: Window,
    *,
    name: str = "",
    shaded: bool = False,
) -> Group:
    """Return one labelled matrix; of a large one its corner, and where the rest of `name` is."""
    label = min(LABEL, max((cell_len(row) for row in rows), default=0))
    shown = values[: window.rows]
    places = 0 if _whole(values) else window.places
    cells = [[number(x, places) for x in row] for row in shown]
    widest = max((len(cell) for row in cells for cell in row), default=1)
    width = max(widest, min(LABEL, max((cell_len(c) for c in columns), default=1)))
    fit = max(1, min(len(columns), (window.width - label - 2) // (width + 2)))
    lines = [Text(" " * label + "".join(_padded(c, width) for c in columns[:fit]), style="dim")]
    for token, row, texts in zip(rows, shown, cells, strict=False):
        line = Text(_cut(token, label))
        for x, cell in zip(row[:fit], texts, strict=False):
            line.append(_padded(cell, width), style=_style(x, shaded))
        lines.append(line)
    if len(shown) < len(values) or fit < len(columns):
        lines.append(Text(_left_out(len(shown), fit, values, name), style="italic dim"))
    return Group(*lines)


def table(title: str, parts: Sequence[Part], note: str) -> Group:
    """Return tables of texts, each with a heading."""
    lines: list[RenderableType] = [Text(title, style="bold"), Text("═" * cell_len(title))]
    for heading, columns, rows in parts:
        lines.append(Text(f"\n{heading}", style="bold cyan"))
        widths = [max(cell_len(row[i]) for row in (columns, *rows)) for i in range(len(columns))]
        for row in (columns, *rows):
            cells = [_cut(cell, width) for cell, width in zip(row, widths, strict=True)]
            lines.append(Text("  ".join(cells).rstrip(), style="dim" if row is columns else ""))
    lines.append(Text(f"\n{note}"))
    return Group(*lines)


def _step(step: Step, calculation: Calculation, window: Window) -> Iterator[RenderableType]:
    if step.operation is Operation.CONSTANT:
        value = number(step.value[0, 0], 0 if _whole(step.value) else window.places)
        if value != step.symbol:
            yield Text(f"\n{step.symbol} = {value}   {step.says}".rstrip())
        return
    values, rows, columns, symbol = printed(step, calculation)
    heading = Text("\n").append(step.short, style="bold cyan")
    heading.append(f"   {symbol}" if symbol != step.short else "", style="bold")
    heading.append("   given" if step.is_input else "", style="green")
    yield heading
    if step.says:
        yield Text(step.says, style="dim")
    shaded = is_share(step, calculation)
    yield matrix(values, rows, columns, window, name=step.name, shaded=shaded)
    working = spelled(step, calculation)
    if working:
        yield Text(f"first number: {working}", style="dim")


def _section_line(section: str, example: str | None, window: Window) -> Text:
    note = f" (the same steps as {example}; print it with c[{section!r}])" if example else ""
    line = f"── {section}{note} "
    return Text("\n" + line + "─" * max(0, window.width - cell_len(line)), style="bold magenta")


def _folded(calculation: Calculation) -> dict[str, str]:
    """Sections not printed in full, and the one of the same shape that is."""
    if len(calculation) <= FOLDED:
        return {}
    first: dict[tuple[object, ...], str] = {}
    folded = {}
    for section in calculation.sections:
        steps = [step for step in calculation if step.section == section]
        shape = tuple((step.short, step.operation, step.value.shape) for step in steps)
        if first.setdefault(shape, section) != section:
            folded[section] = first[shape]
    return folded


def _whole(values: Array) -> bool:
    finite = values[values > BLOCKED]
    return bool((finite == finite.round()).all())


def _left_out(rows: int, columns: int, values: Array, name: str) -> str:
    down, across = values.shape
    corner = f"… the corner of {down} × {across}: {rows} rows, {columns} columns"
    if not name:
        return corner
    return f"{corner}; all of it: c[{name!r}], --json, or the workbook if it fits"


def _style(x: float, shaded: bool) -> str:
    if x <= BLOCKED:
        return "dim"
    if not shaded:
        return ""
    return "bold yellow" if x >= 0.5 else "yellow" if x >= 0.2 else "dim" if x < 0.02 else ""


def _padded(content: str, width: int) -> str:
    content = _cut(content, min(width, cell_len(content)))
    return " " * (width + 2 - cell_len(content)) + content


def _cut(content: str, width: int) -> str:
    plain = "".join(c if c.isprintable() else "�" for c in content)
    if cell_len(plain) > width:
        plain = set_cell_size(plain, width - 1) + "…"
    return set_cell_size(plain, width)
