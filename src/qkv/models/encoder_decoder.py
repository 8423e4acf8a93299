"""An encoder, a decoder and the bridge between them: Marian translates, Whisper listens."""

from abc import abstractmethod
from typing import Any, Unpack, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from qkv.core.mask import Mask
from qkv.errors import ArgumentError
from qkv.models.language import LanguageModel, WritingRules
from qkv.models.reading import (
    Lengths,
    Place,
    Side,
    check_ids,
    check_room,
    place,
    place_on,
    real_tokens,
)
from qkv.models.text.tokenizer import Tokenizer
from qkv.nn.cache import KeyValueCache
from qkv.nn.embedding import PositionalEncoding, WordEmbedding
from qkv.nn.layers import DecoderLayer, LayerOptions
from qkv.nn.transformer import Decoder, Encoder


class EncoderDecoderModel(LanguageModel):
    """decoder(words(ids) + positions, encoder(source)) Wᵀ        Vaswani et al. 2017, figure 1

    A family says how its source becomes rows of numbers: `embed_source`.

    Args:
        config: the sizes, by their names in config.json.
        encoder: the tower that reads the source, both ways.
        decoder: the tower that writes, with cross-attention.
        words: the table of tokens that are written; it also makes the logits.
        positions: added to the words.
        most: positions that the decoder was made for.
        rules: which tokens begin and end a text.
        tokenizer: cuts text into tokens; without it the model takes ids only.
    """

    logit_bias: nn.Parameter | None

    def __init__(
        self,
        config: Any,
        encoder: Encoder,
        decoder: Decoder,
        words: WordEmbedding,
        positions: PositionalEncoding,
        *,
        most: int | None = None,
        rules: WritingRules | None = None,
        tokenizer: Tokenizer | None = None,
    ) -> None:
        """Take the parts as they are."""
        super().__init__()
        self.config, self.most = config, most
        self.rules = WritingRules() if rules is None else rules
        self._tokenizer = tokenizer
        self.words, self.positions = words, positions
        self.encoder, self.decoder = encoder, decoder
        self.num_layers = len(decoder.layers)
        self.register_parameter("logit_bias", None)

    @abstractmethod
    def embed_source(self, source: Tensor) -> Float[Tensor, "batch keys n_embed"]:
        """Return what goes into the encoder: one row a token, or a moment of sound."""

    @property
    def layers(self) -> tuple[DecoderLayer, ...]:
        """The decoder's layers."""
        return cast(tuple[DecoderLayer, ...], tuple(self.decoder.layers))

    @property
    def towers(self) -> dict[str, nn.Module]:
        """The two towers."""
        return {"encoder": self.encoder, "decoder": self.decoder}

    def encoder_states(
        self, source: Tensor, lengths: Lengths = None
    ) -> list[Float[Tensor, "batch keys n_embed"]]:
        """Return what goes into each layer of the encoder, and last what it gives.

        Args:
            source: what `embed_source` takes, padded on the right.
            lengths: real tokens of each row; all of them by default.

        Raises:
            ArgumentError: a source that the model cannot read, or lengths that do not fit.
        """
        x = self.embed_source(source)
        return list(self.encoder.states(x, _hidden(lengths, x)))

    @torch.no_grad()
    def read(self, source: Tensor, lengths: Lengths = None) -> KeyValueCache:
        """Return a cache that holds what the encoder makes of a source, for `next` to write from.

        The arguments and errors are those of `encoder_states`.
        """
        return self._memory(source, lengths)

    def _memory(self, source: Tensor, lengths: Lengths) -> KeyValueCache:
        """Run the encoder; in training its gradients are wanted."""
        x = self.embed_source(source)
        cache = self.new_cache()
        cache.memory = self.encoder(x, _hidden(lengths, x))
        if lengths is not None:
            cache.memory_lengths = torch.as_tensor(lengths, device=x.device).clone()
        return cache

    def forward(
        self,
        source: Tensor,
        ids: Int[Tensor, "batch tokens"],
        source_lengths: Lengths = None,
        lengths: Lengths = None,
        *,
        side: Side = "right",
    ) -> Float[Tensor, "batch tokens vocabulary"]:
        """Return the logits of what may follow each token of a text.

        Args:
            source: what `embed_source` takes, padded on the right.
            ids: the text so far, padded to one length.
            source_lengths, lengths: real tokens of each row; all of them by default.
            side: where the padding of the text stands.

        Raises:
            ArgumentError: no ids, more than there are positions for, ids that are not in the
                table, or lengths that do not fit.
        """
        memory = self._memory(source, source_lengths)
        return self.logits(self.hidden_states(ids, memory, lengths, side=side)[-1])

    def hidden_states(
        self,
        ids: Int[Tensor, "batch tokens"],
        memory: KeyValueCache,
        lengths: Lengths = None,
        *,
        side: Side = "right",
    ) -> list[Float[Tensor, "batch tokens n_embed"]]:
        """Return what goes into each layer of the decoder, and last what it gives.

        Args:
            ids: the text so far, read as a whole: nothing is added to the memory.
            memory: what `read` gave.
            lengths, side: as for `forward`.
        """
        self._check(ids, None)
        at = place(ids, lengths, side)
        states = self._states(ids, at, memory, None)
        return list(states)

    @torch.no_grad()
    def next(
        self,
        ids: Int[Tensor, "batch tokens"],
        cache: KeyValueCache,
        lengths: Lengths = None,
    ) -> Float[Tensor, "batch vocabulary"]:
        """Read tokens and return the logits of what may follow; the cache is what `read` gave."""
        self._check(ids, cache)
        at = place_on(ids, lengths, cache)
        with cache.quicker(ids.shape[1]):
            for state in self._states(ids, at, cache, cache):
                y = state
            return self.logits(y[:, -1])

    def logits(self, x: Float[Tensor, "*batch n_embed"]) -> Float[Tensor, "*batch vocabulary"]:
        """How well each token of the vocabulary fits what stands in a row."""
        y = self.words.logits(x)
        return y if self.logit_bias is None else y + self.logit_bias

    def _states(
        self, ids: Tensor, at: Place, memory: KeyValueCache, cache: KeyValueCache | None
    ) -> Any:
        if memory.memory is None:
            raise ArgumentError("the cache has no memory; wanted what `read(source)` gives")
        y = self.positions(self.words(ids), at.positions)
        hidden = False if memory.memory_mask is None else memory.memory_mask
        return self.decoder.states(
            y, memory.memory, at.mask, hidden, positions=at.positions, cache=cache
        )

    def _check(self, ids: Tensor, cache: KeyValueCache | None) -> None:
        check_room(ids, cache, self.most)
        check_ids("ids", ids, self.words.weight.shape[0])


def towers(config: Any, **options: Unpack[LayerOptions]) -> tuple[Encoder, Decoder]:
    """Return both towers, new, of the sizes that a config.json gives each side.

    Args:
        config: `d_model`; and of each side the layers, attention heads and `ffn_dim`.
        options: of every layer.
    """
    n = config.d_model
    encoder = Encoder(
        config.encoder_layers, n, config.encoder_attention_heads, config.encoder_ffn_dim, **options
    )
    decoder = Decoder(
        config.decoder_layers, n, config.decoder_attention_heads, config.decoder_ffn_dim, **options
    )
    return encoder, decoder


def _hidden(lengths: Lengths, x: Tensor) -> Mask | bool:
    """What hides the padding of a source."""
    if lengths is None:
        return False
    return Mask.padding(real_tokens(lengths, x, of="a source of"))
