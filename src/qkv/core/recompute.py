"""The same operations a second time, by NumPy in float64: the proof does not trust PyTorch.

Nothing here is shared with `operations`: sums run through einsum, and every convention
(−∞, rows that may look at nothing, 0 / 0) is written out again.
"""

from collections.abc import Callable, Mapping
from math import erf

import numpy as np

from qkv.core.operations import BLOCKED, Operation

Array = np.ndarray[tuple[int, ...], np.dtype[np.float64]]

_erf = np.vectorize(erf, otypes=[np.float64])


def _divide(x: Array, y: Array) -> Array:
    x, y = np.broadcast_arrays(x, y)
    quotient = np.zeros_like(x)
    with np.errstate(divide="ignore"):
        np.divide(x, y, out=quotient, where=(x != 0) | (y != 0))
    return quotient


def _row_maximum(x: Array) -> Array:
    m = np.max(x, axis=1, keepdims=True)
    return np.where(m > BLOCKED, m, 0.0)


def _exponential(x: Array, m: Array) -> Array:
    return np.where(x > BLOCKED, np.exp(np.where(x > BLOCKED, x - m, 0.0)), 0.0)


def _sigmoid(x: Array) -> Array:
    e = np.exp(-np.abs(x))  # never above 1, so it cannot overflow
    return np.where(x >= 0, 1 / (1 + e), e / (1 + e))


def _rotate_halves(x: Array) -> Array:
    half = x.shape[1] // 2
    return np.hstack([-x[:, half:], x[:, :half]])


def _rotate_pairs(x: Array) -> Array:
    rotated = np.empty_like(x)
    rotated[:, 0::2], rotated[:, 1::2] = -x[:, 1::2], x[:, 0::2]
    return rotated


RECOMPUTE: Mapping[Operation, Callable[..., Array]] = {
    Operation.TRANSPOSE: np.transpose,
    Operation.PRODUCT: lambda x, y: np.einsum("ik,kj->ij", x, y),
    Operation.PRODUCT_TRANSPOSED: lambda x, y: np.einsum("ik,jk->ij", x, y),
    Operation.ADD: np.add,
    Operation.SUBTRACT: np.subtract,
    Operation.MULTIPLY: np.multiply,
    Operation.DIVIDE: _divide,
    Operation.ROW_MAXIMUM: _row_maximum,
    Operation.ROW_SUM: lambda x: np.einsum("ij->i", x)[:, None],
    Operation.ROW_MEAN: lambda x: np.einsum("ij->i", x)[:, None] / x.shape[1],
    Operation.EXPONENTIAL: _exponential,
    Operation.SQUARE: np.square,
    Operation.SQUARE_ROOT: np.sqrt,
    Operation.TANH: np.tanh,
    Operation.SIGMOID: _sigmoid,
    Operation.RELU: lambda x: np.where(x > 0, x, 0.0),
    Operation.ERF: _erf,
    Operation.CONCATENATE: lambda *parts: np.hstack(parts),
    Operation.ROTATE_HALVES: _rotate_halves,
    Operation.ROTATE_PAIRS: _rotate_pairs,
}


def recompute(operation: Operation, operands: list[Array], selection: tuple[int, ...]) -> Array:
    """Apply one operation by NumPy in float64."""
    if operation is Operation.COLUMNS:
        return np.take(operands[0], selection, axis=1)
    if operation is Operation.ROWS:
        return np.take(operands[0], selection, axis=0)
    return RECOMPUTE[operation](*operands)


def rounded(x: Array, places: int) -> Array:
    """Round half away from zero, as Excel's ROUND and a person do; −∞ stays.

    A number that lies within rounding noise of a half counts as that half: 1.005 with two
    places is 1.01, though the nearest float64 lies below 1.005.
    """
    shifted = np.abs(x) * 10.0**places
    halves_up = np.floor(shifted * (1 + 4 * np.finfo(np.float64).eps) + 0.5)
    return np.copysign(halves_up, x) / 10.0**places + 0.0  # + 0.0: no negative zero
