"""Every operation a third time: the formula of one worksheet cell.

Plain formulas only, which LibreOffice, Excel and Google Sheets compute alike. `SUM(EXP(row))` is
not among them: without array entry LibreOffice takes one cell of the row, silently.
"""

from collections.abc import Callable, Mapping, Sequence

from qkv.core.calculation import Step
from qkv.core.operations import BLOCKED, Operation
from qkv.show.sheets import Place

TERMS = 4
"""Sums of up to so many products are spelled out; longer ones are one function of two ranges."""

FILL_IN = "fill in"
"""What the check of a row says while one of its cells is empty."""

_BLOCKED = f"{BLOCKED:.0E}"


def _product(i: int, j: int, x: Place, y: Place) -> str:
    spelled = x.columns <= TERMS or x.blank or y.blank  # MMULT refuses an empty cell
    if spelled:
        return "+".join(f"{x.cell(i, k)}*{y.cell(k, j)}" for k in range(x.columns))
    return _sum_of_products(x.row(i), y.column(j), in_a_column=not y.transposed)


def _product_transposed(i: int, j: int, x: Place, y: Place) -> str:
    spelled = x.columns <= TERMS or x.blank or y.blank
    if spelled:
        return "+".join(f"{x.cell(i, k)}*{y.cell(j, k)}" for k in range(x.columns))
    return _sum_of_products(x.row(i), y.row(j), in_a_column=y.transposed)


def _sum_of_products(row: str, other: str, *, in_a_column: bool) -> str:
    return f"MMULT({row},{other})" if in_a_column else f"SUMPRODUCT({row},{other})"


def _divide(i: int, j: int, x: Place, y: Place) -> str:
    a, b = x.cell(i, j), y.cell(i, j)
    return f"{a}/{b}" if y.nonzero else f"IF(AND({a}=0,{b}=0),0,{a}/{b})"


def _row_maximum(i: int, _: int, x: Place) -> str:
    largest = f"MAX({x.row(i)})"
    return f"IF({largest}<={_BLOCKED},0,{largest})"


def _exponential(i: int, j: int, x: Place, m: Place) -> str:
    a = x.cell(i, j)
    return f"IF({a}<={_BLOCKED},0,EXP({a}-{m.cell(i, j)}))"


def _sigmoid(i: int, j: int, x: Place) -> str:
    a = x.cell(i, j)  # two forms, so that e^x is never of a large number
    return f"IF({a}>=0,1/(1+EXP(-{a})),EXP({a})/(1+EXP({a})))"


def _concatenate(i: int, j: int, *parts: Place) -> str:
    for part in parts:
        if j < part.columns:
            return part.cell(i, j)
        j -= part.columns
    raise IndexError(j)


def _rotate_halves(i: int, j: int, x: Place) -> str:
    half = x.columns // 2
    return f"-{x.cell(i, j + half)}" if j < half else x.cell(i, j - half)


def _rotate_pairs(i: int, j: int, x: Place) -> str:
    return x.cell(i, j - 1) if j % 2 else f"-{x.cell(i, j + 1)}"


def _between(sign: str) -> Callable[..., str]:
    return lambda i, j, x, y: f"{x.cell(i, j)}{sign}{y.cell(i, j)}"


def _function(name: str) -> Callable[..., str]:
    return lambda i, j, x: f"{name}({x.cell(i, j)})"


FORMULAS: Mapping[Operation, Callable[..., str]] = {
    Operation.TRANSPOSE: lambda i, j, x: x.cell(j, i),
    Operation.PRODUCT: _product,
    Operation.PRODUCT_TRANSPOSED: _product_transposed,
    Operation.ADD: _between("+"),
    Operation.SUBTRACT: _between("-"),
    Operation.MULTIPLY: _between("*"),
    Operation.DIVIDE: _divide,
    Operation.ROW_MAXIMUM: _row_maximum,
    Operation.ROW_SUM: lambda i, _, x: f"SUM({x.row(i)})",
    Operation.ROW_MEAN: lambda i, _, x: f"SUM({x.row(i)})/{x.columns}",
    Operation.EXPONENTIAL: _exponential,
    Operation.SQUARE: lambda i, j, x: f"{x.cell(i, j)}*{x.cell(i, j)}",
    Operation.SQUARE_ROOT: _function("SQRT"),
    Operation.TANH: _function("TANH"),
    Operation.SIGMOID: _sigmoid,
    Operation.RELU: lambda i, j, x: f"MAX(0,{x.cell(i, j)})",
    Operation.ERF: _function("ERF"),
    Operation.CONCATENATE: _concatenate,
    Operation.ROTATE_HALVES: _rotate_halves,
    Operation.ROTATE_PAIRS: _rotate_pairs,
}


def formula(step: Step, operands: Sequence[Place], row: int, column: int) -> str:
    """Return the formula of one entry of a computed step, from the places of its operands."""
    if step.operation is Operation.COLUMNS:
        return f"={operands[0].cell(row, step.selection[column])}"
    if step.operation is Operation.ROWS:
        return f"={operands[0].cell(step.selection[row], column)}"
    return f"={FORMULAS[step.operation](row, column, *operands)}"


def check(place: Place, recorded: Place, row: int, *, blocks: bool = False) -> str:
    """Return the formula of a check: how far a row is from PyTorch's, at most.

    Args:
        place: where the step stands, seen from the sheet of the check.
        recorded: where PyTorch's values stand, seen from there too.
        row: the row.
        blocks: whether −∞ occurs. Then −1E+30 and −1E+23 are the same −∞, and −∞ against a
            number counts as 1 apart or more.
    """
    ours, theirs = place.row(row), recorded.row(row)
    apart = f"ABS({ours}-{theirs})"
    if blocks:
        open_ours, open_theirs = f"({ours}>{_BLOCKED})", f"({theirs}>{_BLOCKED})"
        apart = f"ABS({open_ours}*{ours}-{open_theirs}*{theirs})+ABS({open_ours}-{open_theirs})"
    largest = f"SUMPRODUCT(MAX({apart}))"
    if place.blank:
        return f'=IF(COUNT({ours})<{place.columns},"{FILL_IN}",{largest})'
    return f"={largest}"
