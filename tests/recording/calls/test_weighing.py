"""Weights recovered from operands: sinks, dropout, and what came after the softmax."""

from dataclasses import replace
from math import inf

import pytest
import torch
from torch import Tensor

from qkv.errors import RecordingError
from qkv.recording.calls.call import Call
from qkv.recording.calls.operands import Operands, Operation
from qkv.recording.calls.weighing import weights_of
from qkv.recording.watching import watch
from tests.recording.programs import (
    BATCH,
    HEADS,
    KEYS,
    LEAST,
    QUERIES,
    Largest,
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

    scores = Scores(q.double() @ repeated(k).double().mT)
    program(scores)
    beside = sinks.double().expand(BATCH, HEADS, QUERIES, -1)
    weights = torch.cat([scores.x, beside], -1).softmax(-1)[..., :KEYS]
    seen = with_output(call_of(program, (q, k, v)), weights, sinks=lambda: sinks)
    found = seen.weights.dense()
    assert float(found[:, :, :2].abs().max()) == 0
    agree(found, weights, NEAR)
    assert float(found[:, :, 2:].sum(-1).min()) > 0.1  # the other rows keep theirs


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


def test_a_nan_that_disagrees_is_as_far_as_can_be_and_no_unknown() -> None:
    right = call_of(causal, random_qkv())
    one = right.output.clone().index_fill(2, torch.tensor([3]), torch.nan)
    for output in (one, torch.full_like(one, torch.nan)):
        assert call(replace(right.operands, output=output)).error == inf


def test_rows_that_are_nan_because_they_see_nothing_are_no_error_even_if_all_are() -> None:
    hidden = torch.ones(1, 1, QUERIES, KEYS, dtype=torch.bool)
    assert call_of(lambda s: s.fill(hidden, -inf), random_qkv()).error == 0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_scale_of_each_head_does_not_round_half_precision_again(dtype: torch.dtype) -> None:
    """SwinV2: cosine similarities times a learned number."""
    q, k, v = (torch.nn.functional.normalize(x, dim=-1).to(dtype) for x in random_qkv())
    factor = (torch.rand(1, HEADS, 1, 1) * 30 + 10).to(dtype)
    weights = softmax_of(lambda s: s.multiply(factor), q, k, torch.float64)
    operations = (Operation("multiply", lambda: factor),)
    seen = call(Operands(q, k, v, (weights @ repeated(v).double()).to(dtype), operations))
    assert seen.form.plain
    agree(seen.weights.dense(), weights, NEAR)


def test_the_only_key_can_be_taken_away_after_the_softmax() -> None:
    q, k, v = random_qkv(keys=1)
    left = torch.tensor([1.0, 0.0]).view(BATCH, 1, 1, 1)
    after = Operation("multiply", lambda: left)
    seen = with_output(
        call_of(lambda s: s.multiply(0.4), (q, k, v)),
        left.expand(BATCH, HEADS, QUERIES, 1),
        after=(after,),
    )
    agree(seen.weights.dense(), left.expand(BATCH, HEADS, QUERIES, 1), 0)
    assert seen.error_eps < 16


def test_a_head_that_is_switched_off_over_one_key_keeps_its_weight() -> None:
    gain = torch.tensor([1.0, 0, 1, 1, 0, 1])[None, :, None, None]
    after = Operation("multiply", lambda: gain)
    seen = call_of(lambda s: s.multiply(0.4), random_qkv(keys=1), after=(after,))
    agree(seen.weights.dense(), torch.ones(BATCH, HEADS, QUERIES, 1), 0)


def test_a_bias_as_low_as_what_is_filled_in_leaves_that_its_weight() -> None:
    """Beside a bias of −687 a similarity is no further off than the −687 that are filled in."""
    q, k, v = random_qkv(peak=40.0)
    q[:, :, 3] = 0  # all of its keys are at −687 then, those filled in among them
    bias = torch.zeros(1, 1, QUERIES, 1)
    bias[..., 3, :] = -687.0

    def program(s: Scores) -> None:
        s.add(bias.expand(1, 1, QUERIES, KEYS))
        s.fill(~triangle(), -687.0)

    norms = [float(x.norm(dim=-1).max()) for x in (q, k)]
    assert 687 / 2 - 104 < norms[0] * norms[1] < 687 - 104  # no mask is added, one is filled in
    seen = call_of(program, (q, k, v))
    agree(seen.weights.dense(), softmax_of(program, q, k, torch.float64), 1e-4)
    assert seen.error_eps < 64  # eps times logits of some hundreds


def test_shares_of_single_weights_are_read_in_blocks() -> None:
    n = 1100
    q, k, v = torch.randn(3, 1, 2, n, 4)
    left = torch.rand(1, 1, n, n)
    seen = call(Operands(q, k, v, q, (), after=(Operation("multiply", lambda: left),)))
    operands, form = seen.operands, seen.form
    with Largest(left) as largest, torch.no_grad():
        weights_of(operands, form).received()
    assert 0 < largest.numbers < 2 * n * n / 2


def test_what_is_taken_from_each_head_is_compared_in_blocks() -> None:
    n = 1100
    q, k, v = torch.randn(3, 2, 4, n, 4)
    visible = triangle(n, n)
    taken = (~visible).repeat(1, 4, 1, 1).expand(2, 4, n, n)
    fill = Operation("fill", lambda: taken, 0.0)
    seen = call(Operands(q, k, v, q, (Operation("fill", lambda: ~visible, -inf),), after=(fill,)))
    operands, form = seen.operands, seen.form
    with Largest(taken) as largest, torch.no_grad():
        weights_of(operands, form)
    assert 0 < largest.numbers < n * n


def test_what_multiplies_a_whole_row_is_in_the_output_and_not_in_the_weights() -> None:
    q, k, v = (repeated(x) if x.shape[1] < HEADS else x for x in random_qkv())
    with torch.no_grad(), watch() as seen:
        weights = torch.softmax(q @ k.mT, -1)
        (weights * 0.5) @ v
    call = next(iter(seen))
    agree(call.weights.dense(), weights, 1e-5)
    agree(call.weights @ call.v, 2 * call.output, 1e-5)
    assert call.error_eps < 16  # of the whole recomputation, the factor included
