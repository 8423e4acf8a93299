"""A matrix of weights as a picture in the terminal: a colour a cell, two rows a character.

`▀` has two colours, its own above and the background's below, so a character shows two cells one
above the other. Where there are no colours, shades take their place, a row a line.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from rich.cells import cell_len
from rich.color import Color
from rich.console import Group
from rich.style import Style
from rich.text import Text

from qkv.core.recompute import Array
from qkv.show.labels import fitted, letters

BLOCK = "▀"
SHADES = " ░▒▓█"
ASCII = " .:-=+*#%@"
"""What stands for the shades where an encoding has none of them."""

RAMP = ((68, 1, 84), (59, 82, 139), (33, 145, 140), (94, 201, 98), (253, 231, 37))
"""Red, green and blue from the smallest to the largest: viridis, which grows evenly brighter."""

LABEL = 14
"""Columns of a row's name at most."""
CELL = 6
"""Columns of a cell at most."""
READABLE = 4
"""Columns that a name needs to be read from left to right; in fewer it stands upright."""
UPRIGHT = 8
"""Letters of a name that stands upright."""
ALONE = 32
"""So many rows have a line each; of more, two share one, in colours."""
STEPS = 5
"""Numbers in the legend."""


@dataclass(frozen=True)
class Ink:
    """What the terminal draws with.

    Attributes:
        colours: whether it has any.
        letters: whether its encoding has half blocks and shades.
    """

    colours: bool
    letters: bool = True

    @property
    def shades(self) -> str:
        """Characters from light to dark, for what has no colours."""
        return SHADES if self.letters else ASCII

    @property
    def pairs(self) -> bool:
        """Whether a character shows two rows."""
        return self.colours and self.letters


def room(queries: int, keys: int, width: int, ink: Ink) -> tuple[int, int]:
    """Return how many rows and columns of a matrix fit."""
    return min(queries, ALONE * (2 if ink.pairs else 1)), min(keys, max(1, width - LABEL - 2))


def drawn(
    values: Array, rows: Sequence[str], columns: Sequence[str], width: int, ink: Ink
) -> Group:
    """Return the picture with names of rows and columns, and its legend.

    Args:
        values: (rows, columns), 0 or more; not more than `room` says.
        rows, columns: names, one for each; empty where there is none.
        width: columns of the terminal.
        ink: what it draws with.
    """
    values = np.nan_to_num(values, nan=0.0, posinf=0.0, neginf=0.0)
    peak = float(values.max(initial=0.0))
    # √: half the brightness is a quarter of the weight, so that small weights are seen
    level = np.sqrt(values / peak) if peak > 0 else values
    label = min(LABEL, max((cell_len(fitted(name, cell_len(name))) for name in rows), default=0))
    cell = max(1, min(CELL, (width - label - 2) // max(1, len(columns))))
    lines = [*_header(columns, label, cell), *_body(level, rows, label, cell, ink)]
    return Group(*lines, Text(), _legend(peak, ink))


def _header(columns: Sequence[str], label: int, cell: int) -> Iterator[Text]:
    """The names of the columns: side by side where they can be read, else from the top down."""
    margin = " " * (label + 1)
    if not any(columns):
        return
    if cell >= READABLE:
        yield Text(margin + "".join(f"{fitted(name, cell - 1)} " for name in columns), "dim")
        return
    short = [letters(name, UPRIGHT) for name in columns]
    height = max(map(len, short))
    for line in range(height):
        letter = (name.rjust(height)[line] for name in short)
        yield Text(margin + "".join(c.ljust(cell) for c in letter), "dim")


def _body(level: Array, rows: Sequence[str], label: int, cell: int, ink: Ink) -> Iterator[Text]:
    together = 2 if ink.pairs and len(rows) > ALONE else 1
    for top in range(0, len(rows), together):
        line = Text(f"{fitted(rows[top], label)} ")
        upper = level[top]
        lower: Array | None = level[top]
        if together == 2:
            lower = level[top + 1] if top + 1 < len(rows) else None
        for j, x in enumerate(upper):
            y = None if lower is None else float(lower[j])
            line.append_text(_cell(float(x), y, cell, ink))
        yield line


def _cell(upper: float, lower: float | None, width: int, ink: Ink) -> Text:
    if not ink.pairs:
        shade = ink.shades[int(upper * (len(ink.shades) - 1) + 0.5)]
        return Text(shade * width)
    below = None if lower is None else _colour(lower)
    return Text(BLOCK * width, Style(color=_colour(upper), bgcolor=below))


def _colour(level: float) -> Color:
    """Between the two colours of the ramp that are nearest."""
    at = min(max(level, 0.0), 1.0) * (len(RAMP) - 1)
    low, high = list(pairwise(RAMP))[min(int(at), len(RAMP) - 2)]
    part = at - min(int(at), len(RAMP) - 2)
    red, green, blue = (a + (b - a) * part for a, b in zip(low, high, strict=True))
    return Color.from_rgb(round(red), round(green), round(blue))


def _legend(peak: float, ink: Ink) -> Text:
    line = Text()
    for step in range(STEPS):
        level = step / (STEPS - 1)
        line.append_text(_cell(level, level, 2, ink)).append(f" {peak * level**2:.2f}   ", "dim")
    line.rstrip()
    return line
