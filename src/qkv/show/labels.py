"""Names from outside beside a drawing: one line, so many columns, nothing that a terminal obeys."""

from rich.cells import cell_len, set_cell_size


def legible(name: str) -> str:
    """Return a name in one line."""
    return "".join(c if c.isprintable() else "�" for c in name)


def fitted(name: str, width: int) -> str:
    """Return a name that takes exactly `width` columns: cut where it is longer."""
    line = legible(name)
    if cell_len(line) > width:
        line = f"{set_cell_size(line, max(0, width - 1))}…"
    return set_cell_size(line, width)


def letters(name: str, most: int) -> str:
    """Return the first letters of a name that take one column each."""
    return "".join(c for c in legible(name) if cell_len(c) == 1)[:most]
