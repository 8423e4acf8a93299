"""The towers against PyTorch's own with the same weights, in float64."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from qkv.core.mask import Mask
from qkv.errors import ArgumentError, ShapeError
from qkv.nn.rotary import Rotary
from qkv.nn.transformer import Decoder, Encoder, EncoderDecoder
from tests.nn.test_layers import close, decoder_weights, encoder_weights, peer, scrambled
from tests.reference import agree, array

SIZES = [
    pytest.param((2, 7, 15, 3, 11, 5), id="unequal primes"),  # …, layers
    pytest.param((3, 3, 9, 3, 9, 3), id="equal"),
]
KINDS = [
    {"norm_first": False, "activation": "relu"},
    {"norm_first": True, "activation": "relu"},
    {"norm_first": False, "activation": "gelu"},
    {"norm_first": True, "activation": "gelu"},
]


def drawn(sizes: tuple[int, ...], **options: Any) -> tuple[Encoder, Tensor]:
    batch, tokens, n_embed, heads, hidden, count = sizes
    x = torch.randn(batch, tokens, n_embed, dtype=torch.float64)
    encoder = Encoder(count, n_embed, heads, hidden, dtype=torch.float64, **options)
    return scrambled(encoder), x


def both(sizes: tuple[int, ...], **kind: Any) -> tuple[EncoderDecoder, nn.Transformer]:
    """Ours and PyTorch's with our weights; PyTorch's normalises at the end, pre-norm or not."""
    _, _, n_embed, heads, hidden, count = sizes
    ours = scrambled(
        EncoderDecoder(count, n_embed, heads, hidden, final_norm=True, dtype=torch.float64, **kind)
    )
    theirs = nn.Transformer(
        n_embed, heads, count, count, hidden, dropout=0.0, batch_first=True, dtype=torch.float64,
        **kind,
    )  # fmt: skip
    for layer, other in zip(ours.encoder.layers, theirs.encoder.layers, strict=True):
        other.load_state_dict(encoder_weights(layer))
    for layer, other in zip(ours.decoder.layers, theirs.decoder.layers, strict=True):
        other.load_state_dict(decoder_weights(layer))
    theirs.encoder.norm.load_state_dict(ours.encoder.norm.state_dict())
    theirs.decoder.norm.load_state_dict(ours.decoder.norm.state_dict())
    return ours, theirs


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("sizes", SIZES)
def test_both_towers_equal_pytorchs_transformer(
    sizes: tuple[int, ...], kind: dict[str, Any]
) -> None:
    ours, theirs = both(sizes, **kind)
    batch, tokens, n_embed, *_ = sizes
    x = torch.randn(batch, tokens + 2, n_embed, dtype=torch.float64, requires_grad=True)
    y = torch.randn(batch, tokens, n_embed, dtype=torch.float64, requires_grad=True)
    lengths = [tokens + 2, *[tokens - 1] * (batch - 1)]
    hidden = torch.arange(tokens + 2) >= torch.tensor(lengths)[:, None]
    causal = torch.ones(tokens, tokens, dtype=torch.bool).triu(1)
    wanted = theirs(
        x, y, tgt_mask=causal, src_key_padding_mask=hidden, memory_key_padding_mask=hidden
    )
    got = ours(x, y, Mask.padding(lengths))
    close(got, wanted)
    outer = torch.randn_like(got)
    for mine, other in zip(
        torch.autograd.grad((got * outer).sum(), (x, y)),
        torch.autograd.grad((wanted * outer).sum(), (x, y)),
        strict=True,
    ):
        agree(mine, array(other), 1e-8 * max(1, other.abs().max().item()))


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
def test_gradients_of_every_parameter_are_pytorchs() -> None:
    sizes = (2, 7, 15, 3, 11, 2)
    ours, theirs = both(sizes, norm_first=True, activation="gelu")
    x, y = (torch.randn(2, n, 15, dtype=torch.float64) for n in (5, 7))
    outer = torch.randn(2, 7, 15, dtype=torch.float64)
    causal = torch.ones(7, 7, dtype=torch.bool).triu(1)
    (ours(x, y) * outer).sum().backward()
    (theirs(x, y, tgt_mask=causal) * outer).sum().backward()
    for layer, other in (
        *zip(ours.encoder.layers, theirs.encoder.layers, strict=True),
        *zip(ours.decoder.layers, theirs.decoder.layers, strict=True),
    ):
        close(layer.attention.WQKV.grad, other.self_attn.in_proj_weight.grad)
        close(layer.attention.bQKV.grad, other.self_attn.in_proj_bias.grad)
        close(layer.feed_forward.W1.weight.grad, other.linear1.weight.grad)
        close(layer.attention_norm.weight.grad, other.norm1.weight.grad)
    for layer, other in zip(ours.decoder.layers, theirs.decoder.layers, strict=True):
        close(layer.cross.WQKV.grad, other.multihead_attn.in_proj_weight.grad)
        close(layer.cross_norm.bias.grad, other.norm2.bias.grad)
        close(layer.feed_forward_norm.bias.grad, other.norm3.bias.grad)
    close(ours.encoder.norm.weight.grad, theirs.encoder.norm.weight.grad)
    close(ours.decoder.norm.bias.grad, theirs.decoder.norm.bias.grad)


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


def test_a_last_norm_stands_behind_pre_norm_layers_only_unless_said() -> None:
    for tower in (Encoder, Decoder):
        assert tower(2, 6, 2).norm is None
        assert tower(2, 6, 2, norm_first=True, final_norm=False).norm is None
        assert isinstance(tower(2, 6, 2, norm_first=True).norm, nn.LayerNorm)
        assert isinstance(tower(2, 6, 2, final_norm=True, norm=nn.RMSNorm).norm, nn.RMSNorm)
    encoder, x = drawn((2, 7, 15, 3, 11, 2), norm_first=True)
    states = list(encoder.states(x))
    close(states[-1], encoder.norm(encoder.layers[1](states[1])))


def test_observed_or_not_the_last_state_is_the_same_bit_for_bit() -> None:
    encoder, x = drawn((2, 7, 15, 3, 11, 5))
    assert torch.equal(encoder(x, True), list(encoder.states(x, True))[-1])
    tower = scrambled(Decoder(3, 15, 3, 11, dtype=torch.float64, norm_first=True))
    states = list(tower.states(x, x))
    assert len(states) == 4
    assert torch.equal(tower(x, x), states[-1])


def layer_parameters(d: int, hidden: int, attentions: int) -> int:
    """WQ, WK, WV, WO and a norm for each attention; W1, W2 and a norm."""
    return attentions * (4 * (d * d + d) + 2 * d) + (2 * d * hidden + hidden + d) + 2 * d


def test_the_defaults_are_the_originals_sizes() -> None:
    model = EncoderDecoder(device="meta")
    count = sum(p.numel() for p in model.parameters())
    assert count == 6 * layer_parameters(512, 2048, 1) + 6 * layer_parameters(512, 2048, 2)
    assert count == 44_140_544 - 4 * 512  # nn.Transformer() but for its two last norms
    for tower in (model.encoder, model.decoder):
        assert [layer.attention.num_heads for layer in tower.layers] == [8] * 6
        assert tower.layers[0].attention.d_k == 64
        assert not tower.layers[0].norm_first


def test_rotary_positions_go_on_from_those_given() -> None:
    """Rotary attention sees distances alone: all positions further on change nothing."""
    tower = scrambled(Decoder(2, 12, 3, 7, cross=False, rotary=Rotary(4), dtype=torch.float64))
    y = torch.randn(2, 5, 12, dtype=torch.float64)
    shifted = torch.arange(5) + torch.tensor([[0], [11]])
    agree(tower(y, positions=shifted), array(tower(y)), 1e-3)
    stretched = tower(y, positions=torch.arange(5) * 3)
    assert (stretched - tower(y)).abs().max() > 0.05


def test_an_encoder_is_rotary_too() -> None:
    encoder, x = drawn((2, 7, 12, 3, 11, 2), rotary=Rotary(4))
    without = copy.deepcopy(encoder)
    for layer in without.layers:
        layer.attention.rotary = None
    assert (encoder(x) - without(x)).abs().max() > 0.05
    by_hand = x
    for layer in encoder.layers:
        by_hand = layer(by_hand)  # a layer by itself counts its positions as well
    close(encoder(x), by_hand)


def test_a_copy_is_independent() -> None:
    encoder, x = drawn((3, 3, 9, 3, 9, 3))
    before = encoder(x)
    scrambled(copy.deepcopy(encoder))
    assert torch.equal(encoder(x), before)


@pytest.mark.parametrize("options", [{}, {"gated": True, "kv_heads": 1, "rotary": Rotary(4)}])
def test_a_state_dict_can_be_read_back(options: dict[str, Any]) -> None:
    def model() -> EncoderDecoder:
        return scrambled(EncoderDecoder(2, 12, 3, 5, dtype=torch.float64, **options))

    one, other, x = model(), model(), torch.randn(2, 4, 12, dtype=torch.float64)
    assert not torch.equal(other(x, x), one(x, x))
    other.load_state_dict(one.state_dict())
    assert torch.equal(other(x, x), one(x, x))
    assert "decoder.layers.1.cross.WQ.weight" in one.state_dict()


@pytest.mark.parametrize("tower", [Encoder, Decoder, EncoderDecoder])
def test_dropout_drops_in_training_only(tower: type[nn.Module]) -> None:
    model = tower(2, 12, 3, dropout=0.5)
    x = torch.randn(2, 5, 12)
    inputs = (x,) if tower is Encoder else (x, x)
    assert not torch.equal(model(*inputs), model(*inputs))
    model.eval()
    still = tower(2, 12, 3).eval()
    still.load_state_dict(model.state_dict())
    assert torch.equal(model(*inputs), still(*inputs))


def towers() -> dict[str, tuple[nn.Module, tuple[Tensor, ...]]]:
    x, y = torch.randn(2, 7, 12), torch.randn(2, 5, 12)
    modern = {
        "norm": nn.RMSNorm, "norm_first": True, "gated": True, "activation": "silu",
        "rotary": Rotary(4), "kv_heads": 1, "bias": False,
    }  # fmt: skip
    return {
        "encoder": (Encoder(2, 12, 3), (x,)),
        "decoder": (Decoder(2, 12, 3), (y, x)),
        "modern decoder": (Decoder(2, 12, 3, cross=False, **modern), (y,)),
        "both": (EncoderDecoder(2, 12, 3, **modern), (x, y)),
    }


@pytest.mark.slow
@pytest.mark.usefixtures("as_shipped")
@pytest.mark.parametrize("name", towers())
def test_a_tower_exports_and_compiles_as_one_graph(name: str) -> None:
    model, inputs = towers()[name]
    scrambled(model.eval())
    wanted = array(model(*inputs))
    within = 1e-5 * max(1, abs(wanted).max())
    exported = torch.export.export(model, inputs, strict=True)
    agree(exported.module()(*inputs), wanted, within)
    torch.compiler.reset()
    fast = torch.compile(model, fullgraph=True, backend="eager")
    agree(fast(*inputs), wanted, within)
    with torch.no_grad():
        agree(fast(*inputs), wanted, within)


@pytest.mark.usefixtures("as_shipped")
@pytest.mark.parametrize("norm_first", [False, True])
def test_a_wrong_width_is_named_before_or_behind_the_norm(norm_first: bool) -> None:
    with pytest.raises(ShapeError, match=r"is \(2, 5, 5\); wanted \(…, tokens, n_embed=6\)"):
        Encoder(2, 6, 2, norm_first=norm_first)(torch.zeros(2, 5, 5))


@pytest.mark.parametrize("count", [0, -1, True])
def test_a_number_of_layers_that_cannot_be_is_refused(count: int) -> None:
    for tower in (Encoder, Decoder, EncoderDecoder):
        with pytest.raises(ArgumentError, match=f"num_layers is {count}; wanted a whole number"):
            tower(count, 6, 2)
