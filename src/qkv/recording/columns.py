"""Columns of text, for whatever a recording prints."""

from collections.abc import Container, Sequence

MOST = 40
"""Lines that are printed of a long table; the rest is counted."""


def columns(
    headings: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    right: Container[int] = (),
    most: int | None = None,
) -> str:
    """Return a table whose columns are aligned.

    Args:
        headings: of the columns.
        rows: one text a column.
        right: the columns that hold numbers, which are aligned to the right.
        most: rows that are printed; by default all.
    """
    shown = rows if most is None or len(rows) <= most else rows[:most]
    widths = [max(len(row[i]) for row in (headings, *shown)) for i in range(len(headings))]
    lines = []
    for row in (headings, *shown):
        cells = [
            cell.rjust(width) if i in right else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  " + "  ".join(cells).rstrip())
    if len(shown) < len(rows):
        lines.append(f"  … and {len(rows) - len(shown)} more")
    return "\n".join(lines)


def counted(number: int, noun: str) -> str:
    """Return "1 call", "2 calls", "1,000 calls"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
