"""Steps in words: the equation of a step, and one of its numbers spelled out."""

from collections.abc import Callable

from qkv.core.calculation import Calculation, Step
from qkv.core.operations import BLOCKED, Operation
from qkv.core.recompute import Array

TERMS = 4
"""So many terms of a sum are written out; of longer ones the first, and how many there are."""

_SUMS = (" + ", " - ", " − ", " / ")

EQUATIONS: dict[Operation, Callable[..., str]] = {
    Operation.TRANSPOSE: lambda x: f"{_factor(x)}ᵀ",
    Operation.PRODUCT: lambda x, y: f"{_factor(x)} {_factor(y)}",
    Operation.PRODUCT_TRANSPOSED: lambda x, y: f"{_factor(x)} {_factor(y)}ᵀ",
    Operation.ADD: lambda x, y: f"{x} + {y}",
    Operation.SUBTRACT: lambda x, y: f"{x} - {_factor(y)}",
    Operation.MULTIPLY: lambda x, y: f"{_factor(x)} × {_factor(y)}",
    Operation.DIVIDE: lambda x, y: f"{_factor(x)} / {_factor(y)}",
    Operation.ROW_MAXIMUM: lambda x: f"largest of each row of {x}",
    Operation.ROW_SUM: lambda x: f"sum of each row of {x}",
    Operation.ROW_MEAN: lambda x: f"mean of each row of {x}",
    Operation.EXPONENTIAL: lambda x, m: f"e^({x} - {m})",
    Operation.SQUARE: lambda x: f"({x})²",
    Operation.SQUARE_ROOT: lambda x: f"√({x})",
    Operation.TANH: lambda x: f"tanh({x})",
    Operation.SIGMOID: lambda x: f"sigmoid({x})",
    Operation.RELU: lambda x: f"max(0, {x})",
    Operation.ERF: lambda x: f"erf({x})",
    Operation.COLUMNS: lambda x: f"columns of {x}",
    Operation.ROWS: lambda x: f"rows of {x}",
    Operation.CONCATENATE: lambda *parts: f"{', '.join(dict.fromkeys(parts))} side by side",
    Operation.ROTATE_HALVES: lambda x: f"{x} with halves turned: (a, b) to (-b, a)",
    Operation.ROTATE_PAIRS: lambda x: f"{x} with pairs turned: (a, b) to (-b, a)",
}


def equation(step: Step, calculation: Calculation) -> str:
    """Return how a step comes about, in symbols: "Q = X WQᵀ"."""
    if step.is_input:
        return step.symbol
    symbols = [calculation.step(operand).symbol for operand in step.operands]
    right = EQUATIONS[step.operation](*symbols)
    return right if right == step.symbol else f"{step.symbol} = {right}"


def number(x: float, places: int = 4) -> str:
    """Return a number as it is printed everywhere: fixed places, -∞ where blocked."""
    if x <= BLOCKED:
        return "-∞"
    return f"{x:.{places}e}" if abs(x) >= 1e7 else f"{x + 0.0:.{places}f}"


def spelled(step: Step, calculation: Calculation, row: int = 0, column: int = 0) -> str | None:
    """Spell one number out: "1.1600 × 0.5406 + 0.2300 × 0.5869 = 0.7621".

    Returns None where there is nothing to calculate (inputs, selections, joins).
    """
    pick = _SPELLED.get(step.operation)
    if pick is None:
        return None
    operands = [calculation.step(operand).value for operand in step.operands]
    return f"{pick(operands, row, column)} = {number(step.value[row, column])}"


def _signed(x: float) -> str:
    """A number inside a sum or product: negative ones in brackets."""
    return f"({number(x)})" if x < 0 else number(x)


def _factor(symbol: str) -> str:
    return f"({symbol})" if any(sign in symbol for sign in _SUMS) else symbol


def _sum(terms: list[str]) -> str:
    if len(terms) <= TERMS:
        return " + ".join(terms)
    return f"{' + '.join(terms[: TERMS - 1])} + … ({len(terms)} terms)"


def _product(operands: list[Array], row: int, column: int) -> str:
    x, y = operands[0][row], operands[1][:, column]
    return _sum([f"{_signed(a)} × {_signed(b)}" for a, b in zip(x, y, strict=True)])


def _at(operand: Array, row: int, column: int) -> str:
    r = row if operand.shape[0] > 1 else 0
    return _signed(operand[r, column if operand.shape[1] > 1 else 0])


def _between(sign: str) -> Callable[[list[Array], int, int], str]:
    return lambda operands, row, column: f" {sign} ".join(
        _at(operand, row, column) for operand in operands
    )


def _of(name: str) -> Callable[[list[Array], int, int], str]:
    return lambda operands, row, column: f"{name}({_at(operands[0], row, column)})"


def _row(operands: list[Array], row: int) -> list[str]:
    return [_signed(x) for x in operands[0][row]]


def _largest(operands: list[Array], row: int, column: int) -> str:
    shown = _row(operands, row)
    rest = ", …" if len(shown) > TERMS else ""
    return f"largest of {', '.join(shown[:TERMS])}{rest}"


_SPELLED: dict[Operation, Callable[[list[Array], int, int], str]] = {
    Operation.PRODUCT: _product,
    Operation.PRODUCT_TRANSPOSED: lambda o, r, c: _product([o[0], o[1].T], r, c),
    Operation.ADD: _between("+"),
    Operation.SUBTRACT: _between("-"),
    Operation.MULTIPLY: _between("×"),
    Operation.DIVIDE: _between("/"),
    Operation.ROW_MAXIMUM: _largest,
    Operation.ROW_SUM: lambda o, r, c: _sum(_row(o, r)),
    Operation.ROW_MEAN: lambda o, r, c: f"({_sum(_row(o, r))}) / {o[0].shape[1]}",
    Operation.EXPONENTIAL: lambda o, r, c: f"e^({_between('-')(o, r, c)})",
    Operation.SQUARE: lambda o, r, c: f"{_at(o[0], r, c)}²",
    Operation.SQUARE_ROOT: _of("√"),
    Operation.TANH: _of("tanh"),
    Operation.SIGMOID: _of("sigmoid"),
    Operation.RELU: lambda o, r, c: f"max(0, {_at(o[0], r, c)})",
    Operation.ERF: _of("erf"),
}
