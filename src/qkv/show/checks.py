"""What a workbook holds on opening: the value beside each formula, and how far it is from PyTorch.

The formulas say the same; a program that trusts stored values, or blocks a file from outside,
shows these.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import floor, log10

import numpy as np

from qkv.core import proof
from qkv.core.calculation import Calculation, Step
from qkv.core.operations import BLOCKED
from qkv.core.recompute import Array, rounded
from qkv.errors import ArgumentError, NameNotFoundError

LEAST = 1e-9
"""No tolerance is smaller: spreadsheets round near-zero differences in ways of their own."""


@dataclass(frozen=True, eq=False)
class Checks:
    """The numbers of a workbook.

    Attributes:
        values: the matrix of every step as the formulas compute it, in float64.
        distances: largest |row − PyTorch's row| of every row of every computed step.
        blank: names of the steps that are left for a person to fill.
        tolerances: the largest distance that counts as rounding, by step.
    """

    values: Mapping[str, Array]
    distances: Mapping[str, Array]
    blank: frozenset[str]
    tolerances: Mapping[str, float]

    def differing(self, steps: list[Step]) -> int:
        """How many rows of these steps differ; empty ones are counted by `empty`."""
        filled = [step.name for step in steps if not step.is_input and step.name not in self.blank]
        return sum(int((~(self.distances[name] <= self.tolerances[name])).sum()) for name in filled)

    def empty(self, steps: list[Step]) -> int:
        """How many rows of these steps are to be filled in."""
        return sum(len(step.value) for step in steps if step.name in self.blank)


def make(calculation: Calculation, blank: str | None, places: int) -> Checks:
    """Compute what the formulas compute; the steps to fill in count as 0 until filled.

    Raises:
        NameNotFoundError: `blank` names no step (lists those there are).
        ArgumentError: it names steps that are given.
    """
    names = blanks(calculation, blank)
    with np.errstate(all="ignore"):  # an empty divisor is an error in its cell, as in Excel
        values = proof.replay(
            calculation.steps, lambda step, x: np.zeros_like(x) if step.name in names else x
        )
        distances = {
            step.name: distance(values[step.name], step.value)
            for step in calculation
            if not step.is_input
        }
        allowed = tolerances(calculation, names, places)
    return Checks(values, distances, names, allowed)


def blanks(calculation: Calculation, blank: str | None) -> frozenset[str]:
    """Return the names of the steps that `blank` means: all that end in it."""
    if blank is None:
        return frozenset()
    meant = [step for step in calculation if f"/{step.name}".endswith(f"/{blank}")]
    computed = [step.name for step in calculation if not step.is_input]
    if blank and not meant:
        raise NameNotFoundError(
            f"blank is {blank!r}, but no step is named so; there are: {', '.join(computed)}"
        )
    given = [step.name for step in meant if step.is_input]
    if given or not blank:
        raise ArgumentError(
            f"blank is {blank!r}, which is given; wanted a computed step: {', '.join(computed)}"
        )
    return frozenset(step.name for step in meant)


def tolerances(calculation: Calculation, blank: frozenset[str], places: int) -> dict[str, float]:
    """Return what counts as rounding in each step: the module's own, or a person's with `places`.

    `Calculation.verify` allows the same, but for the last digit: these have one, rounded up.
    A step that is filled in by hand, and whatever follows from it, may be 10^-places away, and
    twice as far as correctly rounded numbers carry.
    """
    exact = proof.replay(calculation.steps)
    allowed = proof.tolerances(calculation, exact)
    if blank:
        typed = proof.replay(
            calculation.steps, lambda step, x: rounded(x, places) if step.name in blank else x
        )
        for name in _following(calculation, blank):
            drift = 2 * proof.difference(typed[name], exact[name])
            carried = drift if np.isfinite(drift) else 0.0
            allowed[name] = max(allowed[name], 10.0**-places, carried)
    return {name: _one_digit(max(LEAST, wanted)) for name, wanted in allowed.items()}


def distance(ours: Array, recorded: Array) -> Array:
    """Largest |a − b| of each row, as the formula of a check computes it."""
    open_ours, open_recorded = ours > BLOCKED, recorded > BLOCKED
    nan = np.isnan(ours) | np.isnan(recorded)
    a, b = np.where(open_ours, ours, 0.0), np.where(open_recorded, recorded, 0.0)
    apart = np.abs(a - b) + (open_ours != open_recorded)
    largest: Array = np.where(nan, np.nan, apart).max(axis=1)
    return largest


def blocks(step: Step) -> bool:
    """Whether −∞ occurs in a step."""
    return bool((step.value <= BLOCKED).any())


def _following(calculation: Calculation, blank: frozenset[str]) -> set[str]:
    """The steps to fill in, and all that are computed from them."""
    found = set(blank)
    for step in calculation:
        if not found.isdisjoint(step.operands):
            found.add(step.name)
    return found


def _one_digit(number: float) -> float:
    """A positive number rounded up to its first digit, as a cell shows it."""
    power = floor(log10(number))
    return float(f"{np.ceil(round(number / 10.0**power, 9)):.0f}e{power}")
