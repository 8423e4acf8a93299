"""What the parts of a call are called; both sides of a watch are written against these names."""

from dataclasses import FrozenInstanceError, fields

import pytest
import torch

from qkv.recording.calls.operands import Operands, Operation
from tests.recording.programs import random_qkv


def test_an_operation_is_a_name_with_what_it_needs() -> None:
    assert [field.name for field in fields(Operation)] == [
        "kind", "operand", "number", "other", "limits", "function", "dtype",
    ]  # fmt: skip
    assert Operation("tanh") != Operation("tanh")  # tensors are not compared


def test_operands_cannot_be_changed() -> None:
    q, k, v = random_qkv()
    operands = Operands(q, k, v, q[..., :4], ())
    with pytest.raises(FrozenInstanceError):
        operands.q = torch.zeros(1)  # type: ignore[misc]


def test_what_is_usual_need_not_be_said() -> None:
    q, k, v = random_qkv()
    operands = Operands(q, k, v, q[..., :4], ())
    assert (operands.dropout, operands.how, operands.same_source) == (0.0, "written out", None)
    assert not operands.empty_is_zero
