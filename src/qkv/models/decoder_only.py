"""A decoder by itself: GPT-2 and Llama read and write text with one tower."""

from typing import Any, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from qkv.errors import ArgumentError
from qkv.models.language import LanguageModel, WritingRules
from qkv.models.reading import Lengths, Place, Side, check_ids, check_room, place, place_on
from qkv.models.text.tokenizer import Tokenizer
from qkv.nn.cache import KeyValueCache
from qkv.nn.embedding import PositionalEncoding, WordEmbedding
from qkv.nn.layers import DecoderLayer
from qkv.nn.linear import Linear
from qkv.nn.transformer import Decoder


class DecoderOnly(LanguageModel):
    """decoder(words(ids) + positions) Wᵀ: each token sees itself and what stands before it

    Radford et al. 2019 (GPT-2); Touvron et al. 2023 (Llama).

    Args:
        config: the sizes, by their names in config.json.
        words: the table of tokens; it also makes the logits unless there is a `head`.
        decoder: the tower, without cross-attention.
        positions: added to the words; None where the layers are rotary.
        head: a projection of its own to the vocabulary.
        most: positions that the model was made for.
        rules: which tokens begin and end a text.
        tokenizer: cuts text into tokens; without it the model takes ids only.
    """

    def __init__(
        self,
        config: Any,
        words: WordEmbedding,
        decoder: Decoder,
        positions: PositionalEncoding | None = None,
        head: Linear | None = None,
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
        self.decoder, self.head = decoder, head
        self.num_layers = len(decoder.layers)

    @property
    def layers(self) -> tuple[DecoderLayer, ...]:
        """The layers: `layers[0].attention` is the first layer's `MultiHeadAttention`."""
        return cast(tuple[DecoderLayer, ...], tuple(self.decoder.layers))

    @property
    def towers(self) -> dict[str, nn.Module]:
        """The one tower."""
        return {"decoder": self.decoder}

    def forward(
        self,
        ids: Int[Tensor, "batch tokens"],
        lengths: Lengths = None,
        *,
        side: Side = "right",
        cache: KeyValueCache | None = None,
    ) -> Float[Tensor, "batch tokens vocabulary"]:
        """Return the logits of what may follow each token.

        Args:
            ids: numbers of the tokens, padded to one length.
            lengths: real tokens of each row; all of them by default.
            side: where the padding stands; with a cache it stands on the left.
            cache: what was read before; the tokens are added to it.

        Raises:
            ArgumentError: no ids, more than the model has positions for, ids that are not in
                its table, or lengths that do not fit.
        """
        return self.logits(self.hidden_states(ids, lengths, side=side, cache=cache)[-1])

    def hidden_states(
        self,
        ids: Int[Tensor, "batch tokens"],
        lengths: Lengths = None,
        *,
        side: Side = "right",
        cache: KeyValueCache | None = None,
    ) -> list[Float[Tensor, "batch tokens n_embed"]]:
        """Return what goes into each layer, and last what the decoder gives, normalised.

        The arguments and errors are those of `forward`.
        """
        at = self._place(ids, lengths, side, cache)
        x = self._embed(ids, at)
        return list(self.decoder.states(x, None, at.mask, positions=at.positions, cache=cache))

    @torch.no_grad()
    def next(
        self,
        ids: Int[Tensor, "batch tokens"],
        cache: KeyValueCache,
        lengths: Lengths = None,
    ) -> Float[Tensor, "batch vocabulary"]:
        """Read tokens and return the logits of what may follow each row; see `LanguageModel`."""
        at = self._place(ids, lengths, "left", cache)
        with cache.quicker(ids.shape[1]):
            x = self._embed(ids, at)
            y: Tensor = self.decoder(x, None, at.mask, positions=at.positions, cache=cache)
            return self.logits(y[:, -1])

    def logits(self, x: Float[Tensor, "*batch n_embed"]) -> Float[Tensor, "*batch vocabulary"]:
        """How well each token of the vocabulary fits what stands in a row."""
        y: Tensor = self.words.logits(x) if self.head is None else self.head(x)
        return y

    def _place(
        self, ids: Tensor, lengths: Lengths, side: Side, cache: KeyValueCache | None
    ) -> Place:
        check_room(ids, cache, self.most)
        check_ids("ids", ids, self.words.weight.shape[0])
        if cache is None:
            return place(ids, lengths, side)
        if lengths is not None and side != "left":
            raise ArgumentError("with a cache the padding stands on the left; say side='left'")
        return place_on(ids, lengths, cache)

    def _embed(self, ids: Tensor, at: Place) -> Float[Tensor, "batch tokens n_embed"]:
        x: Tensor = self.words(ids)
        return x if self.positions is None else cast(Tensor, self.positions(x, at.positions))
