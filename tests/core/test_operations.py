"""The closed set of operations: computed by PyTorch and, on its own, by NumPy, to the same end."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from qkv.core.operations import _COMPUTE, INPUTS, SELECTING, Operation, compute
from qkv.core.recompute import RECOMPUTE, recompute, rounded
from tests.reference import agree, array

INF = float("inf")
ONE = frozenset(
    {
        "transpose", "row maximum", "row sum", "row mean", "square", "square root", "tanh",
        "sigmoid", "relu", "erf", "rotate halves", "rotate pairs",
    }
)  # fmt: skip
BROADCASTING = [Operation.ADD, Operation.SUBTRACT, Operation.MULTIPLY, Operation.DIVIDE]


def both(
    operation: Operation, *operands: torch.Tensor, selection: tuple[int, ...] = ()
) -> np.ndarray:
    """Compute by PyTorch and by NumPy, compare, and return NumPy's."""
    by_torch = compute(operation, list(operands), selection)
    by_numpy = recompute(operation, [array(x) for x in operands], selection)
    np.testing.assert_allclose(array(by_torch), by_numpy, rtol=1e-13, atol=1e-15)
    return by_numpy


def matrix(rows: int, columns: int, seed: int = 0) -> torch.Tensor:
    random = torch.Generator().manual_seed(seed)
    return torch.randn(rows, columns, generator=random, dtype=torch.float64)


def test_the_two_sets_are_closed_and_equal() -> None:
    computed = set(Operation) - INPUTS - SELECTING
    assert set(_COMPUTE) == computed
    assert set(RECOMPUTE) == computed
    assert {operation.value for operation in INPUTS} == {"given", "constant"}
    assert {operation.value for operation in SELECTING} == {"columns", "rows"}


BY_HAND = {
    "transpose": ([[[1, 2, 3], [4, 5, 6]]], [[1, 4], [2, 5], [3, 6]]),
    "product": ([[[1, 2], [3, 4]], [[5], [7]]], [[19], [43]]),
    "product with transposed": ([[[1, 2], [3, 4]], [[5, 7]]], [[19], [43]]),
    "add": ([[[1, 2], [3, 4]], [[10, 20]]], [[11, 22], [13, 24]]),
    "subtract": ([[[1, 2], [3, 4]], [[10], [20]]], [[-9, -8], [-17, -16]]),
    "multiply": ([[[1, 2], [3, 4]], [[3]]], [[3, 6], [9, 12]]),
    "divide": ([[[1, 2], [3, 4]], [[4, 4], [3, 8]]], [[0.25, 0.5], [1, 0.5]]),
    "row maximum": ([[[1, 3, 2], [-5, -4, -6], [-INF, 2, -INF]]], [[3], [-4], [2]]),
    "row sum": ([[[1, 3, 2], [-5, -4, -6]]], [[6], [-15]]),
    "row mean": ([[[1, 3, 2], [-5, -4, -6]]], [[2], [-5]]),
    "shifted exponential": ([[[1, 2], [3, -INF]], [[2], [3]]], [[1 / math.e, 1], [1, 0]]),
    "square": ([[[-3, 2]]], [[9, 4]]),
    "square root": ([[[9, 2]]], [[3, 2**0.5]]),
    "tanh": ([[[0, 1]]], [[0, (math.e**2 - 1) / (math.e**2 + 1)]]),
    "sigmoid": ([[[0, 1, -1]]], [[0.5, math.e / (1 + math.e), 1 / (1 + math.e)]]),
    "relu": ([[[-2, 0, 3]]], [[0, 0, 3]]),
    "erf": ([[[0, 1, -1]]], [[0, 0.8427007929497149, -0.8427007929497149]]),
    "concatenate": ([[[1], [2]], [[3, 4], [5, 6]], [[7], [8]]], [[1, 3, 4, 7], [2, 5, 6, 8]]),
    "rotate halves": ([[[1, 2, 3, 4]]], [[-3, -4, 1, 2]]),
    "rotate pairs": ([[[1, 2, 3, 4]]], [[-2, 1, -4, 3]]),
}


@pytest.mark.parametrize("operation", _COMPUTE)
def test_each_operation_does_what_its_name_says(operation: Operation) -> None:
    operands, wanted = BY_HAND[operation.value]
    agree(both(operation, *(torch.tensor(x).double() for x in operands)), wanted, 1e-12)


@given(st.sampled_from(sorted(ONE)), st.integers(1, 5), st.integers(1, 4), st.integers(0, 99))
def test_numpy_confirms_pytorch_on_any_matrix(name: str, rows: int, half: int, seed: int) -> None:
    x = matrix(rows, 2 * half, seed) * 20
    both(Operation(name), x.abs() if name == "square root" else x)


@given(st.sampled_from(BROADCASTING), st.integers(1, 4), st.integers(1, 5), st.integers(0, 99))
def test_the_second_operand_may_be_a_row_a_column_or_a_number(
    operation: Operation, rows: int, columns: int, seed: int
) -> None:
    x = matrix(rows, columns, seed)
    for shape in ((rows, columns), (1, columns), (rows, 1), (1, 1)):
        y = matrix(*shape, seed=seed + 1)
        assert both(operation, x, y).shape == (rows, columns)


@given(st.integers(1, 5), st.integers(1, 5), st.integers(1, 5), st.integers(0, 99))
def test_products_of_any_sizes(rows: int, inner: int, columns: int, seed: int) -> None:
    x, y = matrix(rows, inner, seed), matrix(inner, columns, seed + 1)
    product = both(Operation.PRODUCT, x, y)
    agree(both(Operation.PRODUCT_TRANSPOSED, x, y.mT.contiguous()), product, 1e-12)


def test_selections_take_the_named_columns_and_rows_in_their_order() -> None:
    x = matrix(3, 4)
    agree(both(Operation.COLUMNS, x, selection=(3, 0, 0)), array(x)[:, [3, 0, 0]], 0)
    agree(both(Operation.ROWS, x, selection=(2, 1)), array(x)[[2, 1]], 0)


BLOCKED_ROWS = [-INF, -1e30, -1e23, -1e20]


@pytest.mark.parametrize("blocked", BLOCKED_ROWS)
def test_a_row_that_may_look_at_nothing_has_maximum_and_exponentials_zero(blocked: float) -> None:
    x = torch.tensor([[blocked] * 3, [1.0, blocked, 2.0]], dtype=torch.float64)
    maximum = both(Operation.ROW_MAXIMUM, x)
    agree(maximum, [[0.0], [2.0]], 0)
    shares = both(Operation.EXPONENTIAL, x, torch.tensor(maximum))
    agree(shares, [[0, 0, 0], [1 / math.e, 0, 1]], 1e-15)


def test_what_is_just_above_the_blocked_value_still_counts() -> None:
    x = torch.tensor([[-9e19, -9e19]], dtype=torch.float64)
    agree(both(Operation.ROW_MAXIMUM, x), [[-9e19]], 0)
    agree(both(Operation.EXPONENTIAL, x, x[:, :1]), [[1, 1]], 0)


def test_zero_by_zero_is_zero_and_nothing_else_by_zero_is() -> None:
    x = torch.tensor([[0.0, -0.0, 1.0, -1.0, 0.0]]).double()
    y = torch.tensor([[0.0, 0.0, 0.0, 0.0, 2.0]]).double()
    agree(both(Operation.DIVIDE, x, y)[:, [0, 1, 4]], [[0, 0, 0]], 0)
    assert both(Operation.DIVIDE, x, y)[0, 2:4].tolist() == [INF, -INF]
    agree(
        both(Operation.DIVIDE, torch.zeros(2, 3).double(), torch.zeros(2, 1).double()),
        np.zeros((2, 3)),
        0,
    )


def test_a_large_number_does_not_overflow() -> None:
    x = torch.tensor([[1000.0, -1000.0, 0.0]]).double()
    agree(both(Operation.SIGMOID, x), [[1, 0, 0.5]], 0)
    agree(both(Operation.TANH, x), [[1, -1, 0]], 0)
    agree(both(Operation.EXPONENTIAL, x, torch.tensor([[1000.0]]).double()), [[1, 0, 0]], 0)


def test_not_a_number_stays_not_a_number() -> None:
    x = torch.tensor([[float("nan"), 1.0]]).double()
    for operation in (Operation.DIVIDE, Operation.ADD):
        for values in (compute(operation, [x, x], ()), recompute(operation, [array(x)] * 2, ())):
            assert bool(np.isnan(array(values)[0, 0]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_pytorch_keeps_the_precision_of_the_module(dtype: torch.dtype) -> None:
    x = matrix(2, 4).to(dtype)
    for operation in (Operation.TANH, Operation.ROW_MEAN, Operation.ROTATE_HALVES):
        assert compute(operation, [x], ()).dtype == dtype


ROUNDED = [
    (1.005, 2, 1.01), (-1.005, 2, -1.01), (0.5, 0, 1), (-0.5, 0, -1), (1.5, 0, 2), (2.5, 0, 3),
    (-2.5, 0, -3), (2.675, 2, 2.68), (0.49, 0, 0), (-0.49, 0, 0), (0.00005, 4, 0.0001),
    (0.000049, 4, 0), (1.23456789, 4, 1.2346), (-0.35034, 4, -0.3503), (1e-9, 4, 0), (12.0, 4, 12),
    (123456.78905, 4, 123456.7891), (0.1 + 0.2, 12, 0.3), (-INF, 4, -INF), (0.0, 3, 0),
]  # fmt: skip


@pytest.mark.parametrize(("number", "places", "wanted"), ROUNDED)
def test_rounding_goes_half_away_from_zero(number: float, places: int, wanted: float) -> None:
    result = float(rounded(np.array([[number]]), places)[0, 0])
    assert result == wanted
    assert math.copysign(1, result) == math.copysign(1, wanted), "no negative zero"


@given(st.integers(-(10**6), 10**6), st.integers(0, 6))
def test_any_decimal_half_is_rounded_away_from_zero(units: int, places: int) -> None:
    half = (abs(units) + 0.5) / 10**places  # what a person writes as …5
    assert float(rounded(np.array([[half]]), places)[0, 0]) == (abs(units) + 1) / 10**places
    assert float(rounded(np.array([[-half]]), places)[0, 0]) == -(abs(units) + 1) / 10**places
