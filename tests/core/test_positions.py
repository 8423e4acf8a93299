"""Sinusoidal positions, entry by entry from the formula of the paper."""

import math

import pytest
import torch

from qkv.core.positions import sinusoidal, waves
from qkv.errors import ArgumentError
from tests.reference import agree, array


def formula(p: int, column: int, n_embed: int, base: float = 10_000.0) -> float:
    angle = p / base ** ((column - column % 2) / n_embed)
    return math.cos(angle) if column % 2 else math.sin(angle)


@pytest.mark.parametrize(("tokens", "n_embed"), [(3, 2), (5, 8), (7, 5), (4, 4), (2, 1)])
@pytest.mark.parametrize(("first", "base"), [(0, 10_000.0), (11, 100.0)])
def test_even_columns_are_sines_and_odd_ones_cosines(
    tokens: int, n_embed: int, first: int, base: float
) -> None:
    wanted = [
        [formula(p, column, n_embed, base) for column in range(n_embed)]
        for p in range(first, first + tokens)
    ]
    agree(sinusoidal(tokens, n_embed, first=first, base=base, dtype=torch.float64), wanted, 1e-12)


def test_the_first_position_is_zero_one_zero_one() -> None:
    agree(sinusoidal(1, 4), [[0, 1, 0, 1]], 0)


def test_text_that_goes_on_continues_the_positions() -> None:
    whole = sinusoidal(9, 6)
    agree(sinusoidal(4, 6, first=5), array(whole[5:]), 0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_long_position_is_exact_in_any_precision(dtype: torch.dtype) -> None:
    p = 100_003
    row = sinusoidal(1, 6, first=p, dtype=dtype)
    assert row.dtype == dtype
    agree(row, [[formula(p, column, 6) for column in range(6)]], torch.finfo(dtype).eps)


def test_no_tokens_give_no_rows_and_the_device_is_kept(shape_device: torch.device) -> None:
    assert sinusoidal(0, 4).shape == (0, 4)
    rows = sinusoidal(3, 4, device=shape_device)
    assert rows.device.type == shape_device.type
    assert rows.shape == (3, 4)


@pytest.mark.parametrize(("tokens", "n_embed"), [(-1, 4), (3, 0), (3, -2)])
def test_sizes_that_cannot_be_are_named(tokens: int, n_embed: int) -> None:
    why = f"tokens is {tokens} and n_embed is {n_embed}; wanted at least 0 and at least 1"
    with pytest.raises(ArgumentError, match=why):
        sinusoidal(tokens, n_embed)


@pytest.mark.parametrize("n_embed", [1, 2, 5, 8])
def test_halves_are_all_sines_before_all_cosines(n_embed: int) -> None:
    order = [*range(0, n_embed, 2), *range(1, n_embed, 2)]
    wanted = [[formula(p, column, n_embed) for column in order] for p in range(3, 7)]
    rows = sinusoidal(4, n_embed, first=3, layout="halves", dtype=torch.float64)
    agree(rows, wanted, 1e-12)


def test_hugging_faces_marian_has_them_in_halves() -> None:
    from transformers.models.marian.modeling_marian import MarianSinusoidalPositionalEmbedding

    theirs = MarianSinusoidalPositionalEmbedding(11, 6).create_weight()
    agree(sinusoidal(11, 6, layout="halves"), array(theirs), 1e-6)


@pytest.mark.parametrize("layout", ["interleaved", "halves"])
def test_any_positions_have_the_row_of_their_number(layout: str) -> None:
    positions = torch.tensor([[5, 0, 7], [7, 7, 1]])
    table = sinusoidal(8, 5, base=100.0, layout=layout, dtype=torch.float64)
    rows = waves(positions, 5, base=100.0, layout=layout, dtype=torch.float64)
    agree(rows, array(table[positions]), 0)
