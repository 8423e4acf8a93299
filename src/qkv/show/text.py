"""Text from outside, made fit for a worksheet's cell; always a string, never a formula."""

from collections.abc import Iterable

LONGEST = 32_767
"""Characters that a cell takes."""


def cleaned(text: str, longest: int = LONGEST) -> str:
    """Return text that every program opens: no lone surrogates, and not too long."""
    text = text.encode("utf-8", "replace").decode()
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def width(labels: Iterable[str], *, least: int, most: int) -> int:
    """Return the width of a column that shows these labels."""
    return min(most, max([least, *(len(label) + 2 for label in labels)]))
