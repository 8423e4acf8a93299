"""How a matrix stands on paper, in the terminal, the workbook and the plot alike."""

from qkv.core.calculation import Calculation, Step
from qkv.core.operations import Operation


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
