"""A call: what it says of itself, and that nothing is worked out before it is asked for."""

from math import inf

import pytest
import torch

from qkv.core.mask import Mask
from qkv.recording.calls.call import Call
from qkv.recording.calls.operands import Operands, Operation
from qkv.recording.calls.place import Place
from tests.recording.programs import (
    BATCH,
    HEADS,
    KEYS,
    QUERIES,
    Scores,
    call_of,
    random_qkv,
    triangle,
)
from tests.reference import agree


def causal(s: Scores) -> None:
    s.multiply(0.4)
    s.fill(~triangle(), -inf)


def counting() -> tuple[Call, list[int]]:
    operands, asked = call_of(causal, random_qkv()).operands, [0]

    def source() -> Operands:
        asked[0] += 1
        return operands

    return Call(Place("encoder.3", "model.py", 40), 2, source), asked


def test_nothing_is_laid_out_before_it_is_asked_for_and_then_once() -> None:
    seen, asked = counting()
    assert (seen.path, seen.file, seen.line, seen.run, seen.index) == (
        "encoder.3", "model.py", 40, 2, 0,
    )  # fmt: skip
    assert repr(seen) == "Call(encoder.3, model.py:40, run 2, index 0)"
    assert asked == [0]
    assert seen.shape == (BATCH, HEADS, QUERIES, KEYS)
    assert seen.weights is seen.weights
    assert seen.error == seen.error
    assert asked == [1]


def test_it_is_laid_out_again_after_its_tensors_moved() -> None:
    seen, asked = counting()
    weights = seen.weights
    seen.forget_layout()
    assert seen.weights is not weights
    agree(seen.weights.dense(), weights.dense(), 0)
    assert asked == [2]


def test_released_operands_make_place_for_others() -> None:
    seen, _ = counting()
    assert seen.error_eps < 16
    other = call_of(causal, random_qkv(queries=QUERIES)).operands
    seen.release(lambda: other)
    assert seen.q is other.q
    assert seen.error_eps < 16


def test_tensors_are_handed_out_by_reference() -> None:
    q, k, v = random_qkv()
    seen = call_of(causal, (q, k, v))
    assert seen.q is q
    assert seen.k is k
    assert seen.v is v
    assert seen.output is seen.operands.output


def test_the_mask_it_hands_out_makes_the_weights_again() -> None:
    seen = call_of(causal, random_qkv())
    assert isinstance(seen.mask, Mask)
    assert str(seen.blocking) == "causal (the last query sees the last key)"
    logits = (seen.q @ seen.k.repeat_interleave(2, 1).mT).double() * seen.scale
    agree(seen.weights.dense(), (logits + seen.mask.matrix(QUERIES, KEYS)).softmax(-1), 1e-5)


@pytest.mark.parametrize(("same", "kind"), [(True, "self"), (False, "cross"), (None, "unknown")])
def test_the_kind_says_whether_queries_and_keys_are_of_one_tensor(
    same: bool | None, kind: str
) -> None:
    assert call_of(causal, random_qkv(), same_source=same).kind == kind


def test_what_is_not_there_is_none() -> None:
    seen = call_of(causal, random_qkv())
    assert (seen.softcap, seen.sinks, seen.dropout, seen.summary) == (None, None, 0.0, None)
    assert seen.how == "written out"


def test_an_attention_over_no_queries_is_empty_and_right() -> None:
    q, k, v = random_qkv(queries=0)
    operands = Operands(q, k, v, q[..., :4], (Operation("multiply", number=0.4),))
    seen = Call(Place(None, "script.py", 3), 0, lambda: operands)
    assert seen.error == 0
    assert repr(seen).startswith("Call(outside of every module, script.py:3")


def test_a_whole_batch_hidden_from_itself_has_no_error() -> None:
    """Every key is padding: a fused operation gives 0 there."""
    q, k, v = random_qkv()
    hidden = torch.ones(BATCH, 1, 1, KEYS).bool()
    operations = (Operation("multiply", number=0.4), Operation("fill", lambda: hidden, number=-inf))
    operands = Operands(q, k, v, torch.zeros(BATCH, HEADS, QUERIES, 4), operations, how="fused")
    seen = Call(Place("a", "b.py", 1), 0, lambda: operands)
    assert seen.error == 0
