"""Llama (Touvron et al. 2023), and what is built like it, such as SmolLM2"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from qkv.errors import ArgumentError
from qkv.models.decoder_only import DecoderOnly
from qkv.models.family import Family
from qkv.models.formats.files import Files
from qkv.models.language import WritingRules
from qkv.nn.embedding import WordEmbedding
from qkv.nn.linear import Linear
from qkv.nn.norm import RMSNorm
from qkv.nn.rotary import Rotary
from qkv.nn.transformer import Decoder


@dataclass(frozen=True)
class LlamaConfig:
    """The sizes, by their names in config.json."""

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    intermediate_size: int
    max_position_embeddings: int
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    rms_norm_eps: float = 1e-6
    rope_theta: float | None = None
    rope_parameters: Mapping[str, Any] | None = None
    rope_scaling: Mapping[str, Any] | None = None
    attention_bias: bool = False
    mlp_bias: bool = False
    tie_word_embeddings: bool = False
    bos_token_id: int | None = None
    eos_token_id: int | Sequence[int] | None = None
    pad_token_id: int | None = None

    @property
    def rotary(self) -> Rotary:
        """How queries and keys turn; config.json says it in an older and a newer way.

        Raises:
            ArgumentError: a base that is no number, or a way to turn that is not known.
        """
        size = self.head_dim or self.hidden_size // self.num_attention_heads
        scaling = self.rope_parameters or self.rope_scaling or {}
        base = scaling.get("rope_theta", 10_000.0 if self.rope_theta is None else self.rope_theta)
        if isinstance(base, bool) or not isinstance(base, int | float):
            raise ArgumentError(f"rope_theta is {base!r}; wanted a number above 0")
        return Rotary(size, float(base), scaling=scaling)


def build(config: LlamaConfig, files: Files) -> DecoderOnly:
    """Pre-norm with RMSNorm, SwiGLU, rotary positions, grouped heads; no biases."""
    n = config.hidden_size
    decoder = Decoder(
        config.num_hidden_layers, n, config.num_attention_heads, config.intermediate_size,
        cross=False, kv_heads=config.num_key_value_heads, d_head=config.head_dim,
        norm=partial(RMSNorm, eps=config.rms_norm_eps), norm_first=True,
        activation="silu", gated=True, bias=config.attention_bias,
        feed_forward_bias=config.mlp_bias, rotary=config.rotary,
    )  # fmt: skip
    head = None if config.tie_word_embeddings else Linear(n, config.vocab_size, bias=False)
    return DecoderOnly(
        config, WordEmbedding(config.vocab_size, n), decoder, head=head,
        most=config.max_position_embeddings, tokenizer=files.tokenizer(),
        rules=WritingRules.of(config, files),
    )  # fmt: skip


LLAMA = Family(
    name="llama",
    config=LlamaConfig,
    assumes={"hidden_act": "silu", "pretraining_tp": 1},
    build=build,
    tensors={
        "model.embed_tokens": "words",
        "model.layers.*.input_layernorm": "decoder.layers.*.attention_norm",
        "model.layers.*.self_attn.q_proj": "decoder.layers.*.attention.WQ",
        "model.layers.*.self_attn.k_proj": "decoder.layers.*.attention.WK",
        "model.layers.*.self_attn.v_proj": "decoder.layers.*.attention.WV",
        "model.layers.*.self_attn.o_proj": "decoder.layers.*.attention.WO",
        "model.layers.*.post_attention_layernorm": "decoder.layers.*.feed_forward_norm",
        "model.layers.*.mlp.gate_proj": "decoder.layers.*.feed_forward.W1",
        "model.layers.*.mlp.up_proj": "decoder.layers.*.feed_forward.W3",
        "model.layers.*.mlp.down_proj": "decoder.layers.*.feed_forward.W2",
        "model.norm": "decoder.norm",
        "lm_head": "head",
    },
    spelling={},
    # `lm_head.weight` may be stored beside the table that it is tied to
    unused=("lm_head.weight", "model.rotary_emb.", "model.layers.*.self_attn.rotary_emb."),
)
