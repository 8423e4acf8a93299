"""Recurrent networks that translate, with attention and without: before the transformer."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from qkv.core.calculation import Calculation
from qkv.errors import ArgumentError
from qkv.models.family import Family
from qkv.models.formats.files import Files
from qkv.models.language import WritingRules
from qkv.models.reading import Lengths, check_ids, check_length, place_on, real_tokens
from qkv.models.translating import Translator
from qkv.nn.alignment import Alignment
from qkv.nn.cache import KeyValueCache
from qkv.nn.embedding import WordEmbedding
from qkv.nn.recurrent import (
    Attending,
    Decoded,
    RecurrentDecoder,
    RecurrentEncoder,
    Source,
    StateCache,
)


@dataclass(frozen=True)
class RecurrentConfig:
    """The sizes, by their names in config.json.

    Attributes:
        vocab_size: tokens of both languages.
        d_embed: values a token.
        d_hidden: values of a state, and of a row of the memory; an even number.
        layers: networks on top of each other, on both sides.
        attention: how the decoder looks at the source: "additive", "dot", or None for the single
            vector.
        dropout: probability that a value is dropped in training.
        decoder_start_token_id: stands before the first token that is written.
        pad_token_id: fills the rows of a batch.
        eos_token_id: ends a text.
        bad_words_ids: lists of one token each that is never written.
    """

    vocab_size: int
    d_embed: int
    d_hidden: int
    layers: int = 1
    attention: str | None = None
    dropout: float = 0.0
    decoder_start_token_id: int | None = None
    pad_token_id: int | None = None
    eos_token_id: int | Sequence[int] | None = None
    bad_words_ids: Sequence[Sequence[int]] | None = None


class Recurrent(Translator):
    """decoder(words(ids), encoder(words(source))) Wᵀ + b        Bahdanau et al. 2015, section 3

    Words of both languages lie in one table, which also makes the logits. A text may be of any
    length; what a single vector can hold of it is another matter.

    Args:
        config: the sizes.
        files: where the model's tokenizer is; without it the model takes ids only.

    Raises:
        ArgumentError: sizes or a kind of attention that make no model.
    """

    most = None

    def __init__(self, config: RecurrentConfig, files: Files | None = None) -> None:
        """Draw the weights."""
        super().__init__()
        c = self.config = config
        self.num_layers = c.layers
        self.rules = WritingRules.of(c, files)
        self._tokenizer = None if files is None else files.tokenizer()
        self.words = WordEmbedding(c.vocab_size, c.d_embed, scaled=True)
        self.encoder = RecurrentEncoder(c.d_embed, c.d_hidden, c.layers, dropout=c.dropout)
        kind = cast(Attending | None, c.attention)
        self.decoder = RecurrentDecoder(
            c.d_embed, c.d_hidden, c.layers, attention=kind, dropout=c.dropout
        )
        self.dropout = nn.Dropout(c.dropout)
        self.logit_bias = nn.Parameter(torch.zeros(c.vocab_size))

    def forward(
        self,
        source: Int[Tensor, "batch keys"],
        ids: Int[Tensor, "batch tokens"],
        source_lengths: Lengths = None,
        lengths: Lengths = None,
    ) -> Float[Tensor, "batch tokens vocabulary"]:
        """Return the logits of what may follow each token of a text.

        Args:
            source: the text that is to be translated, padded on the right.
            ids: its translation so far, padded on the right.
            source_lengths, lengths: real tokens of each row; all of them by default. No token
                sees what stands behind it, so padding of `ids` changes nothing before it.

        Raises:
            ArgumentError: no ids, ids that are not in the table, or lengths that do not fit.
        """
        if lengths is not None:
            real_tokens(lengths, ids)
        return self.logits(self._decoded(source, ids, source_lengths)[0].output)

    @torch.no_grad()
    def weights(
        self,
        source: Int[Tensor, "batch keys"],
        ids: Int[Tensor, "batch tokens"],
        source_lengths: Lengths = None,
    ) -> Float[Tensor, "batch tokens keys"]:
        """Return how much the decoder looked at each token of a source: a row for each token.

        The row of a token is that with which the next one was told. The arguments are those of
        `forward`.

        Raises:
            ArgumentError: the model has no attention; and what `forward` raises.
        """
        alignment = self._alignment()
        decoded, known = self._decoded(source, ids, source_lengths)
        return alignment.weights(decoded.queries, known.keys, known.lengths)

    @torch.no_grad()
    def explain(
        self,
        source: Sequence[int],
        ids: Sequence[int],
        *,
        tokens: Sequence[str] | None = None,
        key_tokens: Sequence[str] | None = None,
    ) -> Calculation:
        """Write down how the decoder looked at a source while it read a translation.

        Args:
            source: tokens of the text that is to be translated.
            ids: tokens of its translation so far; a row of the calculation is that with which the
                token behind it was told.
            tokens, key_tokens: names of the rows of both.

        Raises:
            ArgumentError: the model has no attention, or no ids or such as are not in the table.
        """
        alignment = self._alignment()
        read, written = (
            torch.tensor([list(row)], dtype=torch.long, device=self.device) for row in (source, ids)
        )
        decoded, known = self._decoded(read, written, None)
        return alignment.explain(
            decoded.queries[0], known.memory[0], tokens=tokens, key_tokens=key_tokens
        )

    @torch.no_grad()
    def read(self, source: Int[Tensor, "batch keys"], lengths: Lengths = None) -> StateCache:
        """Return a cache that holds what the encoder makes of a source, for `next` to write from.

        The arguments and errors are those of `forward`.
        """
        return StateCache(*self._read(source, lengths))

    @torch.no_grad()
    def next(
        self,
        ids: Int[Tensor, "batch tokens"],
        cache: KeyValueCache,
        lengths: Lengths = None,
    ) -> Float[Tensor, "batch vocabulary"]:
        """Read tokens and return the logits of what may follow; the cache is what `read` gave."""
        if not isinstance(cache, StateCache):
            raise ArgumentError("the cache has no memory; wanted what `read(source)` gives")
        y = self._embed("ids", ids)
        place_on(ids, lengths, cache)
        decoded = self._read_on(y, cache)
        cache.keep(decoded.last, ids.shape[1])
        return self.logits(decoded.output[:, -1])

    def logits(self, x: Float[Tensor, "*batch d_embed"]) -> Float[Tensor, "*batch vocabulary"]:
        """How well each token of the vocabulary fits what stands in a row."""
        return self.words.logits(self.dropout(x)) + self.logit_bias

    def _read(self, source: Tensor, lengths: Lengths) -> tuple[Source, Tensor]:
        """Return what the decoder looks at, and the states with which it begins."""
        real = None if lengths is None else real_tokens(lengths, source, "source_lengths")
        memory, summary = self.encoder(self._embed("source", source), real)
        return self.decoder.source(memory, summary, real), self.decoder.begin(summary)

    def _decoded(
        self, source: Tensor, ids: Tensor, source_lengths: Lengths
    ) -> tuple[Decoded, Source]:
        y = self._embed("ids", ids)
        known, states = self._read(source, source_lengths)
        return self.decoder(y, known, states), known

    def _read_on(self, y: Tensor, cache: StateCache) -> Decoded:
        """Read on; padding on the left, of prompts of several lengths, leaves a state as it was."""
        start, before = cache.start, cache.length
        if start is None or int(start.max()) <= before:
            return self.decoder(y, cache.source, cache.states)  # type: ignore[no-any-return]
        states = cache.states
        for column, word in enumerate(y.split(1, dim=1), start=before):
            decoded: Decoded = self.decoder(word, cache.source, states)
            states = torch.where((column >= start)[:, None], decoded.last, states)
        return decoded._replace(last=states)

    def _embed(self, name: str, ids: Tensor) -> Float[Tensor, "batch tokens d_embed"]:
        check_length(ids.shape[-1], None)
        check_ids(name, ids, self.words.weight.shape[0])
        x: Tensor = self.dropout(self.words(ids))
        return x

    def _alignment(self) -> Alignment:
        if self.decoder.attention is None:
            raise ArgumentError(
                "this model has no attention: all that its decoder knows of a source is one vector"
            )
        return self.decoder.attention


RECURRENT = Family(
    name="qkv_recurrent",
    config=RecurrentConfig,
    assumes={},
    build=Recurrent,
    tensors={
        "words": "words",
        "encoder": "encoder.rnn",
        "decoder": "decoder.rnn",
        "decoder.start": "decoder.start",
        "decoder.mix": "decoder.mix",
        "decoder.attention.WQ": "decoder.attention.WQ",
        "decoder.attention.WK": "decoder.attention.WK",
        "decoder.attention.v": "decoder.attention.v",
        "logit_bias": "logit_bias",
    },
    spelling={},
    unused=(),
)
