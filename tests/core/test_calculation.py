"""`Calculation`: named, ordered, frozen; found by name, taken apart by section."""

import dataclasses

import numpy as np
import pytest
import torch

from qkv.core.calculation import Calculation, Step
from qkv.core.operations import Operation
from qkv.core.working import Working
from qkv.errors import NameNotFoundError
from tests.reference import agree

X = [[2.0, 1.0, -1.0]]


def two_heads() -> Calculation:
    """Two sections that hold the same names, and one that joins them."""
    w = Working("two heads")
    x = w.given("inputs/x", torch.tensor(X), symbol="X")
    for head in (1, 2):
        factor = w.constant(f"head {head}/factor", head, symbol="f", like=x)
        scaled = w.step(Operation.MULTIPLY, f"head {head}/scaled", x, factor, symbol="S")
        w.step(Operation.TANH, f"head {head}/softmax/weights", scaled, symbol="P")
    parts = ["head 1/softmax/weights", "head 2/softmax/weights"]
    w.step(Operation.CONCATENATE, "joined/output", *parts, symbol="O")
    observed = {"head 2/softmax/weights": torch.tensor(X).mul(2).tanh()}
    return w.finish(observed)


def test_a_step_is_found_by_its_path_or_by_an_ending_that_only_it_has() -> None:
    c = two_heads()
    agree(c["head 2/softmax/weights"], np.tanh(np.multiply(X, 2)), 1e-7)
    agree(c["output"], c["joined/output"], 0)
    agree(c["x"], X, 0)
    assert c.step("output").name == "joined/output"
    agree(c.result, c["output"], 0)


def test_a_section_is_a_calculation_again() -> None:
    c = two_heads()
    assert c.sections == (
        "inputs",
        "head 1",
        "head 1/softmax",
        "head 2",
        "head 2/softmax",
        "joined",
    )
    head = c["head 2"]
    assert isinstance(head, Calculation)
    assert [step.name for step in head] == ["inputs/x", "factor", "scaled", "softmax/weights"]
    assert head.title == "two heads: head 2"
    assert head.step("scaled").operands == ("inputs/x", "factor")
    agree(head["weights"], c["head 2/softmax/weights"], 0)
    assert set(head.observed) == {"softmax/weights"}
    assert head.verify().fused is not None
    assert len(c) == 8


def test_what_a_section_takes_from_outside_becomes_given() -> None:
    joined = two_heads()["joined"]
    borrowed = [step for step in joined if step.is_input]
    assert [step.name for step in borrowed] == ["head 1/softmax/weights", "head 2/softmax/weights"]
    assert all(step.operation is Operation.GIVEN and step.operands == () for step in borrowed)
    assert joined.verify().difference < 1e-7
    inner = two_heads()["head 2/softmax"]
    assert [step.name for step in inner] == ["head 2/scaled", "weights"]
    agree(inner["weights"], np.tanh(np.multiply(X, 2)), 1e-7)


def test_a_constant_from_outside_stays_a_constant() -> None:
    w = Working("constant")
    x = w.given("x", torch.tensor(X), symbol="X")
    eps = w.constant("eps", 1e-6, symbol="ε", like=x)
    w.step(Operation.ADD, "norm/shifted", x, eps, symbol="S")
    assert w.finish()["norm"].step("eps").operation is Operation.CONSTANT


def test_a_section_may_use_a_name_that_stands_outside_too() -> None:
    w = Working("same names")
    x = w.given("x", torch.tensor(X), symbol="X")
    square = w.step(Operation.SQUARE, "norm/x", x, symbol="X²")
    w.step(Operation.ROW_SUM, "norm/sum", square, symbol="z")
    section = w.finish()["norm"]
    assert len({step.name for step in section}) == len(section) == 3
    assert section.verify().difference == 0
    agree(section["sum"], [[6.0]], 0)


def test_a_name_that_several_steps_share_lists_them() -> None:
    with pytest.raises(NameNotFoundError) as caught:
        two_heads()["weights"]
    assert str(caught.value) == (
        "several steps are named 'weights': head 1/softmax/weights, head 2/softmax/weights"
    )


def test_a_name_that_nothing_has_lists_the_nearest() -> None:
    c = two_heads()
    with pytest.raises(
        NameNotFoundError, match="no step or section is named 'outptu'; nearest: outp"
    ):
        c["outptu"]
    with pytest.raises(
        NameNotFoundError, match="no step or section is named 'zzz'; there are: inp"
    ):
        c["zzz"]
    with pytest.raises(
        NameNotFoundError, match="no section is named 'tail'; there are: inputs, he"
    ):
        c.section("tail")
    with pytest.raises(NameNotFoundError, match="there are: none"):
        Calculation("flat", (), 0.0).section("head 1")
    with pytest.raises(KeyError):
        c["nothing"]


def test_a_part_of_a_name_is_no_name() -> None:
    with pytest.raises(NameNotFoundError):
        two_heads()["eights"]
    with pytest.raises(NameNotFoundError):
        two_heads()["head"]


def test_steps_and_records_are_frozen() -> None:
    c = two_heads()
    step = c.step("x")
    with pytest.raises(dataclasses.FrozenInstanceError):
        c.title = "other"
    with pytest.raises(dataclasses.FrozenInstanceError):
        step.value = np.zeros((1, 3))
    with pytest.raises(ValueError, match="read-only"):
        step.value[0, 0] = 1.0
    with pytest.raises((AttributeError, TypeError)):
        step.note = "slots"
    assert isinstance(c.steps, tuple)
    assert isinstance(step, Step)


def test_operands_stand_before_what_uses_them() -> None:
    seen: set[str] = set()
    for step in two_heads():
        assert set(step.operands) <= seen
        seen.add(step.name)
