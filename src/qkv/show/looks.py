"""Where each word of a caption looked: the picture again and again, with the weights over it."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from qkv.show.svg import Canvas, cut
from qkv.weights.looks import Looks

SIZE, GAP, MARGIN = 84, 12, 24
"""Pixels of a picture's side, between two of them, and around the whole."""

TITLE, ROW = 76, 164
"""Pixels of the heading, and of a caption with its pictures."""

FAINT = 0.02
"""Of the largest weight of a word: what is less is not drawn."""

Matrix = Float[np.ndarray, "height width"]


class Pictures(Canvas):
    """A canvas on which the same picture stands many times."""

    def shade(self, x: float, y: float, width: float, height: float, opacity: float) -> str:
        """Return a box that lets through what lies below it."""
        at = f'x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}"'
        return f'<rect {at} fill-opacity="{opacity:.2g}"/>'

    def define(self, name: str, picture: Matrix) -> None:
        """Draw the ink of a picture, to be placed by its name."""
        self._drawn.append(f'<defs><g id="{name}" class="head">{self._cells(picture)}</g></defs>')

    def place(self, name: str, x: float, y: float) -> None:
        """Place a picture that was defined."""
        self.box(x, y, SIZE, SIZE, "frame", radius=2)
        self._drawn.append(f'<use href="#{name}" x="{x:g}" y="{y:g}"/>')

    def over(self, x: float, y: float, weights: Matrix) -> None:
        """Lay weights over a picture; the largest is the darkest."""
        most = float(weights.max())
        shares = weights / most if most > 0 else weights
        cells = self._cells(np.where(shares < FAINT, 0, 0.75 * shares))
        self._drawn.append(f'<g class="ink-cross" transform="translate({x:g} {y:g})">{cells}</g>')

    def _cells(self, values: Matrix) -> str:
        height, width = (SIZE / length for length in values.shape)
        return "".join(
            self.shade(column * width, row * height, width, height, values[row, column])
            for row, column in np.argwhere(values > 0)
        )


def svg(shown: Sequence[Looks], says: str = "") -> str:
    """Return an SVG document: a row a picture, a column a word.

    Args:
        shown: the pictures and what was written about them.
        says: whose weights they are, for the heading.
    """
    canvas = Pictures()
    columns = 1 + max((len(one.words) for one in shown), default=0)
    width = 2 * MARGIN + columns * (SIZE + GAP) - GAP
    canvas.text(MARGIN, MARGIN + 16, "Where each word looked", "title")
    canvas.text(MARGIN, MARGIN + 38, cut(_legend(says), width - 2 * MARGIN, 13), "line")
    for number, one in enumerate(shown):
        _row(canvas, one, f"picture-{number}", TITLE + number * ROW, width - 2 * MARGIN)
    description = "; ".join(one.caption for one in shown)
    return canvas.document(
        width, TITLE + len(shown) * ROW, "Where each word looked", f"Captions: {description}"
    )


def _legend(says: str) -> str:
    return f"{says or 'Weights of cross-attention'}; below each word the largest of its weights."


def _row(canvas: Pictures, one: Looks, name: str, y: float, room: float) -> None:
    """A caption, its picture, and the picture once more for every word."""
    wrong = one.truth is not None and one.truth != one.caption
    says = f"{one.caption} (wrong: it is {one.truth})" if wrong else one.caption
    canvas.text(MARGIN, y + 16, cut(says, room, 15), "name")
    canvas.define(name, one.picture)
    canvas.place(name, MARGIN, y + 28)
    for column, (word, weights) in enumerate(zip(one.words, one.maps, strict=True), start=1):
        x = MARGIN + column * (SIZE + GAP)
        canvas.place(name, x, y + 28)
        canvas.over(x, y + 28, weights)
        canvas.text(x + SIZE / 2, y + 28 + SIZE + 16, cut(word, SIZE, 12), "small")
        canvas.text(x + SIZE / 2, y + 28 + SIZE + 30, f"{weights.max():.2f}", "small")
