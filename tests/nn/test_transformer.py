"""The encoder as a chain of layers."""

import copy

import pytest
import torch
from torch import Tensor

from qkv.core.mask import Mask
from qkv.nn.layers import EncoderLayer
from qkv.nn.transformer import Encoder
from tests.nn.test_layers import close, peer, scrambled

SIZES = [
    pytest.param((2, 7, 15, 3, 11, 5), id="unequal primes"),  # …, layers
    pytest.param((3, 3, 9, 3, 9, 3), id="equal"),
]


def drawn(sizes: tuple[int, ...]) -> tuple[Encoder, Tensor]:
    batch, tokens, n_embed, heads, hidden, count = sizes
    layers = (EncoderLayer(n_embed, heads, hidden, dtype=torch.float64) for _ in range(count))
    x = torch.randn(batch, tokens, n_embed, dtype=torch.float64)
    return scrambled(Encoder(layers)), x


@pytest.mark.parametrize("sizes", SIZES)
def test_the_states_are_the_input_and_what_each_layer_makes_of_it(sizes: tuple[int, ...]) -> None:
    encoder, x = drawn(sizes)
    mask = torch.randn(sizes[0], sizes[3], sizes[1], sizes[1], dtype=torch.float64)
    expected = [x]
    for layer in encoder.layers:
        expected.append(peer(layer)(expected[-1], src_mask=mask.flatten(0, 1)))
    states = list(encoder.states(x, Mask.bias(mask)))
    assert len(states) == 1 + sizes[5]
    for ours, theirs in zip(states, expected, strict=True):
        close(ours, theirs)
    close(encoder(x, Mask.bias(mask)), expected[-1])


def test_observed_or_not_the_last_state_is_the_same_bit_for_bit() -> None:
    encoder, x = drawn((2, 7, 15, 3, 11, 5))
    assert torch.equal(encoder(x, True), list(encoder.states(x, True))[-1])


def test_an_encoder_without_layers_gives_what_it_takes() -> None:
    x = torch.randn(2, 3)
    assert torch.equal(Encoder([])(x), x)


def test_a_copy_is_independent() -> None:
    encoder, x = drawn((3, 3, 9, 3, 9, 3))
    before = encoder(x)
    scrambled(copy.deepcopy(encoder))
    assert torch.equal(encoder(x), before)


def test_a_state_dict_can_be_read_back() -> None:
    encoder, x = drawn((3, 3, 9, 3, 9, 3))
    other, _ = drawn((3, 3, 9, 3, 9, 3))
    assert not torch.equal(other(x), encoder(x))
    other.load_state_dict(encoder.state_dict())
    assert torch.equal(other(x), encoder(x))


@pytest.mark.usefixtures("as_shipped")
def test_it_exports_as_one_graph() -> None:
    encoder, x = drawn((2, 7, 15, 3, 11, 2))
    exported = torch.export.export(encoder.eval(), (x,), strict=True)
    close(exported.module()(x), encoder(x))
