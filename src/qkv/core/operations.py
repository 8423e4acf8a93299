"""The closed set of operations that a calculation is written in, computed by PyTorch.

Attention, normalisation, rotary positions, residuals and feed-forward layers are all written in
these and nothing else. Each operation exists four times, once in each room that needs it: here
(PyTorch, in the module's own precision), in `recompute` (NumPy, float64), and in `show` as a
worksheet formula and as words. A test holds the four sets equal.

Every operand is a matrix. The second operand of add, subtract, multiply and divide may also be
one row, one column or one number.
"""

from collections.abc import Callable
from enum import StrEnum

import torch
from jaxtyping import Float
from torch import Tensor

BLOCKED = -1e20
"""At or below this a similarity counts as −∞: worksheets have no infinity and write −1E+30."""


class Operation(StrEnum):
    """What a step does with its operands X, Y."""

    GIVEN = "given"  # an input; a person may change it
    CONSTANT = "constant"  # follows from the sizes (√d_k) or the recipe (eps); never rounded
    TRANSPOSE = "transpose"  # Xᵀ
    PRODUCT = "product"  # X Y
    PRODUCT_TRANSPOSED = "product with transposed"  # X Yᵀ
    ADD = "add"
    SUBTRACT = "subtract"
    MULTIPLY = "multiply"  # entry by entry
    DIVIDE = "divide"  # entry by entry; 0 / 0 is 0
    ROW_MAXIMUM = "row maximum"  # 0 where the whole row is −∞
    ROW_SUM = "row sum"
    ROW_MEAN = "row mean"
    EXPONENTIAL = "shifted exponential"  # exp(X − Y), Y one number a row; 0 where X is −∞
    SQUARE = "square"
    SQUARE_ROOT = "square root"
    TANH = "tanh"
    SIGMOID = "sigmoid"
    RELU = "relu"
    ERF = "erf"
    COLUMNS = "columns"  # the columns named by the step's selection
    ROWS = "rows"  # the rows named by the step's selection
    CONCATENATE = "concatenate"  # side by side
    ROTATE_HALVES = "rotate halves"  # (a, b) to (−b, a), a and b the two halves of a row
    ROTATE_PAIRS = "rotate pairs"  # (a, b) to (−b, a), a and b neighbours


INPUTS = frozenset({Operation.GIVEN, Operation.CONSTANT})
SELECTING = frozenset({Operation.COLUMNS, Operation.ROWS})

Matrix = Float[Tensor, "_ _"]


def _divide(x: Tensor, y: Tensor) -> Tensor:
    return torch.where((x == 0) & (y == 0), torch.zeros_like(x), x / y)


def _row_maximum(x: Tensor) -> Tensor:
    m = x.amax(-1, keepdim=True)
    return torch.where(m <= BLOCKED, torch.zeros_like(m), m)


def _exponential(x: Tensor, m: Tensor) -> Tensor:
    return torch.where(x <= BLOCKED, torch.zeros_like(x), torch.exp(x - m))


def _rotate_halves(x: Tensor) -> Tensor:
    a, b = x.chunk(2, dim=-1)
    return torch.cat((-b, a), dim=-1)


def _rotate_pairs(x: Tensor) -> Tensor:
    a, b = x[:, 0::2], x[:, 1::2]
    return torch.stack((-b, a), dim=-1).flatten(-2)


_COMPUTE: dict[Operation, Callable[..., Tensor]] = {
    Operation.TRANSPOSE: lambda x: x.mT,
    Operation.PRODUCT: lambda x, y: x @ y,
    Operation.PRODUCT_TRANSPOSED: lambda x, y: x @ y.mT,
    Operation.ADD: torch.add,
    Operation.SUBTRACT: torch.subtract,
    Operation.MULTIPLY: torch.multiply,
    Operation.DIVIDE: _divide,
    Operation.ROW_MAXIMUM: _row_maximum,
    Operation.ROW_SUM: lambda x: x.sum(-1, keepdim=True),
    Operation.ROW_MEAN: lambda x: x.mean(-1, keepdim=True),
    Operation.EXPONENTIAL: _exponential,
    Operation.SQUARE: torch.square,
    Operation.SQUARE_ROOT: torch.sqrt,
    Operation.TANH: torch.tanh,
    Operation.SIGMOID: torch.sigmoid,
    Operation.RELU: torch.relu,
    Operation.ERF: torch.erf,
    Operation.CONCATENATE: lambda *parts: torch.cat(parts, dim=-1),
    Operation.ROTATE_HALVES: _rotate_halves,
    Operation.ROTATE_PAIRS: _rotate_pairs,
}


def compute(operation: Operation, operands: list[Matrix], selection: tuple[int, ...]) -> Matrix:
    """Apply one operation by PyTorch, in the precision of its operands."""
    if operation is Operation.COLUMNS:
        return operands[0][:, list(selection)]
    if operation is Operation.ROWS:
        return operands[0][list(selection), :]
    return _COMPUTE[operation](*operands)
