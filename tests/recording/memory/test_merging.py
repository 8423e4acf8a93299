"""One program for all rows of a generation, out of what was done in each step."""

import math

import pytest
import torch

from qkv.errors import RecordingError
from qkv.recording.calls.operands import Operands, Operation
from qkv.recording.calls.program import Program
from qkv.recording.memory.merging import Step, merged
from tests.recording.generations import Sequence, sequence


def logits(operands: Operands) -> torch.Tensor:
    program = Program.of(operands)
    return program.tile(range(program.shape[-2]), range(program.shape[-1]))


def step(whole: Sequence, rows: range, keys: range, *scores: Operation, **others: object) -> Step:
    q = whole.q[..., rows.start : rows.stop, :]
    k, v = (x[..., keys.start : keys.stop, :] for x in (whole.k, whole.v))
    output = torch.zeros(*q.shape[:-1], v.shape[-1], dtype=q.dtype)
    return Step(Operands(q, k, v, output, scores, **others), keys.start, len(keys))


def test_an_operation_of_one_step_does_nothing_in_the_rows_of_another() -> None:
    whole, bias = sequence(7), torch.randn(1, 4, 1, 7, dtype=torch.float64)
    steps = [
        step(whole, range(6), range(6), Operation("multiply", number=0.5)),
        step(
            whole,
            range(6, 7),
            range(7),
            Operation("multiply", number=0.5),
            Operation("add", lambda: bias, 3.0),
        ),
    ]
    together = logits(merged(steps, whole.k, whole.v))
    plain = whole.q @ whole.k.repeat_interleave(2, 1).mT / 2
    torch.testing.assert_close(together[..., :6, :6], plain[..., :6, :6])
    torch.testing.assert_close(together[..., 6:, :], plain[..., 6:, :] + 3 * bias)
    assert (together[..., :6, 6] == -math.inf).all()  # a key that those rows did not have


def test_a_maximum_a_product_and_a_choice_keep_to_their_rows() -> None:
    whole = sequence(6)
    limit, factor = (torch.randn(2, 1, 2, 6, dtype=torch.float64) for _ in range(2))
    keep = torch.rand(1, 1, 2, 6) > 0.5
    bent = (
        Operation("maximum", lambda: limit),
        Operation("multiply", lambda: factor),
        Operation("where", lambda: keep, other=lambda: torch.tensor(-7.0).view(1, 1, 1, 1)),
    )
    steps = [step(whole, range(4), range(6)), step(whole, range(4, 6), range(6), *bent)]
    together = logits(merged(steps, whole.k, whole.v))
    plain = whole.q @ whole.k.repeat_interleave(2, 1).mT
    last = torch.where(keep, torch.maximum(plain[..., 4:, :], limit) * factor, -7.0)
    torch.testing.assert_close(together[..., :4, :], plain[..., :4, :])
    torch.testing.assert_close(together[..., 4:, :], last)


def test_one_number_a_head_stays_one_number_a_head() -> None:
    whole, each = sequence(5), torch.rand(1, 4, 1, 1, dtype=torch.float64)
    scaled = Operation("multiply", lambda: each)
    steps = [step(whole, range(4), range(5), scaled), step(whole, range(4, 5), range(5), scaled)]
    together = merged(steps, whole.k, whole.v)
    operand = together.scores[0].operand
    assert operand is not None
    assert operand().shape == (1, 4, 1, 1)


def test_a_soft_cap_between_masks_stays_between_them() -> None:
    whole, hidden = sequence(6), torch.rand(1, 1, 5, 5) > 0.7
    cap = (Operation("multiply", number=0.2), Operation("tanh"), Operation("multiply", number=5.0))
    steps = [
        step(whole, range(5), range(5), *cap, Operation("fill", lambda: hidden, -math.inf)),
        step(whole, range(5, 6), range(6), *cap),
    ]
    together = logits(merged(steps, whole.k, whole.v))
    capped = 5 * torch.tanh(whole.q @ whole.k.repeat_interleave(2, 1).mT / 5)
    expected = capped.clone()
    expected[..., :5, :5] = capped[..., :5, :5].masked_fill(hidden, -math.inf)
    expected[..., :5, 5] = -math.inf
    torch.testing.assert_close(together, expected)


def test_what_hides_is_one_tensor_where_an_added_mask_can_carry_it() -> None:
    whole = sequence(6)
    triangle = torch.full((5, 5), torch.finfo(torch.float64).min, dtype=torch.float64).triu(1)
    steps = [
        step(whole, range(5), range(5), Operation("add", lambda: triangle[None, None])),
        step(whole, range(5, 6), range(6)),
    ]
    together = merged(steps, whole.k, whole.v)
    assert [operation.kind for operation in together.scores] == ["add"]
    assert together.scores[0].operand is not None
    hidden = together.scores[0].operand()[0, 0] < -1e20
    assert torch.equal(hidden, torch.ones(6, 6, dtype=torch.bool).triu(1))


def test_sinks_are_those_of_each_row() -> None:
    whole = sequence(4)
    sinks = [torch.randn(1, 4, 1, 2), torch.randn(1, 4, 1, 2)]
    steps = [
        step(whole, range(3), range(4), sinks=lambda: sinks[0]),
        step(whole, range(3, 4), range(4), sinks=lambda: sinks[1]),
    ]
    together = merged(steps, whole.k, whole.v)
    assert together.sinks is not None
    found = together.sinks()
    assert torch.equal(found[:, :, :3], sinks[0].expand(1, 4, 3, 2))
    assert torch.equal(found[:, :, 3:], sinks[1])


@pytest.mark.parametrize("missing", [Operation("tanh"), Operation("multiply", number=2.0)])
def test_steps_that_were_bent_in_other_ways_are_refused(missing: Operation) -> None:
    whole = sequence(4)
    steps = [step(whole, range(3), range(4)), step(whole, range(3, 4), range(4), missing)]
    with pytest.raises(RecordingError, match="not every step did the same"):
        merged(steps, whole.k, whole.v)


@pytest.mark.parametrize("first_is_fused", [True, False])
def test_fused_and_written_out_steps_of_one_program_are_one_matrix(first_is_fused: bool) -> None:
    whole, triangle = sequence(4), torch.ones(1, 1, 3, 4).triu(1)
    told = {"empty_is_zero": True, "how": "fused"}, {"how": "written out"}
    first, second = told if first_is_fused else told[::-1]
    causal = Operation("causal")
    hidden = Operation("add", triangle.double, -1e30)
    steps = [
        step(whole, range(3), range(4), causal if first_is_fused else hidden, **first),
        step(whole, range(3, 4), range(4), **second),
    ]
    together = merged(steps, whole.k, whole.v)
    assert not together.empty_is_zero
    assert set(together.how.split(" and ")) == {"fused", "written out"}
    plain = whole.q @ whole.k.repeat_interleave(2, 1).mT
    open_ = torch.ones(4, 4, dtype=torch.bool).tril()
    expected = plain.masked_fill(~open_, -math.inf).softmax(-1)
    torch.testing.assert_close(logits(together).softmax(-1), expected)


@pytest.mark.parametrize("number", [-math.inf, -1e30])
def test_a_number_put_where_a_mask_is_false_keeps_to_its_rows(number: float) -> None:
    whole, keep = sequence(5), torch.tensor([True, False, True, True]).view(1, 1, 1, 4)
    where = Operation("where", lambda: keep, number)
    steps = [
        step(whole, range(4), range(4), where),
        step(whole, range(4, 5), range(5)),
    ]
    together = logits(merged(steps, whole.k, whole.v))
    plain = whole.q @ whole.k.repeat_interleave(2, 1).mT
    torch.testing.assert_close(together[..., 4:, :], plain[..., 4:, :])
    torch.testing.assert_close(together[..., :4, [0, 2, 3]], plain[..., :4, [0, 2, 3]])
    assert (together[..., :4, 1] == number).all()
    assert (together[..., :4, 4] == -math.inf).all()
