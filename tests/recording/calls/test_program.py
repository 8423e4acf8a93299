"""A program run again tile by tile, against the same done to the whole."""

from dataclasses import replace

import pytest
import torch

from qkv.recording.calls.operands import Operands, Operation
from qkv.recording.calls.program import LOW, Program, narrow
from tests.recording.programs import (
    BATCH,
    D_V,
    HEADS,
    KEYS,
    KV_HEADS,
    LEAST,
    QUERIES,
    Scores,
    added,
    call,
    random_qkv,
    repeated,
    softmax_of,
    triangle,
)
from tests.reference import agree


def everything(s: Scores) -> None:
    """One operation of each kind, in an order that no form has."""
    s.multiply(0.5)
    s.add(torch.randn(1, HEADS, QUERIES, KEYS, generator=torch.manual_seed(1)), factor=-0.5)
    s.negate()
    s.tanh()
    s.multiply(torch.rand(BATCH, 1, 1, KEYS, generator=torch.manual_seed(2)) + 0.5)
    s.maximum(torch.full((1, 1, 1, 1), -0.9))
    s.clamp(None, 1.2)
    s.where(triangle(offset=6), torch.full((1, 1, QUERIES, KEYS), -0.25))
    s.fill(~triangle(), -3.0)


def operands_of(program: object, dtype: torch.dtype = torch.float32) -> tuple[Operands, Scores]:
    q, k, v = (tensor.to(dtype) for tensor in random_qkv())
    scores = Scores(q.double() @ repeated(k).double().mT)
    program(scores)
    return Operands(q, k, v, q[..., :D_V], tuple(scores.operations)), scores


@pytest.mark.parametrize(
    ("rows", "columns"), [(range(QUERIES), range(KEYS)), (range(2, 5), range(3, 9))]
)
def test_every_operation_is_done_to_any_tile(rows: range, columns: range) -> None:
    operands, scores = operands_of(everything)
    tile = Program.of(operands).tile(rows, columns)
    whole = scores.x[..., rows.start : rows.stop, columns.start : columns.stop]
    agree(tile, whole, 1e-5)


def test_numbers_stand_in_the_place_of_operands() -> None:
    q, k, v = random_qkv()
    condition = triangle()
    operations = (
        Operation("add", number=0.75),
        Operation("where", lambda: condition, number=-2.0),
        Operation("maximum", number=-1.0),
        Operation("multiply", number=3.0),
        Operation("clamp", limits=(-2.5, None)),
        Operation("causal", number=2),
    )
    x = (q @ repeated(k).mT).double() + 0.75
    x = torch.where(condition, x, -2.0).clamp(min=-1.0) * 3
    x = x.clamp(min=-2.5).masked_fill(~triangle(offset=2), -torch.inf)
    program = Program.of(Operands(q, k, v, q[..., :D_V], operations))
    tile = program.tile(range(QUERIES), range(KEYS))
    assert torch.equal(tile.isneginf(), x.isneginf())
    agree(tile.nan_to_num(neginf=0), x.nan_to_num(neginf=0), 1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_computed_as_float32(dtype: torch.dtype) -> None:
    operands, scores = operands_of(everything, dtype)
    program = Program.of(operands)
    assert program.dtype == torch.float32
    agree(program.tile(range(QUERIES), range(KEYS)), scores.x, 1e-5)


def test_float64_stays() -> None:
    operands, scores = operands_of(everything, torch.float64)
    tile = Program.of(operands).tile(range(QUERIES), range(KEYS))
    assert tile.dtype == torch.float64
    agree(tile, scores.x, 1e-13)


def test_rows_hidden_by_a_least_number_are_shifted_and_no_others() -> None:
    visible = triangle(offset=-2)

    def program(s: Scores) -> None:
        s.add(added(visible, LEAST))

    operands, _ = operands_of(program)
    shift = Program.of(operands).shift
    assert (shift[:, :, :2] < LOW).all()
    assert (shift[:, :, 2:] == 0).all()
    assert (Program.of(operands).tile(range(2), range(KEYS)) == 0).all()


def test_what_comes_later_is_done_to_shifted_rows() -> None:
    visible = triangle(offset=-2)
    operands, _ = operands_of(lambda s: s.add(added(visible, LEAST)))
    bias = torch.randn(1, 1, 1, KEYS)
    later = Program.of(operands).then(Operation("add", lambda: bias))
    agree(later.tile(range(1), range(KEYS))[0, 0], bias[0, 0], 0)


@pytest.mark.parametrize("head", range(HEADS))
def test_one_head_of_one_example_is_a_program_again(head: int) -> None:
    operands, scores = operands_of(everything)
    one = narrow(operands, slice(1, 2), slice(head, head + 1))
    assert one.k.shape[:2] == (1, 1)
    assert one.k.data_ptr() == operands.k[1, head * KV_HEADS // HEADS].data_ptr()
    tile = Program.of(one).tile(range(QUERIES), range(KEYS))
    agree(tile[0, 0], scores.x[1, head], 1e-5)


def test_narrowing_cuts_sinks_and_noise_too() -> None:
    operands, _ = operands_of(everything)
    sinks, noise = torch.randn(1, HEADS, 1, 2), torch.rand(BATCH, HEADS, QUERIES, KEYS)
    whole = Operands(
        operands.q, operands.k, operands.v, operands.output, (),
        sinks=lambda: sinks, noise=lambda: noise,
    )  # fmt: skip
    one = narrow(whole, slice(1, 2), slice(3, 4))
    assert one.sinks is not None
    assert one.noise is not None
    assert torch.equal(one.sinks(), sinks[:, 3:4])
    assert torch.equal(one.noise(), noise[1:2, 3:4])


def test_no_queries_have_no_logits() -> None:
    q, k, v = random_qkv(queries=0)
    program = Program.of(Operands(q, k, v, q[..., :D_V], (Operation("multiply", number=2.0),)))
    assert program.shift.shape == (BATCH, HEADS, 0)
    assert program.tile(range(0), range(KEYS)).shape == (BATCH, HEADS, 0, KEYS)


def test_the_reference_is_a_softmax() -> None:
    q, k, _ = random_qkv()
    rows = softmax_of(everything, q, k, torch.float64).sum(-1)
    agree(rows, torch.ones(BATCH, HEADS, QUERIES), 1e-12)


@pytest.mark.parametrize(
    ("dtype", "number"),
    [(torch.float16, torch.finfo(torch.float16).min), (torch.bfloat16, -10000.0)],
)
def test_rows_hidden_by_a_least_number_are_rounded_as_the_model_rounded_them(
    dtype: torch.dtype, number: float
) -> None:
    """What is left of a similarity beside −65504 or −10000 is a matter of its last places."""
    q, k, v = (x.to(dtype) for x in random_qkv(peak=3.0))
    mask = added(triangle(offset=-2), number).to(dtype)
    x = (q @ repeated(k).mT) * 0.5 + mask
    operations = (
        Operation("multiply", number=0.5, dtype=dtype),
        Operation("add", lambda: mask, dtype=dtype),
    )
    operands = Operands(q, k, v, (x.softmax(-1) @ repeated(v)), operations)
    expected = x.double().softmax(-1)
    program = Program.of(operands)
    whole = range(QUERIES), range(KEYS)
    agree(program.tile(*whole)[:, :, :2].double().softmax(-1), expected[:, :, :2], 1e-6)
    rounding = torch.finfo(dtype).eps * float(x[x > -100].abs().max())  # of all other rows
    agree(program.tile(*whole).double().softmax(-1), expected, 2 * rounding)
    assert call(operands).error_eps < 16
    inside = replace(operands, scores=tuple(replace(o, dtype=None) for o in operations))
    wide = Program.of(inside).tile(*whole)[:, :, :2].softmax(-1)
    assert float((wide - expected[:, :, :2]).abs().max()) > 0.1  # as a fused operation has it


def test_one_head_of_a_program_is_that_of_the_whole() -> None:
    operands, scores = operands_of(everything)
    program = Program.of(operands)
    for one in (program.head(1, 4), program.then(Operation("tanh")).head(1, 4)):
        assert one.shape == (1, 1, QUERIES, KEYS)
    agree(program.head(1, 4).tile(range(QUERIES), range(KEYS))[0, 0], scores.x[1, 4], 1e-5)
