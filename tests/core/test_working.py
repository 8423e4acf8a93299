"""`Working` writes a calculation down while PyTorch computes it."""

import numpy as np
import pytest
import torch

from qkv.core.operations import Operation
from qkv.core.working import Working
from qkv.errors import ArgumentError, NameNotFoundError, ShapeError
from tests.reference import agree


def x_of(w: Working, name: str = "x") -> str:
    values = torch.tensor([[2.0, 1.0, -1.0], [0.5, 0.25, 4.0]])
    return w.given(name, values, symbol="X", rows=["a", "b"], columns=["p", "q", "r"], says="marks")


def test_a_step_keeps_name_symbol_operation_operands_value_and_sentence() -> None:
    w = Working("desserts")
    x = x_of(w)
    z = w.step(Operation.ROW_SUM, "sum/of it", x, symbol="z", says="the sum")
    c = w.finish()
    step = c.step("sum/of it")
    assert (c.title, z, step.symbol, step.says) == ("desserts", "sum/of it", "z", "the sum")
    assert (step.operation, step.operands) == (Operation.ROW_SUM, ("x",))
    assert (step.section, step.short, step.is_input) == ("sum", "of it", False)
    assert c.step("x").is_input
    agree(step.value, [[2.0], [4.75]], 0)
    assert c.eps == torch.finfo(torch.float32).eps
    assert list(w.labels("x")) == ["a", "b"]
    assert w.tensor(z).dtype == torch.float32


LABELS = [
    (Operation.TRANSPOSE, ["x"], (), ("p", "q", "r"), ("a", "b")),
    (Operation.PRODUCT, ["x", "y"], (), ("a", "b"), ("u", "v")),
    (Operation.PRODUCT_TRANSPOSED, ["x", "x"], (), ("a", "b"), ("a", "b")),
    (Operation.ROW_SUM, ["x"], (), ("a", "b"), ("S",)),
    (Operation.ROW_MAXIMUM, ["x"], (), ("a", "b"), ("S",)),
    (Operation.ROW_MEAN, ["x"], (), ("a", "b"), ("S",)),
    (Operation.CONCATENATE, ["x", "x"], (), ("a", "b"), ("p", "q", "r") * 2),
    (Operation.COLUMNS, ["x"], (2, 0), ("a", "b"), ("r", "p")),
    (Operation.ROWS, ["x"], (1,), ("b",), ("p", "q", "r")),
    (Operation.TANH, ["x"], (), ("a", "b"), ("p", "q", "r")),
    (Operation.ADD, ["x", "row"], (), ("a", "b"), ("p", "q", "r")),
]


@pytest.mark.parametrize(("operation", "operands", "selection", "rows", "columns"), LABELS)
def test_labels_follow_the_operation(
    operation: Operation,
    operands: list[str],
    selection: tuple[int, ...],
    rows: tuple[str, ...],
    columns: tuple[str, ...],
) -> None:
    w = Working("labels")
    x_of(w)
    w.given("y", torch.ones(3, 2), symbol="Y", rows=["1", "2", "3"], columns=["u", "v"])
    w.given("row", torch.ones(1, 3), symbol="b")
    w.step(operation, "result", *operands, symbol="S", selection=selection)
    step = w.finish().step("result")
    assert (step.rows, step.columns, step.selection) == (rows, columns, selection)


def test_labels_may_be_said_and_are_numbers_otherwise() -> None:
    w = Working("labels")
    x_of(w)
    w.step(Operation.TANH, "t", "x", symbol="T", rows=["first", "second"])
    w.given("y", torch.ones(2, 3), symbol="Y")
    c = w.finish()
    assert c.step("t").rows == ("first", "second")
    assert (c.step("y").rows, c.step("y").columns) == (("1", "2"), ("1", "2", "3"))


def test_a_constant_is_exact_and_taken_in_the_precision_of_what_it_meets() -> None:
    w = Working("constant")
    x = w.given("x", torch.ones(2, 2, dtype=torch.bfloat16), symbol="X")
    w.constant("root", 3**0.5, symbol="√3", like=x)
    assert w.tensor("root").dtype == torch.bfloat16
    c = w.finish()
    assert c["root"].item() == 3**0.5
    assert c.step("root").operation is Operation.CONSTANT
    assert c.eps == torch.finfo(torch.bfloat16).eps


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_values_are_frozen_copies_in_float64(dtype: torch.dtype) -> None:
    w = Working("frozen")
    tensor = torch.ones(2, 2, dtype=dtype)
    w.given("x", tensor, symbol="X")
    c = w.finish({"x": tensor})
    tensor.fill_(7.0)
    agree(c["x"], np.ones((2, 2)), 0)
    for value in (c["x"], c.observed["x"]):
        assert value.dtype == np.float64
        with pytest.raises(ValueError, match="read-only"):
            value[0, 0] = 5.0


def test_what_is_written_down_carries_no_gradient() -> None:
    w = Working("gradient")
    x = w.given("x", torch.ones(2, 2, requires_grad=True), symbol="X")
    assert not w.tensor(x).requires_grad


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_not_a_number_and_infinity_are_refused_with_their_place(bad: float) -> None:
    values = torch.zeros(3, 4)
    values[1, 2] = bad
    why = rf"encodings holds {bad} in row 1, column 2; wanted finite numbers"
    with pytest.raises(ArgumentError, match=why):
        Working("bad").given("encodings", values, symbol="X")


def test_minus_infinity_blocks_and_is_allowed() -> None:
    w = Working("mask")
    w.given("mask", torch.tensor([[0.0, -torch.inf]]), symbol="M", blocks=True)
    assert w.finish()["mask"][0, 1] == -np.inf
    with pytest.raises(ArgumentError, match="x holds -inf in row 0, column 1; wanted finite"):
        w.given("x", torch.tensor([[0.0, -torch.inf]]), symbol="X")
    with pytest.raises(ArgumentError, match="m holds nan in row 0, column 0; wanted finite"):
        w.given("m", torch.tensor([[torch.nan]]), symbol="M", blocks=True)


@pytest.mark.usefixtures("as_shipped")
def test_mistakes_are_named() -> None:
    w = Working("mistakes")
    x = x_of(w)
    with pytest.raises(ArgumentError, match="a step is named 'x' already; every step has its own"):
        x_of(w)
    with pytest.raises(ArgumentError, match="a step is named 'x' already"):
        w.step(Operation.TANH, "x", x, symbol="T")
    with pytest.raises(ArgumentError, match=r"y is torch.int64; wanted floats: tensor.float"):
        w.given("y", torch.ones(2, 2, dtype=torch.int64), symbol="Y")
    with pytest.raises(NameNotFoundError, match="t uses 'z', which is no earlier step; there are"):
        w.step(Operation.ADD, "t", x, "z", symbol="T")
    misfit = w.given("misfit", torch.zeros(7, 5), symbol="Y")
    with pytest.raises(ShapeError, match=r"t cannot be computed by product: .*misfit is .7, 5."):
        w.step(Operation.PRODUCT, "t", x, misfit, symbol="T")
    with pytest.raises(ShapeError, match="y has 3 axes; a step is a matrix with 2"):
        w.given("y", torch.zeros(1, 2, 3), symbol="Y")
    with pytest.raises(ShapeError, match="y has 2 rows, but 3 labels for them"):
        w.given("y", torch.zeros(2, 2), symbol="Y", rows=["a", "b", "c"])
    with pytest.raises(ShapeError, match="t has 3 columns, but 1 labels for them"):
        w.step(Operation.TANH, "t", x, symbol="T", columns=["a"])
