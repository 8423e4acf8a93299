"""A whole transformer layer step by step, against the layer itself and against Hugging Face's."""

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import qkv
from qkv.core.calculation import Calculation
from qkv.core.mask import Mask
from qkv.core.operations import Operation
from qkv.errors import ArgumentError, ShapeError, VerificationError
from qkv.nn.explain import explain
from qkv.nn.explain_layer import MOST, explain_layer
from qkv.nn.layers import DecoderLayer, EncoderLayer
from qkv.nn.rotary import Rotary
from tests.reference import agree, array

Made = tuple[nn.Module, Callable[[Tensor], Tensor], dict[str, Any]]
"""Our layer with their weights, what runs theirs, and what ours takes beside x."""

EPS = 1e-3
NORMS = {
    "layer": partial(nn.LayerNorm, eps=EPS),
    "layer without shift": partial(nn.LayerNorm, eps=EPS, bias=False),
    "layer, nothing learned": partial(nn.LayerNorm, eps=EPS, elementwise_affine=False),
    "rms": partial(nn.RMSNorm, eps=EPS),
    "rms, its own eps": nn.RMSNorm,
}
ROTARIES = {
    "none": None,
    "halves": Rotary(4),
    "pairs": Rotary(4, base=50.0, layout="pairs"),
    "part": Rotary(4, part=2),
    "part in pairs": Rotary(4, layout="pairs", part=2),
}
MASKS = {
    "none": False,
    "causal": True,
    "window": Mask.window(1),
    "padding": Mask.padding([2, 5, 3]),
    "left": Mask.causal() & Mask.padding([2, 5, 3], side="left"),
    "by head": Mask.bias(torch.randn(6, 5, 5, generator=torch.Generator().manual_seed(0))[None]),
}


def shaken(module: nn.Module) -> nn.Module:
    """Make what starts as 0 or 1, and would hide its misuse, random too."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return module


@settings(phases=[Phase.generate])
@given(
    norm=st.sampled_from(sorted(NORMS)), norm_first=st.booleans(),
    activation=st.sampled_from(["gelu", "gelu_tanh", "relu", "silu"]), gated=st.booleans(),
    rotary=st.sampled_from(sorted(ROTARIES)), kv_heads=st.sampled_from([1, 2, 3, 6]),
    mask=st.sampled_from(sorted(MASKS)), cross=st.booleans(), bias=st.booleans(),
    dtype=st.sampled_from([torch.float64, torch.float32, torch.bfloat16]),
)  # fmt: skip
def test_the_steps_end_in_what_the_layer_gives_whatever_it_is_made_of(
    *, norm: str, norm_first: bool, activation: str, gated: bool, rotary: str, kv_heads: int,
    mask: str, cross: bool, bias: bool, dtype: torch.dtype,
) -> None:  # fmt: skip
    options = {
        "norm": NORMS[norm], "norm_first": norm_first, "activation": activation, "gated": gated,
        "rotary": ROTARIES[rotary], "kv_heads": kv_heads, "bias": bias, "feed_forward_bias": bias,
        "d_head": 4, "dtype": dtype, "dropout": 0.5,
    }  # fmt: skip
    x, memory = torch.randn(3, 5, 12, dtype=dtype), torch.randn(3, 7, 12, dtype=dtype)
    if cross:
        layer = shaken(DecoderLayer(12, 6, 10, **options)).eval()
        seen = {"memory": memory, "memory_mask": Mask.padding([4, 1, 7])}
    else:
        layer, seen = shaken(EncoderLayer(12, 6, 10, **options)).eval(), {}
    told = explain_layer(layer, x, mask=MASKS[mask], batch=1, **seen)
    with torch.no_grad():
        out = layer(x, mask=MASKS[mask], **seen)[1]
    assert np.array_equal(told.observed[told.steps[-1].name], array(out))
    assert len(told.observed) >= 4 + 2 * cross
    wide, seen64 = copy.deepcopy(layer).double(), dict(seen)
    if cross:
        seen64["memory"] = memory.double()
    agree(out, told.result, 100 * torch.finfo(dtype).eps * (1 + np.abs(told.result).max()))
    if dtype is not torch.bfloat16:
        told.verify()
        agree(told.result, array(wide(x.double(), mask=MASKS[mask], **seen64)[1]), 1e-4)
    assert {step.operation for step in told} <= set(Operation)


def llama() -> Made:
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRotaryEmbedding

    config = LlamaConfig(
        hidden_size=12, intermediate_size=14, num_attention_heads=6, num_key_value_heads=3,
        head_dim=4, rms_norm_eps=EPS, attn_implementation="eager",
    )  # fmt: skip
    theirs = shaken(LlamaDecoderLayer(config, 0)).double().eval()
    ours = EncoderLayer(
        12, 6, 14, kv_heads=3, d_head=4, norm=NORMS["rms"], norm_first=True, activation="silu",
        gated=True, bias=False, feed_forward_bias=False, rotary=Rotary(4),
    )  # fmt: skip
    names = {
        "attention.W{Q,K,V,O}": "self_attn.{q,k,v,o}_proj", "feed_forward.W1": "mlp.gate_proj",
        "feed_forward.W3": "mlp.up_proj", "feed_forward.W2": "mlp.down_proj",
        "attention_norm": "input_layernorm", "feed_forward_norm": "post_attention_layernorm",
    }  # fmt: skip
    fill(ours, theirs, names)

    def run(x: Tensor) -> Tensor:
        places = torch.arange(x.shape[1])[None]
        waves = LlamaRotaryEmbedding(config)(x, places)
        return theirs(x, attention_mask=blocked(x), position_embeddings=waves, position_ids=places)

    return ours, run, {"mask": True}


def bert() -> Made:
    from transformers import BertConfig
    from transformers.models.bert.modeling_bert import BertLayer

    config = BertConfig(
        hidden_size=12, intermediate_size=14, num_attention_heads=3, layer_norm_eps=EPS,
        attn_implementation="eager",
    )  # fmt: skip
    theirs = shaken(BertLayer(config)).double().eval()
    ours = EncoderLayer(12, 3, 14, norm=NORMS["layer"])
    names = {
        "attention.W{Q,K,V}": "attention.self.{query,key,value}",
        "attention.WO": "attention.output.dense", "attention_norm": "attention.output.LayerNorm",
        "feed_forward.W1": "intermediate.dense", "feed_forward.W2": "output.dense",
        "feed_forward_norm": "output.LayerNorm",
    }  # fmt: skip
    fill(ours, theirs, names)
    return ours, theirs, {}


def gpt2() -> Made:
    from transformers import GPT2Config
    from transformers.models.gpt2.modeling_gpt2 import GPT2Block

    config = GPT2Config(
        n_embd=12, n_head=3, n_inner=14, layer_norm_epsilon=EPS, attn_implementation="eager"
    )
    theirs = shaken(GPT2Block(config, 0)).double().eval()
    ours = DecoderLayer(
        12, 3, 14, cross=False, norm=NORMS["layer"], norm_first=True, activation="gelu_tanh"
    )
    state = {name: value.float() for name, value in theirs.state_dict().items()}
    own = {}
    for kind in ("weight", "bias"):
        packed = state[f"attn.c_attn.{kind}"]
        for name, part in zip(("WQ", "WK", "WV"), packed.chunk(3, -1), strict=True):
            own[f"attention.{name}.{kind}"] = part.mT if kind == "weight" else part
    for name, their in {
        "attention.WO": "attn.c_proj", "feed_forward.W1": "mlp.c_fc",
        "feed_forward.W2": "mlp.c_proj",
    }.items():  # fmt: skip
        own |= {
            f"{name}.weight": state[f"{their}.weight"].mT,
            f"{name}.bias": state[f"{their}.bias"],
        }
    for name, their in {"attention_norm": "ln_1", "feed_forward_norm": "ln_2"}.items():
        own |= {f"{name}.{kind}": state[f"{their}.{kind}"] for kind in ("weight", "bias")}
    ours.load_state_dict(own)
    return ours, lambda x: theirs(x, attention_mask=blocked(x)), {"mask": True}


def marian() -> Made:
    from transformers import MarianConfig
    from transformers.models.marian.modeling_marian import MarianDecoderLayer

    config = MarianConfig(
        d_model=12, decoder_ffn_dim=14, decoder_attention_heads=3, activation_function="silu",
        attn_implementation="eager",
    )  # fmt: skip
    theirs = shaken(MarianDecoderLayer(config, 0)).double().eval()
    ours = DecoderLayer(12, 3, 14, activation="silu")
    projections = "{q_proj,k_proj,v_proj,out_proj}"
    names = {
        "attention.W{Q,K,V,O}": f"self_attn.{projections}",
        "cross.W{Q,K,V,O}": f"encoder_attn.{projections}",
        "attention_norm": "self_attn_layer_norm", "cross_norm": "encoder_attn_layer_norm",
        "feed_forward.W1": "fc1", "feed_forward.W2": "fc2", "feed_forward_norm": "final_layer_norm",
    }  # fmt: skip
    fill(ours, theirs, names)
    memory, hidden = torch.randn(2, 7, 12), Mask.padding([7, 4])

    def run(x: Tensor) -> Tensor:
        seen = hidden.matrix(x.shape[1], 7).double()
        return theirs(
            x, attention_mask=blocked(x), encoder_hidden_states=memory.double(),
            encoder_attention_mask=seen.clamp_min(torch.finfo(torch.float64).min), use_cache=False,
        )  # fmt: skip

    return ours, run, {"mask": True, "memory": memory, "memory_mask": hidden}


def fill(ours: nn.Module, theirs: nn.Module, names: dict[str, str]) -> None:
    """Copy parameters by a table of modules; `{q,k}` stands for each of them."""
    state, own = theirs.state_dict(), {}
    for mine, their in names.items():
        for a, b in zip(spread(mine), spread(their), strict=True):
            found = {key: value for key, value in state.items() if key.startswith(f"{b}.")}
            own |= {f"{a}{key.removeprefix(b)}": value.float() for key, value in found.items()}
    assert len(own) == len(state)
    ours.load_state_dict(own)


def spread(name: str) -> list[str]:
    before, opened, rest = name.partition("{")
    if not opened:
        return [name]
    inside, _, after = rest.partition("}")
    return [f"{before}{one}{after}" for one in inside.split(",")]


def blocked(x: Tensor) -> Tensor:
    tokens = x.shape[1]
    return torch.full((1, 1, tokens, tokens), torch.finfo(x.dtype).min, dtype=x.dtype).triu(1)


@pytest.mark.parametrize("make", [llama, bert, gpt2, marian])
def test_the_steps_of_a_layer_end_in_hugging_faces_numbers(
    make: Callable[[], Made],
) -> None:
    ours, run, seen = make()
    x = torch.randn(2, 5, 12)
    with torch.no_grad():
        wanted = run(x.double())
    wanted = (wanted[0] if isinstance(wanted, tuple) else wanted)[1]
    told = explain_layer(ours, x, batch=1, **seen)
    agree(told.result, array(wanted), 1e-6 * (1 + float(wanted.abs().max())))
    told.verify()
    exact = {key: v.double() if isinstance(v, Tensor) else v for key, v in seen.items()}
    told = explain_layer(ours.double(), x.double(), batch=1, **exact)
    tolerance = 1e-6 if make is llama else 1e-12  # their cosines are of float32
    agree(told.result, array(wanted), tolerance)
    told.verify()


def encoder() -> Calculation:
    layer = shaken(EncoderLayer(8, 2, 6))
    return explain_layer(layer, torch.randn(3, 8), tokens=["draw", "a", "map"])


def test_sections_and_names_of_an_encoder_layer() -> None:
    told = encoder()
    assert told.title == "Encoder layer, 2 heads, post-norm"
    assert told.sections == (
        "inputs", "head 1", "head 2", "projection", "norm 1", "feed-forward", "norm 2",
    )  # fmt: skip
    assert [step.name for step in told][-1] == "norm 2/output"
    assert [step.short for step in told["norm 1"]][1:] == [
        "mean", "centred", "squares", "variance", "ε", "variance + ε", "root", "normalised", "γ",
        "times γ", "β", "output",
    ]  # fmt: skip
    assert [step.short for step in told["feed-forward"]][1:] == [
        "W1", "hidden values before bias", "b1", "hidden values", "√2", "over √2", "erf", "1",
        "curve + 1", "2", "share below", "activated", "W2", "output before bias", "b2", "output",
        "residual",
    ]  # fmt: skip
    assert told.step("norm 2/output").rows == ("draw", "a", "map")
    assert set(told.observed) == {
        "projection/output", "norm 1/output", "feed-forward/output", "norm 2/output",
    }  # fmt: skip
    for step in told:
        assert step.value.shape == (len(step.rows), len(step.columns))
        assert step.symbol
        told_in_words = step.is_input or step.says or step.short in ("squares", "cubes")
        assert told_in_words, step.name


def test_sections_and_names_of_a_llama_layer() -> None:
    layer = shaken(
        DecoderLayer(
            8, 4, 6, cross=False, kv_heads=2, d_head=4, norm=nn.RMSNorm, norm_first=True,
            gated=True, activation="silu", bias=False, feed_forward_bias=False,
            rotary=Rotary(4, part=2),
        )
    )  # fmt: skip
    told = explain_layer(layer, torch.randn(3, 8), mask=True)
    assert told.title == "Decoder layer, 4 heads, pre-norm"
    assert told.sections == (
        "inputs", "norm 1", "head 1", "head 2", "head 3", "head 4", "projection", "norm 2",
        "feed-forward",
    )  # fmt: skip
    assert [step.short for step in told["head 1"]][4:12] == [
        "WQ", "queries", "queries left alone", "queries that turn", "queries × cosines",
        "turned queries", "turned queries × sines", "rotated part of the queries",
    ]  # fmt: skip
    sharing = told.step("head 2/similarities")
    assert sharing.operands == ("head 2/rotated queries", "head 1/rotated keys")
    assert sharing.says.endswith(", which head 1 made for all its group")
    assert told.step("head 4/output").operands == ("head 4/weights", "head 3/values")
    assert told.step("head 3/output").operands == ("head 3/weights", "head 3/values")
    assert told.step("feed-forward/residual").operands == (
        "projection/residual", "feed-forward/output",
    )  # fmt: skip
    told["head 4"].verify()


def test_sections_and_names_of_a_layer_with_a_memory() -> None:
    layer = shaken(DecoderLayer(8, 2, 6))
    told = explain_layer(
        layer, torch.randn(3, 8), torch.randn(4, 8), mask=True, memory_tokens=list("abcd"),
        memory_mask=Mask.padding([3]),
    )  # fmt: skip
    assert told.title == "Decoder layer, with cross-attention, 2 heads, post-norm"
    assert told.sections == (
        "inputs", "self-attention", "self-attention/head 1", "self-attention/head 2",
        "self-attention/projection", "norm 1", "cross-attention", "cross-attention/head 1",
        "cross-attention/head 2", "cross-attention/projection", "norm 2", "feed-forward", "norm 3",
    )  # fmt: skip
    assert told.step("cross-attention/head 1/weights").columns == tuple("abcd")
    agree(told["inputs/memory mask"][:, 3], [-np.inf] * 3, 0)
    assert told.step("cross-attention/head 2/keys").operands[0].endswith("before bias")
    told["cross-attention"].verify()


def test_every_row_of_a_batch_has_its_own_angles() -> None:
    rotary = Rotary(4)
    layer = shaken(EncoderLayer(8, 2, 6, rotary=rotary))
    x = torch.randn(3, 5, 8)
    places = torch.tensor([[0, 1, 2, 3, 4], [7, 8, 9, 10, 11], [0, 0, 0, 1, 2]])
    angles = rotary.angles(places)
    for batch in range(3):
        told = explain_layer(layer, x, batch=batch, angles=angles)
        agree(told["cosines"], array(angles.cos[batch, 0]), 1e-6)
        agree(told.result, array(layer(x, angles=angles)[batch]), 1e-5)
        told.verify()
        one = explain(layer.attention, x, None, None, None, batch=batch, angles=angles, head=1)
        agree(one["cosines"], told["cosines"], 0)
        one.verify()


def test_looking_changes_nothing() -> None:
    layer = EncoderLayer(8, 2, 6, dropout=0.5)
    x = torch.randn(5, 8)
    layer.attention.eval()
    before = copy.deepcopy(layer.state_dict())
    torch.manual_seed(1)
    out = layer(x)
    torch.manual_seed(1)
    told = explain_layer(layer, x)
    assert torch.equal(layer(x), out), "the random numbers of dropout are left alone"
    assert layer.training
    assert layer.feed_forward.training
    assert not layer.attention.training
    assert not any(module._forward_hooks for module in layer.modules())
    assert all(torch.equal(value, before[name]) for name, value in layer.state_dict().items())
    agree(told.result, array(layer.eval()(x)), 1e-5)


@pytest.mark.parametrize("part", ["attention", "feed_forward", "attention_norm"])
def test_a_part_that_goes_wrong_is_found_by_the_proof(
    monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    layer = EncoderLayer(8, 2, 6)
    right = getattr(layer, part).forward
    monkeypatch.setattr(getattr(layer, part), "forward", lambda *a, **o: right(*a, **o) + 0.01)
    names = {"attention": "projection", "feed_forward": "feed-forward", "attention_norm": "norm 1"}
    with pytest.raises(VerificationError, match=f"{names[part]}/output: the fused value is"):
        explain_layer(layer, torch.randn(5, 8)).verify()


def test_by_hand_drifts_by_little() -> None:
    assert encoder().by_hand(4).drift < 5e-3
    assert encoder().by_hand(8).drift < 1e-5


def test_a_layer_too_large_to_read_is_refused_with_its_size() -> None:
    layer = EncoderLayer(1024, 16, 4096, device="meta")
    with pytest.raises(ArgumentError, match=rf"numbers, 12,596,224 of them .* up to {MOST:,}"):
        explain_layer(layer, torch.empty(3, 1024, device="meta"))
    with pytest.raises(ArgumentError, match="choose fewer tokens"):
        explain_layer(EncoderLayer(8, 2, 6), torch.randn(3000, 8))


def test_what_cannot_be_written_down_is_named() -> None:
    layer = EncoderLayer(8, 2, 6, norm=lambda n: nn.GroupNorm(1, n))
    with pytest.raises(ArgumentError, match="attention_norm is a GroupNorm"):
        explain_layer(layer, torch.randn(3, 8))
    with pytest.raises(ArgumentError, match="2 tokens for the 3 rows of encodings"):
        explain_layer(EncoderLayer(8, 2, 6), torch.randn(3, 8), tokens=["a", "b"])
    with pytest.raises(ShapeError, match=r"batch is 4, but the batch axes are \(2,\)"):
        explain_layer(EncoderLayer(8, 2, 6), torch.randn(2, 3, 8), batch=4)
    with pytest.raises(ArgumentError, match="memory is missing"):
        explain_layer(DecoderLayer(8, 2, 6), torch.randn(3, 8))


def test_the_function_and_the_method_give_the_same_record() -> None:
    layer, x = DecoderLayer(8, 2, 6), torch.randn(3, 8)
    y = torch.randn(4, 8)
    told = qkv.explain(layer, x, y, tokens=list("abc"))
    same = explain_layer(layer, x, y, mask=True, tokens=list("abc"))
    assert [step.name for step in told] == [step.name for step in same]
    agree(told.result, same.result, 0)


@pytest.mark.usefixtures("as_shipped")
@pytest.mark.parametrize(
    ("x", "memory", "message"),
    [
        (torch.randn(8), None, r"x is \(8,\); wanted \(\*batch, tokens, n_embed\)"),
        (torch.randn(3, 8), torch.randn(8), r"memory is \(8,\); wanted \(\*batch, tokens"),
    ],
)
def test_a_row_that_is_not_in_a_table_is_refused(
    x: Tensor, memory: Tensor | None, message: str
) -> None:
    layer = EncoderLayer(8, 2, 6) if memory is None else DecoderLayer(8, 2, 6)
    with pytest.raises(ShapeError, match=message):
        explain_layer(layer, x, memory)
