"""The towers: an encoder, a decoder, and the two with the bridge between them."""

from collections.abc import Iterator
from typing import Unpack, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from qkv.errors import ArgumentError
from qkv.nn.attending import MaskLike, as_mask, positive
from qkv.nn.cache import KeyValueCache
from qkv.nn.layers import DecoderLayer, EncoderLayer, LayerOptions, Norm
from qkv.nn.rotary import Angles


class Encoder(nn.Module):
    """x₀ = x, xᵢ = layerᵢ(xᵢ₋₁); gives the last, normalised where each layer's norm comes first

    Args:
        num_layers, n_embed, num_heads, n_hidden: the sizes; by default those of the original,
            six layers of eight heads over 512 values (Vaswani et al. 2017, table 3, base).
        final_norm: whether what the last layer gives is normalised; `norm_first` by default.
        options: as `EncoderLayer` takes them.
    """

    def __init__(
        self,
        num_layers: int = 6,
        n_embed: int = 512,
        num_heads: int = 8,
        n_hidden: int | None = None,
        *,
        final_norm: bool | None = None,
        **options: Unpack[LayerOptions],
    ) -> None:
        """Draw the weights, the first layer first; n_hidden is 4 n_embed by default."""
        super().__init__()
        n_hidden = 4 * n_embed if n_hidden is None else n_hidden
        self.layers = nn.ModuleList(
            EncoderLayer(n_embed, num_heads, n_hidden, **options)
            for _ in range(positive("num_layers", num_layers))
        )
        self.norm = _final(n_embed, final_norm, options)

    def forward(
        self, x: Float[Tensor, "*batch tokens n_embed"], mask: MaskLike = False
    ) -> Float[Tensor, "*batch tokens n_embed"]:
        """Return what the last layer gives. The mask reaches every layer."""
        for state in self.states(x, mask):
            x = state
        return x

    def states(
        self, x: Float[Tensor, "*batch tokens n_embed"], mask: MaskLike = False
    ) -> Iterator[Float[Tensor, "*batch tokens n_embed"]]:
        """Go through what goes into each layer, and last what the encoder gives."""
        angles = _angles(self.layers[0], x, None)
        for layer in self.layers:
            yield x
            x = layer(x, mask, angles=angles)
        yield x if self.norm is None else self.norm(x)


class Decoder(nn.Module):
    """y₀ = y, yᵢ = layerᵢ(yᵢ₋₁, memory); gives the last, as `Encoder`

    Args:
        num_layers, n_embed, num_heads, n_hidden, final_norm, options: as `Encoder` takes them.
        cross: whether it looks at what an encoder gave; False makes the decoder of GPT.
    """

    def __init__(
        self,
        num_layers: int = 6,
        n_embed: int = 512,
        num_heads: int = 8,
        n_hidden: int | None = None,
        *,
        cross: bool = True,
        final_norm: bool | None = None,
        **options: Unpack[LayerOptions],
    ) -> None:
        """Draw the weights, the first layer first; n_hidden is 4 n_embed by default."""
        super().__init__()
        n_hidden = 4 * n_embed if n_hidden is None else n_hidden
        self.layers = nn.ModuleList(
            DecoderLayer(n_embed, num_heads, n_hidden, cross=cross, **options)
            for _ in range(positive("num_layers", num_layers))
        )
        self.norm = _final(n_embed, final_norm, options)

    def forward(
        self,
        y: Float[Tensor, "*batch tokens n_embed"],
        memory: Float[Tensor, "*batch keys n_embed"] | None = None,
        mask: MaskLike = True,
        memory_mask: MaskLike = False,
        *,
        positions: Int[Tensor, "*#batch tokens"] | None = None,
        cache: KeyValueCache | None = None,
    ) -> Float[Tensor, "*batch tokens n_embed"]:
        """Return what the last layer gives; the arguments are those of `states`."""
        for state in self.states(y, memory, mask, memory_mask, positions=positions, cache=cache):
            y = state
        return y

    def states(
        self,
        y: Float[Tensor, "*batch tokens n_embed"],
        memory: Float[Tensor, "*batch keys n_embed"] | None = None,
        mask: MaskLike = True,
        memory_mask: MaskLike = False,
        *,
        positions: Int[Tensor, "*#batch tokens"] | None = None,
        cache: KeyValueCache | None = None,
    ) -> Iterator[Float[Tensor, "*batch tokens n_embed"]]:
        """Go through what goes into each layer, and last what the decoder gives.

        Args:
            y: one row a token.
            memory: what the encoder gave.
            mask: between the tokens; causal by default. What a cache hides (padding, and what
                lies beyond its window) is hidden besides.
            memory_mask: which of the memory may be looked at.
            positions: of rotary layers; by default 0, 1, 2, …, or on from the cache.
            cache: what was read before; the tokens are added to it, or none where a layer fails.

        Raises:
            ArgumentError: a cache of another number of layers; and what `DecoderLayer` raises.
        """
        if cache is not None and len(cache.layers) != len(self.layers):
            raise ArgumentError(
                f"the cache has {len(cache.layers)} layers, the decoder {len(self.layers)}"
            )
        angles = _angles(self.layers[0], y, cache, positions)
        mask = _seen(mask, y.shape[-2], cache)
        before = 0 if cache is None else cache.length
        try:
            for i, layer in enumerate(self.layers):
                yield y
                kept = None if cache is None else cache.layers[i]
                y = layer(y, memory, mask, memory_mask, angles=angles, cache=kept)
        except BaseException:  # no layer keeps tokens that another one has not read
            if cache is not None:
                cache.cut(before)
            raise
        yield y if self.norm is None else self.norm(y)


class EncoderDecoder(nn.Module):
    """decoder(y, encoder(x)): each side a tower, cross-attention the bridge between them

    Args:
        num_layers, n_embed, num_heads, n_hidden, final_norm, options: of both towers, as
            `Encoder` takes them.
    """

    def __init__(
        self,
        num_layers: int = 6,
        n_embed: int = 512,
        num_heads: int = 8,
        n_hidden: int | None = None,
        *,
        final_norm: bool | None = None,
        **options: Unpack[LayerOptions],
    ) -> None:
        """Draw the weights: encoder, then decoder."""
        super().__init__()
        sizes = num_layers, n_embed, num_heads, n_hidden
        self.encoder = Encoder(*sizes, final_norm=final_norm, **options)
        self.decoder = Decoder(*sizes, final_norm=final_norm, **options)

    def forward(
        self,
        x: Float[Tensor, "*batch keys n_embed"],
        y: Float[Tensor, "*batch tokens n_embed"],
        x_mask: MaskLike = False,
        mask: MaskLike = True,
    ) -> Float[Tensor, "*batch tokens n_embed"]:
        """Return one row for each row of y. `x_mask` hides padding of x on both sides."""
        decoded: Tensor = self.decoder(y, self.encoder(x, x_mask), mask, x_mask)
        return decoded


def _final(n_embed: int, final_norm: bool | None, options: LayerOptions) -> nn.Module | None:
    wanted = options.get("norm_first", False) if final_norm is None else final_norm
    make: Norm = options.get("norm", nn.LayerNorm)
    return make(n_embed).to(options.get("device"), options.get("dtype")) if wanted else None


def _seen(mask: MaskLike, tokens: int, cache: KeyValueCache | None) -> MaskLike:
    """Join the mask between tokens with what the cache hides from them."""
    if cache is None:
        return mask
    if mask is True and tokens == 1:  # a single token sees all that stands before it
        mask = False
    hidden, own = cache.mask(tokens), as_mask(mask)
    if hidden is None or own is None:
        return mask if hidden is None else hidden
    return hidden & own


def _angles(
    layer: nn.Module, x: Tensor, cache: KeyValueCache | None, positions: Tensor | None = None
) -> Angles | None:
    """Angles of rotary layers, made once for all of them."""
    rotary = cast(EncoderLayer, layer).attention.rotary
    if rotary is None:
        return None
    if positions is None:
        tokens = x.shape[-2]
        positions = (
            torch.arange(tokens, device=x.device)
            if cache is None
            else cache.positions(tokens, x.device)
        )
    return rotary.angles(positions, x.dtype)
