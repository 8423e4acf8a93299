"""GPT-2 (Radford et al. 2019): a decoder over token and learned position embeddings."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from torch import nn

from qkv.models.decoder_only import DecoderOnly
from qkv.models.family import Family
from qkv.models.formats.files import Files
from qkv.models.formats.stored import Stored
from qkv.models.language import WritingRules
from qkv.nn.embedding import PositionalEncoding, WordEmbedding
from qkv.nn.transformer import Decoder


@dataclass(frozen=True)
class Gpt2Config:
    """The sizes, by their names in config.json."""

    vocab_size: int
    n_positions: int
    n_embd: int
    n_layer: int
    n_head: int
    n_inner: int | None = None
    layer_norm_epsilon: float = 1e-5
    bos_token_id: int | None = None
    eos_token_id: int | Sequence[int] | None = None
    pad_token_id: int | None = None


def build(config: Gpt2Config, files: Files) -> DecoderOnly:
    """Pre-norm with LayerNorm, GELU by tanh, learned positions; the table of words is tied."""
    n = config.n_embd
    decoder = Decoder(
        config.n_layer, n, config.n_head, config.n_inner, cross=False, norm_first=True,
        norm=partial(nn.LayerNorm, eps=config.layer_norm_epsilon), activation="gelu_tanh",
    )  # fmt: skip
    positions = PositionalEncoding(n, config.n_positions, learned=True)
    return DecoderOnly(
        config, WordEmbedding(config.vocab_size, n), decoder, positions,
        most=config.n_positions, tokenizer=files.tokenizer(),
        rules=WritingRules.of(config, files),
    )  # fmt: skip


def unpack(name: str, stored: Stored) -> Iterable[tuple[str, Stored]]:
    """GPT-2 stores Wᵀ (inputs × outputs), and queries, keys and values side by side."""
    weight = ".c_" in name and name.endswith(".weight") and len(stored.shape) == 2
    stored = stored.transposed() if weight else stored
    if ".c_attn." not in name or not stored.shape or stored.shape[0] % 3:
        return [(name, stored)]
    third = stored.shape[0] // 3
    return [
        (name.replace("c_attn", f"c_attn.{part}"), stored.rows(i * third, (i + 1) * third))
        for i, part in enumerate(("query", "key", "value"))
    ]


GPT2 = Family(
    name="gpt2",
    config=Gpt2Config,
    assumes={
        "activation_function": "gelu_new",
        "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False,
        "add_cross_attention": False,
        "tie_word_embeddings": True,
    },
    build=build,
    tensors={
        "wte": "words",
        "wpe": "positions",
        "h.*.ln_1": "decoder.layers.*.attention_norm",
        "h.*.attn.c_attn.query": "decoder.layers.*.attention.WQ",
        "h.*.attn.c_attn.key": "decoder.layers.*.attention.WK",
        "h.*.attn.c_attn.value": "decoder.layers.*.attention.WV",
        "h.*.attn.c_proj": "decoder.layers.*.attention.WO",
        "h.*.ln_2": "decoder.layers.*.feed_forward_norm",
        "h.*.mlp.c_fc": "decoder.layers.*.feed_forward.W1",
        "h.*.mlp.c_proj": "decoder.layers.*.feed_forward.W2",
        "ln_f": "decoder.norm",
    },
    spelling={r"^transformer\.": ""},
    # the head is the table of words; triangles that older versions stored
    unused=("lm_head.weight", "h.*.attn.bias", "h.*.attn.masked_bias"),
    unpack=unpack,
)
