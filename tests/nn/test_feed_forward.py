"""The feed-forward network by formula, in float64."""

import pytest
import torch
from torch import Tensor

from qkv.errors import ArgumentError
from qkv.nn.feed_forward import ACTIVATIONS, FeedForward
from tests.nn.test_layers import scrambled
from tests.reference import agree, array

BENDS = {
    "gelu": lambda x: x * (1 + torch.erf(x / 2**0.5)) / 2,
    "gelu_tanh": lambda x: x * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (x + 0.044715 * x**3))) / 2,
    "relu": lambda x: x * (x > 0),
    "silu": lambda x: x / (1 + torch.exp(-x)),
}


def by_hand(network: FeedForward, x: Tensor, activation: str) -> Tensor:
    def project(x: Tensor, linear: torch.nn.Linear) -> Tensor:
        y = x @ linear.weight.T
        return y if linear.bias is None else y + linear.bias

    hidden = BENDS[activation](project(x, network.W1))
    if network.W3 is not None:
        hidden = hidden * project(x, network.W3)
    return project(hidden, network.W2)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("sizes", [(3, 5), (4, 4)])
def test_every_element_is_the_formulas(
    activation: str, gated: bool, bias: bool, sizes: tuple[int, int]
) -> None:
    network = scrambled(
        FeedForward(*sizes, activation=activation, gated=gated, bias=bias, dtype=torch.float64)
    )
    x = torch.randn(2, 7, sizes[0], dtype=torch.float64, requires_grad=True)
    wanted = by_hand(network, x, activation)
    agree(network(x), array(wanted), 1e-12)
    with torch.no_grad():
        agree(network(x), array(wanted), 1e-12)
    (got,) = torch.autograd.grad(network(x).square().sum(), x)
    agree(got, array(torch.autograd.grad(wanted.square().sum(), x)[0]), 1e-9)
    assert [n for n, _ in network.named_parameters() if "bias" in n] == (
        ["W1.bias", "W2.bias", "W3.bias"][: 3 if gated else 2] if bias else []
    )


def test_every_activation_has_a_formula_here() -> None:
    assert set(BENDS) == set(ACTIVATIONS)


def test_an_unknown_activation_is_named_with_those_that_are_known() -> None:
    with pytest.raises(ArgumentError) as error:
        FeedForward(3, 5, activation="swish")
    assert str(error.value) == "activation is 'swish'; known: gelu, gelu_tanh, relu, silu"
