"""Contributions of keys, against weight × size of the projected value written out in float64."""

from math import inf

import pytest
import torch
from torch import Tensor

from qkv.errors import ArgumentError
from qkv.recording.calls.contributions import sizes_of
from qkv.recording.watching import watch
from tests.recording.programs import (
    BATCH,
    D_V,
    HEADS,
    KEYS,
    LEAST,
    QUERIES,
    Program,
    Scores,
    added,
    call_of,
    random_qkv,
    real,
    repeated,
    softmax_of,
    triangle,
)
from tests.reference import agree

N_OUT = 9
# float32 and numbers up to about 10.
NEAR = 1e-5


def causal(s: Scores) -> None:
    s.multiply(0.4)
    s.fill(~triangle(), -inf)


def padded_by_least(s: Scores) -> None:
    """Some rows are hidden whole and become uniform."""
    s.multiply(0.4)
    s.add(added(triangle(offset=-2) & real([KEYS, KEYS - 1]), LEAST))


def bent(s: Scores) -> None:
    s.multiply(0.2)
    s.clamp(-1.0, 1.0)


PROGRAMS = pytest.mark.parametrize(
    "program", [causal, padded_by_least, bent], ids=lambda p: p.__name__
)


def written_out(program: Program, qkv: tuple[Tensor, Tensor, Tensor], projection: Tensor) -> Tensor:
    q, k, v = qkv
    values = torch.einsum("bhjv,hvo->bhjo", repeated(v).double(), projection.double())
    sizes = values.square().sum(-1).sqrt()
    return softmax_of(program, q, k, torch.float64) * sizes[:, :, None]


@PROGRAMS
@pytest.mark.parametrize("head", [0, 3, -1])
def test_contributions_are_weight_times_size_of_the_projected_value(
    program: Program, head: int
) -> None:
    qkv, projection = random_qkv(), torch.randn(HEADS, D_V, N_OUT)
    wanted = written_out(program, qkv, projection)[:, [head]]
    found = call_of(program, qkv, projection=lambda: projection).contributions(head)
    assert found.projected
    assert found.shape == (BATCH, 1, QUERIES, KEYS)
    agree(found.dense(), wanted, NEAR)
    agree(found.rows(4), wanted[..., 4, :], NEAR)
    agree(found.tile(range(1, 5), range(3, 9)), wanted[..., 1:5, 3:9], NEAR)
    agree(found.tile(slice(1, 5), slice(None, 9)), wanted[..., 1:5, :9], NEAR)
    agree(found.received(), wanted.sum(-2), NEAR)


@PROGRAMS
def test_the_largest_are_those_of_the_whole_matrix(program: Program) -> None:
    qkv, projection = random_qkv(), torch.randn(HEADS, D_V, N_OUT)
    wanted = written_out(program, qkv, projection)[:, [2]]
    top = call_of(program, qkv, projection=lambda: projection).contributions(2).top(3)
    agree(top.weights, wanted.topk(3).values, NEAR)
    agree(wanted.gather(-1, top.keys), wanted.topk(3).values, NEAR)


def test_one_example_is_a_part_of_the_batch() -> None:
    seen = call_of(causal, random_qkv())
    agree(seen.contributions(1, batch=1).dense(), seen.contributions(1).dense()[1:], 0)


def test_without_a_projection_the_sizes_are_those_of_the_values() -> None:
    qkv = random_qkv()
    seen = call_of(causal, qkv, projection=lambda: None)
    found = seen.contributions(5)
    assert not found.projected
    identity = torch.eye(D_V).expand(HEADS, D_V, D_V)
    agree(found.dense(), written_out(causal, qkv, identity)[:, [5]], NEAR)


def test_sinks_make_contributions_smaller() -> None:
    sinks = torch.ones(1, HEADS, 1, 1)
    seen = call_of(causal, random_qkv(), sinks=lambda: sinks)
    found = seen.contributions(1)
    agree(found.dense(), seen.weights.dense()[:, [1]] * found.sizes[..., None, :], NEAR)
    agree(found.top(2).weights, found.dense().topk(2).values, NEAR)


@pytest.mark.parametrize("n_out", [2, D_V, 9])
def test_sizes_are_measured_with_as_many_numbers_as_a_value_has(n_out: int) -> None:
    v, projection = torch.randn(2, 1, 8, D_V), torch.randn(D_V, n_out)
    agree(sizes_of(v, projection), (v.double() @ projection.double()).norm(dim=-1), NEAR)


def test_a_matrix_that_is_too_large_is_formed_when_told_to() -> None:
    found = call_of(causal, random_qkv()).contributions(1)
    numbers = BATCH * QUERIES * KEYS
    with pytest.raises(ArgumentError, match=rf"or pass limit={numbers}"):
        found.dense(limit=numbers - 1)
    agree(found.dense(limit=numbers), found.dense(), 0)


def test_it_prints_a_line_and_no_numbers() -> None:
    with torch.no_grad(), watch() as seen:
        q, k, v = torch.randn(3, 2, 4, 7, 8).unbind(0)
        torch.softmax(q @ k.mT, -1) @ v
    assert repr(next(iter(seen)).contributions(1)) == (
        "Contributions(7 × 7, batch 2: weight × ‖v_j‖, as no output projection was seen; ask for "
        "rows, tile, received, top or dense)"
    )
