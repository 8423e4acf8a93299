"""A layer against PyTorch's own encoder layer with the same weights, in float64."""

from functools import partial
from typing import TypeVar

import pytest
import torch
from torch import Tensor, nn

from qkv.core.mask import Mask
from qkv.errors import ArgumentError, ShapeError
from qkv.nn.layers import EncoderLayer, FeedForward

Module = TypeVar("Module", bound=nn.Module)

SIZES = [
    pytest.param((2, 7, 15, 3, 11), id="unequal primes"),  # batch, tokens, n_embed, heads, hidden
    pytest.param((3, 3, 9, 3, 9), id="equal"),
]


def peer(layer: EncoderLayer, eps: float = 1e-5) -> nn.TransformerEncoderLayer:
    """Return PyTorch's layer with our weights; in training, where it takes no fast path."""
    attention = layer.attention
    theirs = nn.TransformerEncoderLayer(
        attention.n_embed, attention.num_heads, layer.feed_forward.W1.out_features, dropout=0.0,
        activation="gelu", layer_norm_eps=eps, batch_first=True, dtype=torch.float64,
    )  # fmt: skip
    projections = (attention.WQ, attention.WK, attention.WV)
    ours = {
        "self_attn.in_proj_weight": torch.cat([p.weight for p in projections]),
        "self_attn.in_proj_bias": torch.cat([p.bias for p in projections]),
    }
    pairs = {
        "self_attn.out_proj": attention.WO,
        "linear1": layer.feed_forward.W1,
        "linear2": layer.feed_forward.W2,
        "norm1": layer.attention_norm,
        "norm2": layer.feed_forward_norm,
    }
    for name, module in pairs.items():
        ours |= {f"{name}.{kind}": value for kind, value in module.state_dict().items()}
    theirs.load_state_dict({name: value.detach() for name, value in ours.items()})
    return theirs.train()


def scrambled(module: Module) -> Module:
    """Draw every parameter anew: norms start as 1 and 0, which would hide their misuse."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_()
    return module


def drawn(sizes: tuple[int, ...], eps: float = 1e-5) -> tuple[EncoderLayer, Tensor]:
    batch, tokens, n_embed, heads, hidden = sizes
    norm = partial(nn.LayerNorm, eps=eps)
    layer = EncoderLayer(n_embed, heads, hidden, norm=norm, dtype=torch.float64)
    x = torch.randn(batch, tokens, n_embed, dtype=torch.float64, requires_grad=True)
    return scrambled(layer), x


def close(ours: Tensor, theirs: Tensor) -> None:
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-10)


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("eps", [1e-5, 0.5])
def test_a_layer_equals_pytorchs_in_every_element(sizes: tuple[int, ...], eps: float) -> None:
    layer, x = drawn(sizes, eps)
    close(layer(x), peer(layer, eps)(x))


@pytest.mark.parametrize("sizes", SIZES)
def test_a_mask_that_differs_by_head_reaches_every_head(sizes: tuple[int, ...]) -> None:
    layer, x = drawn(sizes)
    batch, tokens, _, heads, _ = sizes
    bias = torch.randn(batch, heads, tokens, tokens, dtype=torch.float64)
    close(layer(x, Mask.bias(bias)), peer(layer)(x, src_mask=bias.flatten(0, 1)))


@pytest.mark.parametrize("sizes", SIZES)
def test_true_is_a_causal_mask(sizes: tuple[int, ...]) -> None:
    layer, x = drawn(sizes)
    after = torch.ones(sizes[1], sizes[1], dtype=torch.bool).triu(1)
    close(layer(x, True), peer(layer)(x, src_mask=after))


@pytest.mark.parametrize("sizes", SIZES)
def test_padding_changes_nothing_for_the_real_tokens(sizes: tuple[int, ...]) -> None:
    layer, x = drawn(sizes)
    length = sizes[1] - 1
    masked = layer(x, Mask.padding([length] * sizes[0]))
    close(masked[:, :length], layer(x[:, :length]))


@pytest.mark.parametrize("sizes", SIZES)
def test_every_gradient_equals_pytorchs(sizes: tuple[int, ...]) -> None:
    layer, x = drawn(sizes)
    theirs = peer(layer)
    outer = torch.randn(sizes[:3], dtype=torch.float64)
    (ours_x,) = torch.autograd.grad((layer(x) * outer).sum(), x, retain_graph=True)
    (theirs_x,) = torch.autograd.grad((theirs(x) * outer).sum(), x)
    close(ours_x, theirs_x)
    (layer(x) * outer).sum().backward()
    (theirs(x) * outer).sum().backward()
    close(layer.attention.WQKV.grad, theirs.self_attn.in_proj_weight.grad)
    close(layer.feed_forward.W1.weight.grad, theirs.linear1.weight.grad)
    close(layer.feed_forward.W2.bias.grad, theirs.linear2.bias.grad)
    close(layer.attention_norm.weight.grad, theirs.norm1.weight.grad)
    close(layer.feed_forward_norm.bias.grad, theirs.norm2.bias.grad)


def test_the_feed_forward_network_uses_the_exact_gelu() -> None:
    network = scrambled(FeedForward(3, 5, dtype=torch.float64))
    x = torch.randn(2, 4, 3, dtype=torch.float64)
    hidden = x @ network.W1.weight.T + network.W1.bias
    gelu = hidden * (1 + torch.erf(hidden / 2**0.5)) / 2
    close(network(x), gelu @ network.W2.weight.T + network.W2.bias)


def test_any_batch_axes_and_none() -> None:
    layer, x = drawn((6, 7, 15, 3, 11))
    expected = layer(x)
    close(layer(x.unflatten(0, (2, 3))), expected.unflatten(0, (2, 3)))
    close(layer(x[0]), expected[0])


def test_parameters_are_made_where_and_as_asked(shape_device: torch.device) -> None:
    layer = EncoderLayer(6, 2, 5, device=shape_device, dtype=torch.bfloat16)
    assert {(p.device.type, p.dtype) for p in layer.parameters()} == {
        (shape_device.type, torch.bfloat16)
    }


@pytest.mark.parametrize("heads", [0, 4])
def test_heads_that_cannot_share_the_values_are_refused(heads: int) -> None:
    with pytest.raises(ArgumentError) as error:
        EncoderLayer(6, heads, 5)
    assert str(error.value) == f"num_heads={heads} cannot share n_embed=6 evenly"


@pytest.mark.usefixtures("as_shipped")
def test_a_wrong_width_is_refused_before_anything_is_computed() -> None:
    with pytest.raises(ShapeError, match=r"enc_q is \(2, 5\); wanted \(…, tokens, n_embed=6\)"):
        EncoderLayer(6, 2, 5)(torch.zeros(2, 5))
