"""Rows of numbers as points with names, in the plane in which they lie farthest apart; as SVG."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from qkv.core.recompute import Array
from qkv.errors import ArgumentError
from qkv.show.svg import LINE, NAME, Canvas, wide

WIDTH, HEIGHT, MARGIN, HEAD = 1200, 900, 70, 100
"""The picture, its margins, and what is left free above for the title, in pixels."""

DOT, GAP = 3.0, 6.0
"""Radius of a point, and how far its name stands from it."""


class Plane(NamedTuple):
    """Points in two dimensions.

    Attributes:
        points: where each row lies.
        shares: of the rows' variance, along the first axis and along the second.
    """

    points: Array
    shares: tuple[float, float]


class Box(NamedTuple):
    """The room that a name or a point takes."""

    left: float
    top: float
    right: float
    bottom: float

    def meets(self, other: "Box") -> bool:
        """Whether two of them overlap."""
        apart = self.right <= other.left or other.right <= self.left
        return not (apart or self.bottom <= other.top or other.bottom <= self.top)


def plane(rows: Array) -> Plane:
    """Principal components      Pearson 1901

        X − mean = U S Vᵀ,  points = (U S) of the two largest singular values

    An axis may be turned round; its largest coordinate is positive here.

    Args:
        rows: one a point, three or more, of two numbers or more.

    Raises:
        ArgumentError: too few rows or columns, or numbers that are not finite.
    """
    if rows.ndim != 2 or rows.shape[0] < 3 or rows.shape[1] < 2:
        raise ArgumentError(f"rows are {rows.shape}; wanted 3 rows or more, of 2 numbers or more")
    if not np.isfinite(rows).all():
        raise ArgumentError("rows hold numbers that are not finite")
    U, S, _ = np.linalg.svd(rows - rows.mean(axis=0), full_matrices=False)
    points = U[:, :2] * S[:2]
    largest = points[np.abs(points).argmax(axis=0), [0, 1]]
    points = points * np.where(largest < 0, -1.0, 1.0)
    variance = (S**2).sum()
    first, second = (S[:2] ** 2 / variance).tolist() if variance > 0 else (0.0, 0.0)
    return Plane(points, (first, second))


def svg(rows: Array, names: Sequence[str], title: str) -> str:
    """Return a picture of rows as points; a name that would cover another is left out.

    Args:
        rows: one a point.
        names: of the rows, the most important first.
        title: what they are.

    Raises:
        ArgumentError: names that are not one a row, or rows that make no picture.
    """
    if len(names) != len(rows):
        raise ArgumentError(f"there are {len(names)} names for {len(rows)} rows; wanted as many")
    points, shares = plane(rows)
    at = _on_paper(points)
    labels = _labels(at, names)
    canvas = Canvas()
    for (x, y), label in zip(at, labels, strict=True):
        style = "rule" if label is None else "ink-self"
        canvas.box(x - DOT, y - DOT, 2 * DOT, 2 * DOT, style, radius=int(DOT))
    for name, label in zip(names, labels, strict=True):
        if label is not None:
            canvas.text(label.left, label.bottom - 3, name, "line")
    canvas.text(MARGIN, 40, title, "title")
    across, up = (f"{share:.0%}" for share in shares)
    said = f"{len(rows)} points; {across} of their variance across, {up} upwards"
    canvas.text(MARGIN, 40 + NAME + 8, said, "line")
    return canvas.document(WIDTH, HEIGHT, title, f"{said}. Names: {', '.join(names)}.")


def _on_paper(points: Array) -> list[tuple[float, float]]:
    """Fit points into the picture, both axes to one scale, so that distances stay true."""
    low, high = points.min(axis=0), points.max(axis=0)
    room = np.array([WIDTH - 2 * MARGIN, HEIGHT - HEAD - MARGIN])
    scale = float((room / np.maximum(high - low, 1e-12)).min())
    x, y = (scale * (points - (low + high) / 2)).T
    across, down = WIDTH / 2 + x, HEAD + room[1] / 2 - y
    return list(zip(across.tolist(), down.tolist(), strict=True))


def _labels(at: Sequence[tuple[float, float]], names: Sequence[str]) -> list[Box | None]:
    """Find a place beside each point for its name, the first names first; None where none is."""
    dots = [Box(x - DOT, y - DOT, x + DOT, y + DOT) for x, y in at]
    taken: list[Box] = []
    found: list[Box | None] = []
    for i, ((x, y), name) in enumerate(zip(at, names, strict=True)):
        others = [dot for j, dot in enumerate(dots) if j != i]
        free = (
            box for box in _places(x, y, wide(name, LINE))
            if not any(box.meets(other) for other in (*taken, *others)) and _inside(box)
        )  # fmt: skip
        box = next(free, None)
        found.append(box)
        taken += [] if box is None else [box]
    return found


def _places(x: float, y: float, width: float) -> list[Box]:
    """Right of a point, left of it, above, below."""
    half, high = width / 2, LINE + 2
    return [
        Box(x + GAP, y - high / 2, x + GAP + width, y + high / 2),
        Box(x - GAP - width, y - high / 2, x - GAP, y + high / 2),
        Box(x - half, y - GAP - high, x + half, y - GAP),
        Box(x - half, y + GAP, x + half, y + GAP + high),
    ]


def _inside(box: Box) -> bool:
    return box.left >= 0 and box.right <= WIDTH and box.top >= HEAD - GAP and box.bottom <= HEIGHT
