"""Proof of a Calculation: recomputed by NumPy, and redone by hand with rounding."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from qkv.core.operations import BLOCKED, Operation
from qkv.core.recompute import Array, recompute, rounded
from qkv.errors import ArgumentError, VerificationError

if TYPE_CHECKING:
    from qkv.core.calculation import Calculation, Step


@dataclass(frozen=True, eq=False)
class Verification:
    """What the recomputation found.

    Attributes:
        worst: name of the step that used most of its tolerance.
        difference: largest |recorded − recomputed| in that step.
        tolerance: what that step was allowed.
        fused: largest |observed − recomputed| over the results of the real path; None where
            none was recorded.
        recomputed: the float64 matrix of every step, by name.
    """

    worst: str
    difference: float
    tolerance: float
    fused: float | None
    recomputed: Mapping[str, Array]

    def __str__(self) -> str:
        lines = [
            f"recorded against NumPy in float64: {self.difference:.1e} apart in the worst step, "
            f"{self.worst} ({self.tolerance:.1e} is allowed)"
        ]
        if self.fused is not None:
            lines.append(f"PyTorch's fused output against NumPy: at most {self.fused:.1e} apart")
        return "\n".join(lines)


@dataclass(frozen=True, eq=False)
class ByHand:
    """A calculation redone with rounding.

    Attributes:
        calculation: the rounded steps.
        places: decimal places kept of every number.
        drift: largest distance of the rounded result from the recorded one.
    """

    calculation: "Calculation"
    places: int
    drift: float

    def __str__(self) -> str:
        return f"by hand with {self.places} places: the result drifts by at most {self.drift:.1e}"


def replay(
    steps: Sequence["Step"], after: Callable[["Step", Array], Array] = lambda _, value: value
) -> dict[str, Array]:
    """Recompute every step from the given matrices alone; `after` sees each result."""
    values: dict[str, Array] = {}
    for step in steps:
        value = step.value
        if not step.is_input:
            operands = [values[operand] for operand in step.operands]
            value = recompute(step.operation, operands, step.selection)
        values[step.name] = after(step, value)
    return values


def verify(calculation: "Calculation", tolerance: float | None) -> Verification:
    """Compare every recorded and observed value with its recomputation, or raise."""
    recomputed = replay(calculation.steps)
    allowed = tolerances(calculation, recomputed)
    if tolerance is not None:
        allowed = dict.fromkeys(allowed, tolerance)
    differences = {
        step.name: difference(step.value, recomputed[step.name]) for step in calculation.steps
    }
    worst = max(differences, key=lambda name: _share(differences[name], allowed[name]))
    _confirm("recorded", worst, differences[worst], allowed[worst])
    fused = None
    for name, value in calculation.observed.items():
        distance = difference(value, recomputed[name])
        _confirm("fused", name, distance, allowed[name])
        fused = max(distance, fused or 0.0)
    return Verification(worst, differences[worst], allowed[worst], fused, recomputed)


def tolerances(
    calculation: "Calculation", recomputed: Mapping[str, Array] | None = None
) -> dict[str, float]:
    """Return how far each step may be from its recomputation, by the name of the step.

    16 eps · (1 + the largest number that leads to the step), eps being that of the precision in
    which it was recorded.

    Args:
        calculation: the steps.
        recomputed: their float64 matrices, where `replay` has them already.
    """
    values = replay(calculation.steps) if recomputed is None else recomputed
    reach = _reach(calculation.steps, values)
    return {name: 16 * calculation.eps * (1 + largest) for name, largest in reach.items()}


def by_hand(calculation: "Calculation", places: int) -> ByHand:
    """Redo a calculation with every number but the constants rounded to `places`."""
    if not 0 <= places <= 12:
        raise ArgumentError(f"places is {places}; wanted 0 to 12 decimal places")

    def keep(step: "Step", value: Array) -> Array:
        return value if step.operation is Operation.CONSTANT else rounded(value, places)

    values = replay(calculation.steps, after=keep)
    steps = tuple(replace(step, value=values[step.name]) for step in calculation.steps)
    last = calculation.steps[-1]
    redone = replace(
        calculation,
        title=f"{calculation.title}, by hand with {places} places",
        steps=steps,
        eps=0.5 * 10.0**-places,
        observed={},
    )
    return ByHand(redone, places, difference(last.value, values[last.name]))


def difference(a: Array, b: Array) -> float:
    """Largest |a − b|; entries that both are −∞ agree, a NaN agrees with nothing."""
    if a.shape != b.shape:
        return float("inf")
    blocked = (a <= BLOCKED) & (b <= BLOCKED)
    apart = np.abs(np.subtract(a, b, where=~blocked, out=np.zeros_like(a)))
    return float(np.nan_to_num(apart, nan=np.inf, posinf=np.inf).max(initial=0.0))


def _reach(steps: Sequence["Step"], values: Mapping[str, Array]) -> dict[str, float]:
    """Largest finite number in a step or in anything that leads to it."""
    reach: dict[str, float] = {}
    for step in steps:
        value = values[step.name]
        own = float(np.abs(value[np.isfinite(value) & (value > BLOCKED)]).max(initial=0.0))
        reach[step.name] = max(own, *(reach[operand] for operand in step.operands), 0.0)
    return reach


def _share(difference: float, allowed: float) -> float:
    if allowed:
        return difference / allowed
    return np.inf if difference else 0.0


def _confirm(which: str, name: str, distance: float, allowed: float) -> None:
    if not distance <= allowed:
        raise VerificationError(
            f"{name}: the {which} value is {distance:.2e} away from its recomputation in "
            f"float64; {allowed:.2e} is allowed"
        )
