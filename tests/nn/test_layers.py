"""A layer against PyTorch's own encoder layer with the same weights, in float64."""

from functools import partial
from typing import TypeVar

import pytest
import torch
from torch import Tensor, nn

from qkv.core.mask import Mask
from qkv.errors import ArgumentError, ShapeError
from qkv.nn.attention import MultiHeadAttention
from qkv.nn.layers import DecoderLayer, EncoderLayer
from qkv.nn.rotary import Rotary

Module = TypeVar("Module", bound=nn.Module)

SIZES = [
    pytest.param((2, 7, 15, 3, 11), id="unequal primes"),  # batch, tokens, n_embed, heads, hidden
    pytest.param((3, 3, 9, 3, 9), id="equal"),
]


def packed(attention: MultiHeadAttention, name: str) -> dict[str, Tensor]:
    """Our weights of an attention, as PyTorch spells them."""
    projections = (attention.WQ, attention.WK, attention.WV)
    return {
        f"{name}.in_proj_weight": torch.cat([p.weight for p in projections]),
        f"{name}.in_proj_bias": torch.cat([p.bias for p in projections]),
        **{f"{name}.out_proj.{kind}": v for kind, v in attention.WO.state_dict().items()},
    }


def spelled(ours: dict[str, Tensor], pairs: dict[str, nn.Module]) -> dict[str, Tensor]:
    for name, module in pairs.items():
        ours |= {f"{name}.{kind}": value for kind, value in module.state_dict().items()}
    return {name: value.detach().clone() for name, value in ours.items()}


def encoder_weights(layer: EncoderLayer) -> dict[str, Tensor]:
    pairs = {
        "linear1": layer.feed_forward.W1, "linear2": layer.feed_forward.W2,
        "norm1": layer.attention_norm, "norm2": layer.feed_forward_norm,
    }  # fmt: skip
    return spelled(packed(layer.attention, "self_attn"), pairs)


def decoder_weights(layer: DecoderLayer) -> dict[str, Tensor]:
    pairs = {
        "linear1": layer.feed_forward.W1, "linear2": layer.feed_forward.W2,
        "norm1": layer.attention_norm, "norm2": layer.cross_norm, "norm3": layer.feed_forward_norm,
    }  # fmt: skip
    ours = packed(layer.attention, "self_attn") | packed(layer.cross, "multihead_attn")
    return spelled(ours, pairs)


def peer(
    layer: EncoderLayer, eps: float = 1e-5, activation: str = "gelu"
) -> nn.TransformerEncoderLayer:
    """Return PyTorch's layer with our weights; in training, where it takes no fast path."""
    attention = layer.attention
    theirs = nn.TransformerEncoderLayer(
        attention.n_embed, attention.num_heads, layer.feed_forward.W1.out_features, dropout=0.0,
        activation=activation, layer_norm_eps=eps, batch_first=True, dtype=torch.float64,
        norm_first=layer.norm_first,
    )  # fmt: skip
    theirs.load_state_dict(encoder_weights(layer))
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


KINDS = [(first, bend) for first in (False, True) for bend in ("gelu", "relu")]


@pytest.mark.parametrize(("norm_first", "activation"), KINDS)
@pytest.mark.parametrize("sizes", SIZES)
def test_pre_and_post_norm_are_pytorchs(
    sizes: tuple[int, ...], norm_first: bool, activation: str
) -> None:
    batch, tokens, n_embed, heads, hidden = sizes
    layer = EncoderLayer(
        n_embed, heads, hidden, norm_first=norm_first, activation=activation, dtype=torch.float64
    )
    x = torch.randn(batch, tokens, n_embed, dtype=torch.float64)
    causal = torch.ones(tokens, tokens, dtype=torch.bool).triu(1)
    theirs = peer(scrambled(layer), activation=activation)
    close(layer(x, True), theirs(x, src_mask=causal))


@pytest.mark.parametrize(("norm_first", "activation"), KINDS)
@pytest.mark.parametrize("sizes", SIZES)
def test_a_decoder_layer_is_pytorchs_in_every_element_and_gradient(
    sizes: tuple[int, ...], norm_first: bool, activation: str
) -> None:
    batch, tokens, n_embed, heads, hidden = sizes
    layer = scrambled(
        DecoderLayer(
            n_embed, heads, hidden, norm_first=norm_first, activation=activation,
            dtype=torch.float64,
        )
    )  # fmt: skip
    theirs = nn.TransformerDecoderLayer(
        n_embed, heads, hidden, dropout=0.0, activation=activation, batch_first=True,
        norm_first=norm_first, dtype=torch.float64,
    )  # fmt: skip
    theirs.load_state_dict(decoder_weights(layer))
    y, memory = (
        torch.randn(batch, n, n_embed, dtype=torch.float64, requires_grad=True)
        for n in (tokens, tokens + 2)
    )
    lengths = [tokens + 2, *[tokens] * (batch - 1)]
    hidden_keys = torch.arange(tokens + 2) >= torch.tensor(lengths)[:, None]
    causal = torch.ones(tokens, tokens, dtype=torch.bool).triu(1)
    own = torch.randn(batch, heads, tokens, tokens, dtype=torch.float64)
    for mask, theirs_mask in (
        (True, causal),
        (Mask.causal() & Mask.bias(own), own.masked_fill(causal, -torch.inf).flatten(0, 1)),
    ):
        got = layer(y, memory, mask, Mask.padding(lengths))
        wanted = theirs(
            y, memory, theirs_mask,
            memory_key_padding_mask=torch.zeros_like(hidden_keys, dtype=torch.float64).masked_fill(
                hidden_keys, -torch.inf
            ),
        )  # fmt: skip
        close(got, wanted)
        for ours, other in zip(
            torch.autograd.grad(got.square().sum(), (y, memory), retain_graph=True),
            torch.autograd.grad(wanted.square().sum(), (y, memory), retain_graph=True),
            strict=True,
        ):
            torch.testing.assert_close(ours, other, rtol=1e-9, atol=1e-9)


def test_a_memory_is_wanted_where_it_is_looked_at_and_only_there() -> None:
    y = torch.randn(2, 3, 6)
    with pytest.raises(ArgumentError, match="memory is missing: the layer has cross-attention"):
        DecoderLayer(6, 2, 5)(y)
    with pytest.raises(ArgumentError, match="memory is given, but the layer has no cross-attent"):
        DecoderLayer(6, 2, 5, cross=False)(y, y)
    alone = DecoderLayer(6, 2, 5, cross=False)
    assert not [name for name, _ in alone.named_parameters() if "cross" in name]
    encoder = EncoderLayer(6, 2, 5)
    encoder.load_state_dict(alone.state_dict())
    close(alone(y), encoder(y, True))


@pytest.mark.parametrize("kv_heads", [1, 3])
@pytest.mark.parametrize("first", [0, 5])
def test_rms_norm_swiglu_rotary_and_grouped_heads_are_hugging_faces_llama(
    kv_heads: int, first: int
) -> None:
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRotaryEmbedding

    config = LlamaConfig(
        hidden_size=15, num_attention_heads=3, num_key_value_heads=kv_heads, head_dim=6,
        intermediate_size=11, rms_norm_eps=0.1, attn_implementation="eager",
        rope_parameters={"rope_type": "default", "rope_theta": 100.0},
    )  # fmt: skip
    theirs = scrambled(LlamaDecoderLayer(config, 0).double())
    normalise_in_float64(theirs)
    layer = EncoderLayer(
        15, 3, 11, kv_heads=kv_heads, d_head=6, norm=partial(nn.RMSNorm, eps=0.1), bias=False,
        norm_first=True, activation="silu", gated=True, feed_forward_bias=False,
        rotary=Rotary(6, 100.0), dtype=torch.float64,
    )  # fmt: skip
    names = {
        "attention.WQ": "self_attn.q_proj", "attention.WK": "self_attn.k_proj",
        "attention.WV": "self_attn.v_proj", "attention.WO": "self_attn.o_proj",
        "attention_norm": "input_layernorm", "feed_forward_norm": "post_attention_layernorm",
        "feed_forward.W1": "mlp.gate_proj", "feed_forward.W2": "mlp.down_proj",
        "feed_forward.W3": "mlp.up_proj",
    }  # fmt: skip
    state = theirs.state_dict()
    layer.load_state_dict({f"{n}.weight": state[f"{other}.weight"] for n, other in names.items()})
    x = torch.randn(2, 7, 15, dtype=torch.float64)
    positions = torch.arange(first, first + 7)[None]
    angles = LlamaRotaryEmbedding(config)(x, positions)
    causal = torch.zeros(7, 7, dtype=torch.float64).masked_fill(
        torch.ones(7, 7, dtype=torch.bool).triu(1), -torch.inf
    )
    wanted = theirs(x, causal[None, None], position_ids=positions, position_embeddings=angles)
    got = layer(x, True, angles=layer.attention.rotary.angles(positions, x.dtype))
    wanted = wanted[0] if isinstance(wanted, tuple) else wanted
    torch.testing.assert_close(got, wanted, rtol=1e-6, atol=2e-4)  # angles: both in float32


def normalise_in_float64(model: nn.Module) -> None:
    """Hugging Face's RMSNorm rounds to float32 even in float64: a reference has to be exact."""
    for module in model.modules():
        if type(module).__name__ == "LlamaRMSNorm":
            eps, weight = module.variance_epsilon, module.weight
            module.forward = lambda x, w=weight, e=eps: (
                x / (x.square().mean(-1, keepdim=True) + e).sqrt() * w
            )


@pytest.mark.parametrize("layer", [EncoderLayer, partial(DecoderLayer, cross=False)])
@pytest.mark.parametrize("norm_first", [False, True])
def test_what_each_part_adds_is_dropped_in_training_only(
    layer: object, norm_first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = layer(8, 2, 5, dropout=0.5, norm_first=norm_first)
    x, parts, drop = torch.randn(2, 3, 8), [], torch.dropout

    def noted(x: Tensor, p: float, train: bool) -> Tensor:
        parts.append((tuple(x.shape), p, train))
        return drop(x, p, train)

    monkeypatch.setattr(torch, "dropout", noted)
    assert not torch.equal(made(x), made(x))
    assert parts == [((2, 3, 8), 0.5, True)] * 4
    made.eval()
    assert torch.equal(made(x), made(x))
    assert len(parts) == 4


@pytest.mark.parametrize("layer", [EncoderLayer, DecoderLayer])
@pytest.mark.parametrize("name", ["dropout", "attention_dropout"])
@pytest.mark.parametrize("wrong", [1.0, 1.5, -0.1, float("nan")])
def test_what_is_no_probability_is_refused_by_its_name(
    layer: type[EncoderLayer], name: str, wrong: float
) -> None:
    options = {"dropout": 0.1, "attention_dropout": 0.0, name: wrong}
    with pytest.raises(ArgumentError, match=f"^{name} is {wrong}; wanted 0 to below 1"):
        layer(8, 2, 5, **options)


@pytest.mark.parametrize("layer", [EncoderLayer, DecoderLayer])
@pytest.mark.parametrize(
    ("options", "wanted"),
    [({"dropout": 0.3}, 0.3), ({"dropout": 0.3, "attention_dropout": 0.0}, 0.0), ({}, 0.0)],
)
def test_weights_are_dropped_as_often_as_what_is_added_unless_it_is_said(
    layer: type[EncoderLayer], options: dict[str, float], wanted: float
) -> None:
    made = layer(8, 2, 5, **options)
    dropping = [part.dropout for part in made.modules() if isinstance(part, MultiHeadAttention)]
    assert dropping == [wanted] * len(dropping)
    assert len(dropping) == (2 if layer is DecoderLayer else 1)
    assert made.dropout == options.get("dropout", 0.0)
