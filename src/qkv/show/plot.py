"""A Calculation as one figure: every step a labelled heat map (needs the extra `plot`)."""

from typing import TYPE_CHECKING, Any

import numpy as np

from qkv.core.calculation import Calculation, Step
from qkv.core.operations import BLOCKED
from qkv.errors import MissingPackageError
from qkv.show.paper import is_share, printed
from qkv.show.spelling import number

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ACROSS = 4
"""Heat maps side by side."""

LABELLED = 24
"""Axes up to this long carry their labels, grids up to a third of it their numbers."""


def figure(calculation: Calculation) -> "Figure":
    """Return a figure of every step that has more than one number.

    Raises:
        MissingPackageError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingPackageError(
            "plot needs matplotlib, which is not installed: pip install 'qkv[plot]'"
        ) from error
    steps = [step for step in calculation if step.value.size > 1]
    down = -(-len(steps) // ACROSS)
    drawn = Figure(figsize=(4 * ACROSS, 3.4 * down), layout="constrained")
    drawn.suptitle(_literal(calculation.title))
    for place, step in enumerate(steps, start=1):
        _draw(drawn.add_subplot(down, ACROSS, place), step, calculation)
    return drawn


def _draw(axes: Any, step: Step, calculation: Calculation) -> None:
    values, rows, columns, symbol = printed(step, calculation)
    limits = {"vmin": 0.0, "vmax": 1.0} if is_share(step, calculation) else {}
    axes.set_facecolor("lightgray")
    axes.imshow(np.ma.masked_less_equal(values, BLOCKED), cmap="cividis", aspect="auto", **limits)
    heading = step.name if symbol == step.short else f"{step.name}\n{symbol}"
    axes.set_title(_literal(heading), fontsize=9)
    for axis, labels in ((axes.xaxis, columns), (axes.yaxis, rows)):
        if len(labels) <= LABELLED:
            axis.set_ticks(range(len(labels)), [_literal(label) for label in labels], fontsize=7)
    if max(values.shape) <= LABELLED // 3:
        middle = np.median(values[values > BLOCKED]) if (values > BLOCKED).any() else 0.0
        for (i, j), x in np.ndenumerate(values):
            colour = "black" if x > middle or x <= BLOCKED else "white"
            axes.text(j, i, number(x, 2), ha="center", va="center", fontsize=7, color=colour)


def _literal(text: str) -> str:
    """Keep matplotlib from reading mathematics between dollar signs."""
    return text.replace("$", r"\$")
