"""Marian (Junczys-Dowmunt et al. 2018): the original transformer, trained to translate."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from qkv.errors import ArgumentError, ModelError
from qkv.models.encoder_decoder import EncoderDecoderModel
from qkv.models.family import Family
from qkv.models.formats.files import Files
from qkv.models.language import WritingRules
from qkv.models.reading import check_ids, check_length
from qkv.models.writing.generate import write
from qkv.models.writing.options import Sampling
from qkv.models.writing.written import Written
from qkv.nn.embedding import PositionalEncoding, WordEmbedding
from qkv.nn.transformer import Decoder, Encoder

ACTIVATIONS = {"swish": "silu", "silu": "silu", "gelu": "gelu", "relu": "relu"}


@dataclass(frozen=True)
class MarianConfig:
    """The sizes, by their names in config.json."""

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


class Marian(EncoderDecoderModel):
    """Text in, text out; words of both languages in one table."""

    from_source = "model.translate(texts)"

    def __init__(self, config: MarianConfig, files: Files | None = None) -> None:
        """Draw the weights."""
        n, most = config.d_model, config.max_position_embeddings
        encoder = Encoder(
            config.encoder_layers, n, config.encoder_attention_heads, config.encoder_ffn_dim,
            activation=config.activation,
        )  # fmt: skip
        decoder = Decoder(
            config.decoder_layers, n, config.decoder_attention_heads, config.decoder_ffn_dim,
            activation=config.activation,
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

    def translate(
        self, texts: str | Sequence[str], *, batch_size: int = 8, **options: Any
    ) -> list[Written]:
        """Translate texts, each by itself.

        Args:
            texts: a text, or several.
            batch_size: texts that are read and written together.
            options: how to choose, and when to end: `qkv.models.writing.options.Sampling`; by
                default a translation has 512 tokens at most.

        Raises:
            ArgumentError: no texts, an empty one, one that is too long, or options that do not fit.
            ModelError: the model has no tokenizer.
        """
        return list(self.translations(texts, batch_size=batch_size, **options))

    def translations(
        self, texts: str | Sequence[str], *, batch_size: int = 8, **options: Any
    ) -> Iterator[Written]:
        """Give out each translation when its batch is complete; as `translate`."""
        texts = [texts] if isinstance(texts, str) else texts
        if not texts or batch_size < 1:
            raise ArgumentError(
                f"there are {len(texts)} texts, {batch_size} at a time; wanted 1 or more"
            )
        rows = [self.source_ids(text, f"text {n}") for n, text in enumerate(texts, start=1)]
        sampling = Sampling.of({"max_tokens": 512, **options})
        batches = (rows[i : i + batch_size] for i in range(0, len(rows), batch_size))
        return (written for batch in batches for written in self._translated(batch, sampling))

    def source_ids(self, text: str, name: str = "the text") -> tuple[int, ...]:
        """Return the tokens of a text that is to be translated; `name` is for the errors.

        Raises:
            ArgumentError: an empty text, or one that is too long for the model.
            ModelError: the model has no tokenizer.
        """
        ids = self.tokenizer(text).ids
        if self.most is not None and len(ids) > self.most:
            raise ArgumentError(
                f"{name} ({text[:40]!r}…) has {len(ids)} tokens, the model takes 1 to "
                f"{self.most}; make several texts of it, one a sentence"
            )
        return ids

    @torch.inference_mode()
    def _translated(self, rows: Sequence[Sequence[int]], sampling: Sampling) -> list[Written]:
        source = pad_sequence(
            [torch.tensor(row) for row in rows], batch_first=True, padding_value=self.rules.pad
        )
        cache = self.read(source.to(self.device), [len(row) for row in rows])
        return write(self, [()] * len(rows), sampling, cache)


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
