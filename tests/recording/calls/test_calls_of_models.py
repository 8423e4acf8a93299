"""Calls of real models of transformers: what they say of their masks, and that it can be proved."""

from typing import Any

import pytest
import torch
import transformers as hf
from torch import Tensor, nn

from qkv.recording.calls.call import Call
from qkv.recording.observing.mode import Observer
from tests.reference import agree

SIZES: dict[str, Any] = {
    "vocab_size": 100, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 32,
}  # fmt: skip
GROUPED: dict[str, Any] = SIZES | {"num_key_value_heads": 2}
WINDOW: dict[str, Any] = GROUPED | {"head_dim": 6, "sliding_window": 4}


def calls_of(model: nn.Module, padded_left: bool) -> list[Call]:
    """Run two sentences of nine tokens, the second with three of padding."""
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.data.mul_(4)  # or every weight is 1/9
    real = torch.ones(2, 9).long()
    real[1, : 3 if padded_left else None] = 0 if padded_left else 1
    if not padded_left:
        real[1, 6:] = 0
    calls: list[Call] = []
    with torch.no_grad(), Observer(model.eval(), calls.append):
        model(input_ids=torch.randint(5, 90, (2, 9)), attention_mask=real)
    return calls


MODELS = [
    ("Bert", hf.BertConfig(**SIZES), "0 to 3 keys hidden"),
    ("GPT2", hf.GPT2Config(vocab_size=100, n_embd=24, n_layer=2, n_head=4, bos_token_id=1,
                           eos_token_id=2), "causal, 0 to 3 keys hidden"),
    ("Llama", hf.LlamaConfig(**GROUPED), "causal, 0 to 3 keys hidden"),
    ("Mistral", hf.MistralConfig(**GROUPED, sliding_window=4),
     "causal, window of 3 before, 0 to 3 keys hidden"),
    ("Gemma2", hf.Gemma2Config(**WINDOW), "causal, window of 3 before, 0 to 3 keys hidden"),
    ("GptOss", hf.GptOssConfig(**WINDOW, num_local_experts=4, num_experts_per_tok=2),
     "causal, window of 3 before, 0 to 3 keys hidden"),
    ("DebertaV2", hf.DebertaV2Config(**SIZES, relative_attention=True, position_buckets=4,
                                     pos_att_type=["c2p", "p2c"]),
     "0 to 3 keys hidden, 3 padded queries, numbers added"),
    ("Bloom", hf.BloomConfig(vocab_size=100, hidden_size=24, n_layer=2, n_head=4),
     "causal, 0 to 3 keys hidden, numbers added"),
]  # fmt: skip


def build(name: str, config: Any) -> nn.Module:
    config._attn_implementation = "eager"
    model: nn.Module = getattr(hf, f"{name}Model")(config)
    return model


@pytest.mark.parametrize("padded_left", [False, True], ids=["right", "left"])
@pytest.mark.parametrize(("name", "config", "words"), MODELS, ids=[m[0] for m in MODELS])
def test_masks_are_told_in_words_and_every_head_is_proved(
    name: str, config: Any, words: str, padded_left: bool
) -> None:
    calls = calls_of(build(name, config), padded_left)
    assert len(calls) == 2
    assert str(calls[0].blocking) == words
    for call in calls:
        assert call.form.plain
        assert call.error_eps < 16
        for batch in range(2):
            call.explain(3, batch).verify()


@pytest.mark.parametrize("padded_left", [False, True], ids=["right", "left"])
def test_contributions_are_sized_by_the_output_projection_of_the_model(padded_left: bool) -> None:
    model = build("Llama", hf.LlamaConfig(**GROUPED))
    call = calls_of(model, padded_left)[1]
    projection: Tensor = model.layers[1].self_attn.o_proj.weight.detach()  # (n_out, heads · d_v)
    for head in range(4):
        found = call.contributions(head)
        assert found.projected
        part = projection[:, 6 * head : 6 * head + 6].double()
        values = call.v[:, head // 2].double() @ part.T
        wanted = call.weights.dense()[:, head] * values.norm(dim=-1)[:, None]
        agree(found.dense()[:, 0], wanted, 1e-4)  # numbers up to about 100


def test_scale_and_soft_cap_are_those_of_the_configuration() -> None:
    call = calls_of(build("Gemma2", hf.Gemma2Config(**WINDOW)), False)[0]
    assert call.scale == pytest.approx(256**-0.5)
    assert call.softcap == pytest.approx(50.0)
    assert call.sinks is None


def test_sinks_are_those_of_the_model() -> None:
    model = build("GptOss", hf.GptOssConfig(**WINDOW, num_local_experts=4, num_experts_per_tok=2))
    call = calls_of(model, False)[0]
    assert call.sinks is not None
    agree(call.sinks.expand(2, 4, 9, 1)[0, :, 0, 0], model.layers[0].self_attn.sinks.detach(), 0)


def test_asking_a_call_while_the_model_is_watched_records_nothing() -> None:
    attention = nn.MultiheadAttention(16, 4, batch_first=True).eval()
    x, calls = torch.randn(2, 5, 16), list[Call]()
    with Observer(attention, calls.append), torch.autocast("cpu", torch.bfloat16):
        with torch.autocast("cpu", enabled=False):
            attention(x, x, x, need_weights=True)
        (call,) = calls
        assert call.error_eps < 16
        call.explain(0).verify()
        assert call.contributions(0).projected
    assert len(calls) == 1


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_padding_on_the_left_in_half_precision_is_computed_as_the_model_did(
    dtype: torch.dtype,
) -> None:
    """Rows of padding are hidden whole by a least value, which swallows the similarities."""
    config = MODELS[1][1]
    for call in calls_of(build("GPT2", config).to(dtype), padded_left=True):
        assert call.form.least
        assert call.error_eps < 16
