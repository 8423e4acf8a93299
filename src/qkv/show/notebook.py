"""A Calculation in a notebook: plain tables, everything from outside escaped."""

from html import escape

from qkv.core.calculation import Calculation, Step
from qkv.show.paper import is_share, printed
from qkv.show.spelling import number

ROWS, COLUMNS = 24, 16
"""So much of a matrix is shown."""


def html(calculation: Calculation) -> str:
    """Return a fragment of HTML: a table a step, sections folded where there are several."""
    parts = [f"<p><strong>{escape(calculation.title)}</strong></p>"]
    section = ""
    for step in calculation:
        if step.section != section:
            parts.append("</details>" if section else "")
            section = step.section
            parts.append(f"<details open><summary>{escape(section)}</summary>" if section else "")
        parts.append(_table(step, calculation))
    parts.append("</details>" if section else "")
    return "".join(parts)


def _table(step: Step, calculation: Calculation) -> str:
    values, rows, columns, symbol = printed(step, calculation)
    shaded = is_share(step, calculation)
    head = "".join(f"<th>{escape(column)}</th>" for column in columns[:COLUMNS])
    body = "".join(
        f"<tr><th>{escape(label)}</th>" + "".join(_cell(x, shaded) for x in row[:COLUMNS]) + "</tr>"
        for label, row in zip(rows[:ROWS], values, strict=False)
    )
    note = ""
    if len(rows) > ROWS or len(columns) > COLUMNS:
        note = f"<p><em>the corner of {len(rows)} × {len(columns)}</em></p>"
    caption = f"<caption><b>{escape(step.short)}</b> {escape(symbol)}<br>{escape(step.says)}"
    return f"<table>{caption}</caption><tr><th></th>{head}</tr>{body}</table>{note}"


def _cell(x: float, shaded: bool) -> str:
    colour = f' style="background: rgba(255, 193, 7, {x:.2f})"' if shaded else ""
    return f"<td{colour}>{number(x)}</td>"
