"""Weights recovered from operands: sinks, dropout, and what came after the softmax."""

from dataclasses import replace
from math import inf

import pytest
import torch
from torch import Tensor

from qkv.errors import RecordingError
from qkv.recording.call import Call
from qkv.recording.operands import Operands, Operation
from tests.recording.programs import (
    BATCH,
    HEADS,
    KEYS,
    LEAST,
    QUERIES,
    Scores,
    added,
    call,
    call_of,
    random_qkv,
    real,
    repeated,
    softmax_of,
    triangle,
)
from tests.reference import agree

# float32: eps times logits of about 10.
NEAR = 1e-5


def causal(s: Scores) -> None:
    s.multiply(0.4)
    s.fill(~triangle(), -inf)


def curbed(s: Scores) -> None:
    """A program without a form."""
    s.multiply(0.4)
    s.clamp(-1.0, 1.0)


def with_output(seen: Call, weights: Tensor, **more: object) -> Call:
    """The call with other operations around the same scores, and the output they would give."""
    output = (weights.double() @ repeated(seen.v).double()).float()
    return call(replace(seen.operands, output=output, **more))


@pytest.mark.parametrize("program", [causal, curbed], ids=lambda p: p.__name__)
@pytest.mark.parametrize("axes", [(1, HEADS, 1, 1), (BATCH, HEADS, QUERIES, 2)])
def test_sinks_take_weight_and_give_none(program: object, axes: tuple[int, ...]) -> None:
    q, k, v = random_qkv()
    sinks = torch.randn(axes) + 1
    scores = Scores(q.double() @ repeated(k).double().mT)
    program(scores)
    beside = sinks.double().expand(BATCH, HEADS, QUERIES, -1)
    weights = torch.cat([scores.x, beside], -1).softmax(-1)[..., :KEYS]
    seen = with_output(call_of(program, (q, k, v)), weights, sinks=lambda: sinks)
    agree(seen.weights.dense(), weights, NEAR)
    assert seen.error_eps < 16


def test_a_sink_takes_all_of_a_row_that_a_least_number_hides() -> None:
    q, k, v = random_qkv()
    sinks = torch.zeros(1, HEADS, 1, 1)

    def program(s: Scores) -> None:
        s.add(added(triangle(offset=-2), LEAST))

    seen = with_output(call_of(program, (q, k, v)), torch.zeros(BATCH, HEADS, QUERIES, KEYS))
    seen = call(replace(seen.operands, sinks=lambda: sinks))
    assert float(seen.weights.dense()[:, :, :2].abs().max()) == 0


def test_a_mask_after_the_softmax_that_hides_the_same_leaves_padded_rows_empty() -> None:
    """DeBERTa fills with the least number before its softmax, and with 0 after it."""
    q, k, v = random_qkv(queries=KEYS)
    keys = real([KEYS, KEYS - 4])
    hidden = ~(keys & keys.mT)

    def program(s: Scores) -> None:
        s.multiply(0.3)
        s.fill(hidden, LEAST)

    weights = softmax_of(program, q, k, torch.float64).masked_fill(hidden, 0.0)
    fill = Operation("fill", lambda: hidden, number=0.0)
    seen = with_output(call_of(program, (q, k, v)), weights, after=(fill,))
    assert seen.form.least
    agree(seen.weights.dense(), weights, NEAR)
    agree(seen.weights.dense()[1, :, -4:], torch.zeros(HEADS, 4, KEYS), 0)


@pytest.mark.parametrize("program", [causal, curbed], ids=lambda p: p.__name__)
@pytest.mark.parametrize("kind", ["fill", "where", "multiply"])
def test_what_is_taken_after_the_softmax_is_missing_from_the_row(
    program: object, kind: str
) -> None:
    q, k, v = random_qkv()
    taken = torch.rand(BATCH, HEADS, QUERIES, KEYS) < 0.3
    left = torch.rand(BATCH, 1, QUERIES, KEYS) if kind == "multiply" else (~taken).float()
    weights = softmax_of(program, q, k, torch.float64) * left
    after = {
        "fill": Operation("fill", lambda: taken, number=0.0),
        "where": Operation("where", lambda: ~taken, other=lambda: torch.zeros(1, 1, 1, 1)),
        "multiply": Operation("multiply", lambda: left),
    }[kind]
    seen = with_output(call_of(program, (q, k, v)), weights, after=(after,))
    agree(seen.weights.dense(), weights, NEAR)
    agree(seen.weights @ torch.ones(BATCH, HEADS, KEYS, 1), weights.sum(-1, keepdim=True), NEAR)
    assert seen.error_eps < 32  # ln(1 − share) of a sink costs a few places more


def test_a_head_that_is_switched_off_keeps_its_weights() -> None:
    q, k, v = random_qkv()
    gain = torch.tensor([1.0, 0, 1, 2, 1, 0.5])[None, :, None, None]
    weights = softmax_of(causal, q, k, torch.float64)
    steps = (Operation("multiply", lambda: gain), Operation("multiply", number=0.5))
    seen = with_output(call_of(causal, (q, k, v)), weights * gain * 0.5, after=steps)
    agree(seen.weights.dense(), weights, NEAR)
    assert seen.error_eps < 16


@pytest.mark.parametrize("number", [-0.5, 1.5])
def test_weights_that_are_no_shares_are_refused(number: float) -> None:
    factors = torch.full((1, 1, QUERIES, KEYS), 0.5)
    factors[..., 2] = number
    after = Operation("multiply", lambda: factors)
    seen = call_of(causal, random_qkv(), after=(after,))
    with pytest.raises(RecordingError, match="are no weights"):
        seen.weights  # noqa: B018


def test_the_noise_of_dropout_is_part_of_the_output_and_not_of_the_weights() -> None:
    q, k, v = random_qkv()
    noise = (torch.rand(BATCH, HEADS, QUERIES, KEYS) < 0.8) / 0.8
    weights = softmax_of(causal, q, k, torch.float64)
    seen = with_output(
        call_of(causal, (q, k, v)), weights * noise, noise=lambda: noise, dropout=0.2
    )
    agree(seen.weights.dense(), weights, NEAR)
    assert seen.error_eps < 16


def test_dropout_that_a_kernel_keeps_to_itself_leaves_the_error_unknown() -> None:
    seen = call_of(causal, random_qkv(), dropout=0.1)
    assert seen.error != seen.error


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_the_error_is_judged_by_the_precision_of_the_output(dtype: torch.dtype) -> None:
    q, k, v = (tensor.to(dtype) for tensor in random_qkv())
    program = causal
    scores = Scores(q.double() @ repeated(k).double().mT)
    program(scores)
    output = (scores.x.softmax(-1) @ repeated(v).double()).to(dtype)
    seen = call(Operands(q, k, v, output, tuple(scores.operations)))
    assert seen.error_eps < 16
    assert seen.error < 16 * torch.finfo(dtype).eps


@pytest.mark.parametrize(
    "fault",
    [
        lambda o: replace(o, v=o.v.flip(1)),
        lambda o: replace(o, k=o.k.flip(2)),
        lambda o: replace(o, q=o.q.roll(1, 1)),
        lambda o: replace(o, scores=o.scores[:1]),
        lambda o: replace(o, scores=(Operation("multiply", number=0.41), *o.scores[1:])),
        lambda o: replace(o, output=o.output.clone().index_fill(2, torch.tensor([3]), torch.nan)),
        lambda o: replace(o, output=o.output * 1.001),
    ],
    ids=["values", "keys", "heads", "mask", "scale", "NaN", "output"],
)
def test_the_error_shows_what_was_recorded_wrongly(fault: object) -> None:
    right = call_of(causal, random_qkv())
    assert right.error_eps < 16
    wrong = call(fault(right.operands))
    assert not wrong.error_eps < 100
