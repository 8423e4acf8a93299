"""An alignment as a picture: words of the source across, those of the translation down; as SVG."""

from collections.abc import Sequence

import numpy as np

from qkv.core.recompute import Array
from qkv.show.svg import Canvas, cut, wide

CELL, MARGIN, HEAD = 46, 24, 86
"""Pixels of a cell's side, around the whole, and of the heading."""

LABEL, SIZE = 150, 15
"""Pixels that a word takes at most, and the height of its letters."""

FAINT = 0.005
"""What is less is not drawn."""


STYLES = (
    "<style>.share, .dark { font-size: 12px; text-anchor: middle; }"
    ".dark { font-weight: 700; }</style>"
)


class Grid(Canvas):
    """A canvas with cells that are the darker, the more they hold."""

    def __init__(self) -> None:
        """Start with the styles of the numbers in the cells."""
        super().__init__()
        self._drawn.append(STYLES)

    def share(self, x: float, y: float, share: float) -> None:
        """Draw a cell for a number from 0 to 1, and the number where there is something to it."""
        self.box(x, y, CELL - 2, CELL - 2, "frame", radius=3)
        if share < FAINT:
            return
        at = f'x="{x:g}" y="{y:g}" width="{CELL - 2}" height="{CELL - 2}" rx="3"'
        self._drawn.append(f'<rect class="ink-cross" {at} fill-opacity="{0.85 * share:.3f}"/>')
        said = f"{share:.2f}".removeprefix("0")
        self.text(x + CELL / 2 - 1, y + CELL / 2 + 4, said, "share" if share < 0.5 else "dark")

    def slanting(self, x: float, y: float, content: str) -> None:
        """Write text upwards to the right."""
        self._drawn.append(f'<g transform="translate({x:g} {y:g}) rotate(-45)">')
        self.text(0, 0, content, "name")
        self._drawn.append("</g>")


def svg(
    weights: Array, source: Sequence[str], written: Sequence[str], *, title: str, says: str = ""
) -> str:
    """Return an SVG document.

    Args:
        weights: written × source; each row sums to 1.
        source, written: the words.
        title: who translated.
        says: a line below it.
    """
    canvas = Grid()
    names = [cut(word, LABEL, SIZE) for word in written]
    above = [cut(word, LABEL, SIZE) for word in source]
    left = MARGIN + max((wide(name, SIZE, bold=True) for name in names), default=0) + 10
    longest = max((wide(word, SIZE, bold=True) for word in above), default=0)
    slope = longest / 2**0.5
    top = HEAD + slope
    width = max(left + CELL * len(source) + slope, wide(title, 24, bold=True) + 2 * MARGIN) + MARGIN
    canvas.text(MARGIN, MARGIN + 18, cut(title, width - 2 * MARGIN, 24), "title")
    canvas.text(MARGIN, MARGIN + 40, cut(says, width - 2 * MARGIN, 13), "line")
    for column, word in enumerate(above):
        canvas.slanting(left + CELL * (column + 0.5), top - 8, word)
    for row, word in enumerate(names):
        canvas.text(MARGIN, top + CELL * (row + 0.5) + 5, word, "name")
    for (row, column), share in np.ndenumerate(weights):
        canvas.share(left + CELL * column, top + CELL * row, float(share))
    height = top + CELL * len(written) + MARGIN
    return canvas.document(width, height, title, _described(weights, source, written))


def _described(weights: Array, source: Sequence[str], written: Sequence[str]) -> str:
    """Say of each word which one it looked at most."""
    most = zip(written, np.argmax(weights, axis=1) if len(written) else (), strict=True)
    return "; ".join(f"{word} looks at {source[column]}" for word, column in most)
