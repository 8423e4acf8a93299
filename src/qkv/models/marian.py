"""Marian (Junczys-Dowmunt et al. 2018): the original transformer, trained to translate."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from qkv.errors import ModelError
from qkv.models.encoder_decoder import EncoderDecoderModel, towers
from qkv.models.family import Family
from qkv.models.formats.files import Files
from qkv.models.language import WritingRules
from qkv.models.reading import check_ids, check_length
from qkv.models.translating import Translator
from qkv.nn.embedding import PositionalEncoding, WordEmbedding

ACTIVATIONS = {"swish": "silu", "silu": "silu", "gelu": "gelu", "relu": "relu"}


@dataclass(frozen=True)
class MarianConfig:
    """The sizes, by their names in config.json; the two dropouts matter in training alone."""

    vocab_size: int
    d_model: int
    encoder_layers: int
    encoder_attention_heads: int
    encoder_ffn_dim: int
    decoder_layers: int
    decoder_attention_heads: int
    decoder_ffn_dim: int
    max_position_embeddings: int
    decoder_vocab_size: int | None = None
    activation_function: str = "gelu"
    scale_embedding: bool = False
    dropout: float = 0.0
    attention_dropout: float = 0.0
    share_encoder_decoder_embeddings: bool = True
    decoder_start_token_id: int | None = None
    pad_token_id: int | None = None
    eos_token_id: int | Sequence[int] | None = None
    forced_eos_token_id: int | None = None
    bad_words_ids: Sequence[Sequence[int]] | None = None

    @property
    def activation(self) -> str:
        """What bends in the feed-forward network, by our name; ModelError for another."""
        if self.activation_function not in ACTIVATIONS:
            raise ModelError(
                f"activation_function is {self.activation_function!r}; known: "
                f"{', '.join(ACTIVATIONS)}"
            )
        return ACTIVATIONS[self.activation_function]


class Marian(EncoderDecoderModel, Translator):
    """Text in, text out; words of both languages in one table."""

    def __init__(self, config: MarianConfig, files: Files | None = None) -> None:
        """Draw the weights."""
        n, most = config.d_model, config.max_position_embeddings
        encoder, decoder = towers(
            config, activation=config.activation,
            dropout=config.dropout, attention_dropout=config.attention_dropout,
        )  # fmt: skip
        super().__init__(
            config, encoder, decoder,
            WordEmbedding(config.vocab_size, n, scaled=config.scale_embedding),
            PositionalEncoding(n, most, layout="halves"), most=most,
            rules=None if files is None else WritingRules.of(config, files),
            tokenizer=None if files is None else files.tokenizer(),
        )  # fmt: skip
        self.logit_bias = nn.Parameter(torch.zeros(1, config.vocab_size))

    def embed_source(
        self, source: Int[Tensor, "batch keys"]
    ) -> Float[Tensor, "batch keys n_embed"]:
        """Return words and positions of the text that is to be translated."""
        check_length(source.shape[-1], self.most)
        check_ids("source", source, self.words.weight.shape[0])
        x: Tensor = self.positions(self.words(source))
        return x


def _tower(side: str) -> dict[str, str]:
    """Names of what encoder and decoder have alike."""
    theirs, ours = f"model.{side}.layers.*", f"{side}.layers.*"
    return {
        f"{theirs}.self_attn.q_proj": f"{ours}.attention.WQ",
        f"{theirs}.self_attn.k_proj": f"{ours}.attention.WK",
        f"{theirs}.self_attn.v_proj": f"{ours}.attention.WV",
        f"{theirs}.self_attn.out_proj": f"{ours}.attention.WO",
        f"{theirs}.self_attn_layer_norm": f"{ours}.attention_norm",
        f"{theirs}.fc1": f"{ours}.feed_forward.W1",
        f"{theirs}.fc2": f"{ours}.feed_forward.W2",
        f"{theirs}.final_layer_norm": f"{ours}.feed_forward_norm",
    }


TOWERS = {
    **_tower("encoder"),
    **_tower("decoder"),
    "model.decoder.layers.*.encoder_attn.q_proj": "decoder.layers.*.cross.WQ",
    "model.decoder.layers.*.encoder_attn.k_proj": "decoder.layers.*.cross.WK",
    "model.decoder.layers.*.encoder_attn.v_proj": "decoder.layers.*.cross.WV",
    "model.decoder.layers.*.encoder_attn.out_proj": "decoder.layers.*.cross.WO",
    "model.decoder.layers.*.encoder_attn_layer_norm": "decoder.layers.*.cross_norm",
}
"""Names of the layers of an encoder and a decoder; Whisper's are the same."""

MARIAN = Family(
    name="marian",
    config=MarianConfig,
    assumes={
        "share_encoder_decoder_embeddings": True,
        "tie_word_embeddings": True,
        "normalize_before": False,
        "normalize_embedding": False,
        "static_position_embeddings": True,
        "add_final_layer_norm": False,
    },
    build=Marian,
    tensors={"model.shared": "words", "final_logits_bias": "logit_bias", **TOWERS},
    spelling={},
    # copies of the one table, and positions that are computed
    unused=("lm_head.weight", "model.encoder.embed_", "model.decoder.embed_"),
)
