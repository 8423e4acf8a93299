"""Rotary positions against complex numbers, and against Hugging Face's frequencies."""

import math

import pytest
import torch
from torch import Tensor

from qkv.errors import ArgumentError
from qkv.nn.rotary import Rotary
from tests.reference import agree, array

LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 512,
}  # fmt: skip
LINEAR = {"rope_type": "linear", "factor": 3.0}
SHAPES = [(2, 3, 5, 8), (4, 4, 4, 4), (1, 7, 2), (3, 5, 6)]  # …, heads, tokens, d_k


def turned(x: Tensor, positions: Tensor, rotary: Rotary) -> Tensor:
    """Multiply by exp(i p θ) what stands in a plane, in complex128."""
    n = rotary.turned
    theta = torch.tensor([rotary.base ** (-2 * i / n) for i in range(n // 2)], dtype=torch.float64)
    head, rest = x[..., :n].double(), x[..., n:].double()
    if rotary.layout == "halves":
        plane = torch.complex(head[..., : n // 2], head[..., n // 2 :])
    else:
        plane = torch.complex(head[..., 0::2].clone(), head[..., 1::2].clone())
    angle = positions.double()[..., None] * theta
    if angle.dim() > 2:
        angle = angle[..., None, :, :]
    y = plane * torch.polar(torch.ones_like(angle), angle)
    pieces = (y.real, y.imag)
    joined = torch.cat(pieces, -1) if rotary.layout == "halves" else torch.stack(pieces, -1)
    return torch.cat((joined.reshape(head.shape), rest), -1)


@pytest.mark.parametrize("layout", ["halves", "pairs"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("part", [None, 2])
@pytest.mark.parametrize(("first", "base"), [(0, 10_000.0), (29, 500.0)])
def test_two_values_turn_as_a_complex_number(
    layout: str, shape: tuple[int, ...], part: int | None, first: int, base: float
) -> None:
    rotary = Rotary(shape[-1], base, layout, part)
    x = torch.randn(shape, dtype=torch.float64)
    positions = torch.arange(first, first + shape[-2])
    y = rotary.turn(x, rotary.angles(positions, torch.float64))
    agree(y, array(turned(x, positions, rotary)), 2e-5)  # angles are float32


@pytest.mark.parametrize("layout", ["halves", "pairs"])
@pytest.mark.parametrize("part", [None, 4])
def test_the_turning_itself_is_exact(layout: str, part: int | None) -> None:
    rotary = Rotary(6, 50.0, layout, part)
    x = torch.randn(2, 3, 5, 6, dtype=torch.float64)
    angles = rotary.angles(torch.arange(5), torch.float64)
    n = rotary.turned
    first, second = (range(n // 2), range(n // 2, n)) if layout == "halves" else (
        range(0, n, 2), range(1, n, 2),
    )  # fmt: skip
    wanted = x.clone()
    for a, b in zip(first, second, strict=True):
        cos, sin = angles.cos[:, a], angles.sin[:, a]
        wanted[..., a] = x[..., a] * cos - x[..., b] * sin
        wanted[..., b] = x[..., b] * cos + x[..., a] * sin
    agree(rotary.turn(x, angles), array(wanted), 1e-15)


@pytest.mark.parametrize("layout", ["halves", "pairs"])
def test_every_row_of_a_batch_has_its_own_positions(layout: str) -> None:
    rotary = Rotary(4, layout=layout)
    x = torch.randn(2, 3, 5, 4, dtype=torch.float64)
    positions = torch.tensor([[0, 1, 2, 3, 4], [0, 0, 0, 7, 3]])
    angles = rotary.angles(positions, torch.float64)
    assert angles.cos.shape == angles.sin.shape == (2, 1, 5, 4)
    y = rotary.turn(x, angles)
    agree(y, array(turned(x, positions, rotary)), 2e-6)
    for row in range(2):
        alone = rotary.turn(x[row], rotary.angles(positions[row], torch.float64))
        agree(y[row], array(alone), 0)


@pytest.mark.parametrize("layout", ["halves", "pairs"])
@pytest.mark.parametrize("part", [None, 4])
@pytest.mark.parametrize("rows", [1, 2])
def test_in_training_it_is_the_same_and_its_gradient_is_turned_back(
    layout: str, part: int | None, rows: int
) -> None:
    rotary = Rotary(6, layout=layout, part=part)
    positions = torch.randint(0, 99, (rows, 5)).squeeze(0)
    angles = rotary.angles(positions, torch.float64)
    x = torch.randn(2, 5, 3, 6).double().transpose(1, 2)
    wanted = rotary.turn(x, angles)
    x.requires_grad_()
    agree(rotary.turn(x, angles), array(wanted), 1e-15)
    assert torch.autograd.gradcheck(lambda x: rotary.turn(x, angles), (x,))
    assert torch.autograd.gradgradcheck(lambda x: rotary.turn(x, angles), (x,))
    change = torch.randn(2, 3, 5, 6).double()
    (back,) = torch.autograd.grad(rotary.turn(x, angles), x, change)
    agree(rotary.turn(back, angles), array(change), 1e-6)  # turning keeps lengths and angles


def test_two_batch_axes_have_their_own_positions() -> None:
    rotary = Rotary(4)
    x, positions = torch.randn(2, 2, 3, 5, 4).double(), torch.randint(0, 9, (2, 2, 5))
    y = rotary.turn(x, rotary.angles(positions, torch.float64))
    agree(y, array(turned(x, positions, rotary)), 2e-6)


def test_position_zero_changes_nothing_and_lengths_stay() -> None:
    rotary, x = Rotary(8, layout="pairs"), torch.randn(3, 7, 8, dtype=torch.float64)
    y = rotary.turn(x, rotary.angles(torch.arange(7), torch.float64))
    agree(y[:, 0], array(x[:, 0]), 0)
    agree(y.norm(dim=-1), array(x.norm(dim=-1)), 1e-6)
    assert not torch.allclose(x[:, 1:], y[:, 1:], atol=0.01)


@pytest.mark.parametrize("d_k", [2, 8])
def test_halves_are_pairs_in_another_order(d_k: int) -> None:
    order = [*range(0, d_k, 2), *range(1, d_k, 2)]  # value 2i of the pairs is value i of halves
    x, positions = torch.randn(2, 5, d_k, dtype=torch.float64), torch.arange(5)
    halves, pairs = Rotary(d_k, layout="halves"), Rotary(d_k, layout="pairs")
    a = halves.turn(x[..., order], halves.angles(positions, torch.float64))
    b = pairs.turn(x, pairs.angles(positions, torch.float64))
    agree(a, array(b[..., order]), 1e-15)


@pytest.mark.parametrize("layout", ["halves", "pairs"])
def test_a_dot_product_depends_on_the_distance_only(layout: str) -> None:
    rotary = Rotary(6, layout=layout)
    q, k = torch.randn(2, 1, 1, 6, dtype=torch.float64)

    def product(i: int, j: int) -> float:
        ends = ((q, i), (k, j))
        a, b = (rotary.turn(x, rotary.angles(torch.tensor([p]), torch.float64)) for x, p in ends)
        return (a * b).sum().item()

    for i, j in ((3, 1), (40, 38), (101, 99)):
        assert product(i, j) == pytest.approx(product(2, 0), abs=1e-4)
    assert product(0, 2) != pytest.approx(product(2, 0), abs=1e-3)
    assert product(5, 2) != pytest.approx(product(2, 0), abs=1e-3)


@pytest.mark.parametrize("scaling", [None, LINEAR, LLAMA3, {**LLAMA3, "factor": 32.0}])
@pytest.mark.parametrize(("d_k", "base"), [(64, 500_000.0), (14, 500.0)])
def test_frequencies_are_hugging_faces(
    scaling: dict[str, object] | None, d_k: int, base: float
) -> None:
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    parameters = {"rope_type": "default", **(scaling or {}), "rope_theta": base}
    config = LlamaConfig(
        hidden_size=d_k * 2, num_attention_heads=2, head_dim=d_k, rope_parameters=parameters,
        max_position_embeddings=4096,
    )  # fmt: skip
    kind = parameters["rope_type"]
    theirs = LlamaRotaryEmbedding(config)
    if kind != "default":
        agree(theirs.inv_freq, array(ROPE_INIT_FUNCTIONS[kind](config, "cpu")[0]), 0)
    rotary = Rotary(d_k, base, scaling=scaling)
    torch.testing.assert_close(rotary.frequencies(), theirs.inv_freq, rtol=2e-6, atol=0)
    positions = torch.tensor([[0, 1, 2, 511, 513], [7, 8, 9, 10, 11]])
    x = torch.randn(2, 5, d_k)
    ours, (cos, sin) = rotary.angles(positions), theirs(x, positions)
    agree(ours.cos[:, 0], array(cos), 2e-4)
    agree(ours.sin[:, 0], array(sin), 2e-4)


def test_llama3_leaves_fast_hands_and_slows_slow_ones() -> None:
    plain, scaled = Rotary(64).frequencies(), Rotary(64, scaling=LLAMA3).frequencies()
    turns = 512 * plain / (2 * math.pi)
    fast, slow = turns > 4, turns < 1
    agree(scaled[fast], array(plain[fast]), 0)
    agree(scaled[slow], array(plain[slow] / 8), 1e-9)
    between = scaled[~fast & ~slow] / plain[~fast & ~slow]
    assert ((between > 1 / 8) & (between < 1)).all()
    assert len(between)


def test_angles_are_given_in_the_dtype_and_on_the_device(shape_device: torch.device) -> None:
    angles = Rotary(4).angles(torch.arange(3, device=shape_device), torch.bfloat16)
    for part in angles:
        assert (part.dtype, part.device.type) == (torch.bfloat16, shape_device.type)
        assert part.shape == (3, 4)


REFUSED = [
    ({"d_k": 5}, "rotary turns 5 of 5 values; wanted an even part"),
    ({"d_k": 4, "part": 3}, "rotary turns 3 of 4 values; wanted an even part"),
    ({"d_k": 4, "part": 6}, "rotary turns 6 of 4 values; wanted an even part"),
    ({"d_k": 4, "part": 0}, "rotary turns 0 of 4 values; wanted an even part"),
    ({"d_k": 4, "scaling": {"rope_type": "yarn"}}, "rope_type is 'yarn'; known: default, linear,"),
    (
        {"d_k": 4, "scaling": {"type": "linear"}},
        "rope scaling says factor None; wanted a number above 0",
    ),
    (
        {"d_k": 4, "scaling": {**LLAMA3, "low_freq_factor": True}},
        "rope scaling says low_freq_factor True; wanted a number above 0",
    ),
    ({"d_k": 4, "base": 0.0}, "base is 0.0; wanted a number above 0"),
    ({"d_k": 4, "base": -1e4}, "base is -10000.0; wanted a number above 0"),
    ({"d_k": 4, "base": float("nan")}, "base is nan; wanted a number above 0"),
    ({"d_k": 4, "base": float("inf")}, "base is inf; wanted a number above 0"),
    ({"d_k": 4, "layout": "neox"}, "layout is 'neox'; wanted 'halves' or 'pairs'"),
]


@pytest.mark.usefixtures("as_shipped")
@pytest.mark.parametrize(("arguments", "why"), REFUSED)
def test_what_cannot_turn_is_refused(arguments: dict[str, object], why: str) -> None:
    with pytest.raises(ArgumentError) as error:
        Rotary(**arguments)
    assert str(error.value).startswith(why)
