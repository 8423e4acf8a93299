"""How a matrix stands on paper, in the terminal, the workbook, the notebook and the plot alike."""

from typing import NamedTuple

from qkv.core.calculation import Calculation, Step
from qkv.core.operations import Operation
from qkv.core.recompute import Array
from qkv.show.spelling import equation


class Printed(NamedTuple):
    """A step the way it is printed.

    Attributes:
        values: the matrix.
        rows, columns: the labels of its axes.
        symbol: the equation, "Q = X WQᵀ"; of a given step its symbol.
    """

    values: Array
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    symbol: str


def printed(step: Step, calculation: Calculation) -> Printed:
    """Return a step as it is printed: transposed where `printed_transposed` says so."""
    symbol = equation(step, calculation)
    if step.name in printed_transposed(calculation):
        return Printed(step.value.T, step.columns, step.rows, f"{symbol}ᵀ")
    return Printed(step.value, step.rows, step.columns, symbol)


def printed_transposed(calculation: Calculation) -> frozenset[str]:
    """Return the given steps that are printed transposed, the way the sum runs on paper.

    PyTorch stores a weight as out × in and multiplies by its transpose. Whatever is given and
    used only so is printed as that transpose: rows of X meet columns of WQᵀ.
    """
    uses: dict[str, set[bool]] = {}
    for step in calculation:
        for place, operand in enumerate(step.operands):
            second = step.operation is Operation.PRODUCT_TRANSPOSED and place == 1
            uses.setdefault(operand, set()).add(second)
    return frozenset(
        step.name
        for step in calculation
        if step.operation is Operation.GIVEN and uses.get(step.name) == {True}
    )


def is_share(step: Step, calculation: Calculation) -> bool:
    """Whether a step divides a matrix by its own row sums, so that each row is a recipe."""
    if step.operation is not Operation.DIVIDE:
        return False
    whole, total = step.operands
    divisor = calculation.step(total)
    return divisor.operation is Operation.ROW_SUM and divisor.operands == (whole,)
