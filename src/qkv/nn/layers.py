"""The layers of encoder and decoder: attention, cross-attention, a feed-forward network."""

from collections.abc import Callable, Sequence
from typing import TypedDict, Unpack

import torch
from jaxtyping import Float
from torch import Tensor, nn

from qkv.core.calculation import Calculation
from qkv.errors import ArgumentError
from qkv.nn.attending import Bias, MaskLike, probability
from qkv.nn.attention import MultiHeadAttention
from qkv.nn.cache import LayerCache
from qkv.nn.explain import Batch
from qkv.nn.explain_layer import explain_layer
from qkv.nn.feed_forward import FeedForward
from qkv.nn.rotary import Angles, Rotary

Norm = Callable[[int], nn.Module]
"""Makes the normalisation of so many values a token: `nn.LayerNorm`, `nn.RMSNorm`."""


class LayerOptions(TypedDict, total=False):
    """Keyword arguments of every layer; `EncoderLayer` says what they mean."""

    kv_heads: int | None
    d_head: int | None
    norm: Norm
    norm_first: bool
    activation: str
    gated: bool
    bias: Bias
    feed_forward_bias: bool
    rotary: Rotary | None
    scale: float | None
    softcap: float | None
    dropout: float
    attention_dropout: float
    device: torch.device | str | None
    dtype: torch.dtype | None


class EncoderLayer(nn.Module):
    """Attention, then a feed-forward network; what each adds is normalised.

    y = norm(x + attention(x, x, x))
    z = norm(y + feed_forward(y))        Vaswani et al. 2017, section 3.1 (post-norm)

    y = x + attention(norm(x), …)
    z = y + feed_forward(norm(y))        Xiong et al. 2020, section 2 (pre-norm)

    Args:
        n_embed: values a token.
        num_heads: heads of the attention.
        n_hidden: values a token within the feed-forward network.
        kv_heads: heads of keys and values; num_heads by default.
        d_head: values of a head; n_embed / num_heads by default.
        norm: makes a normalisation of `n_embed` values; `nn.LayerNorm` by default.
        norm_first: whether each part reads what is normalised (pre-norm).
        activation, gated, feed_forward_bias: as `FeedForward` takes them.
        bias: as `MultiHeadAttention` takes it; all four projections by default.
        rotary, scale, softcap: as `MultiHeadAttention` takes them; not for cross-attention.
        dropout: probability that a value that a part adds is dropped in training (Vaswani et al.
            2017, section 5.4).
        attention_dropout: probability that a weight is dropped in training; `dropout` by default.
        device, dtype: of the parameters.

    Raises:
        ArgumentError: the heads cannot share n_embed evenly, or a part refuses its arguments.
    """

    def __init__(
        self, n_embed: int, num_heads: int, n_hidden: int, **options: Unpack[LayerOptions]
    ) -> None:
        """Draw the weights: attention, then feed-forward."""
        super().__init__()
        self.norm_first = options.get("norm_first", False)
        self.dropout = probability("dropout", options.get("dropout", 0.0))
        self.attention = _attention(n_embed, num_heads, options, own=True)
        self.attention_norm = _norm(n_embed, options)
        self._build_cross(n_embed, num_heads, options)
        self.feed_forward = FeedForward(
            n_embed, n_hidden, activation=options.get("activation", "gelu"),
            gated=options.get("gated", False), bias=options.get("feed_forward_bias", True),
            device=options.get("device"), dtype=options.get("dtype"),
        )  # fmt: skip
        self.feed_forward_norm = _norm(n_embed, options)

    def _build_cross(self, n_embed: int, num_heads: int, options: LayerOptions) -> None:
        """An encoder looks at nothing but itself."""

    def around(
        self,
        x: Float[Tensor, "*batch tokens n_embed"],
        norm: nn.Module,
        part: Callable[[Tensor], Tensor],
    ) -> Float[Tensor, "*batch tokens n_embed"]:
        """norm(x + part(x)), or x + part(norm(x)) where the norm comes first"""
        added = part(norm(x)) if self.norm_first else part(x)
        if self.training and self.dropout:
            added = torch.dropout(added, self.dropout, True)
        y = x + added
        return y if self.norm_first else norm(y)

    def forward(
        self,
        x: Float[Tensor, "*batch tokens n_embed"],
        mask: MaskLike = False,
        *,
        angles: Angles | None = None,
        cache: LayerCache | None = None,
    ) -> Float[Tensor, "*batch tokens n_embed"]:
        """Return one row a token.

        Args:
            x: one row a token.
            mask: True is causal, a `Mask` says anything else.
            angles: of a rotary layer's positions.
            cache: what the layer keeps of earlier tokens.
        """
        if self.norm_first:
            self.attention.check("x", x)  # a norm's own error names no argument
        own = None if cache is None else cache.own
        y = self.around(
            x, self.attention_norm,
            lambda x: self.attention(x, x, x, mask, angles=angles, cache=own),
        )  # fmt: skip
        return self.around(y, self.feed_forward_norm, self.feed_forward)

    def explain(
        self,
        x: Float[Tensor, "*batch tokens n_embed"],
        mask: MaskLike = False,
        *,
        tokens: Sequence[str] | None = None,
        batch: Batch = 0,
        angles: Angles | None = None,
    ) -> Calculation:
        """Write down every step of the layer, norms and feed-forward network included.

        The arguments and errors are those of `nn.explain_layer`; for small sizes only.
        """
        return explain_layer(self, x, None, mask, tokens=tokens, batch=batch, angles=angles)


class DecoderLayer(EncoderLayer):
    """Masked self-attention, attention over what an encoder gave, a feed-forward network.

    x = norm(x + attention(x, x, x, causal))
    y = norm(x + cross(x, memory, memory))
    z = norm(y + feed_forward(y))        Vaswani et al. 2017, section 3.1 (post-norm)

    Args:
        cross: whether the layer looks at a memory; a decoder by itself (GPT-2, Llama) does not.
            The other arguments are those of `EncoderLayer`.
    """

    cross: MultiHeadAttention | None
    cross_norm: nn.Module | None

    def __init__(
        self,
        n_embed: int,
        num_heads: int,
        n_hidden: int,
        *,
        cross: bool = True,
        **options: Unpack[LayerOptions],
    ) -> None:
        """Draw the weights: attention, cross-attention, then feed-forward."""
        self._crosses = cross
        super().__init__(n_embed, num_heads, n_hidden, **options)

    def _build_cross(self, n_embed: int, num_heads: int, options: LayerOptions) -> None:
        crosses = self._crosses
        self.cross = _attention(n_embed, num_heads, options, own=False) if crosses else None
        self.cross_norm = _norm(n_embed, options) if crosses else None

    def forward(  # type: ignore[override]  # a memory stands between x and its mask
        self,
        y: Float[Tensor, "*batch tokens n_embed"],
        memory: Float[Tensor, "*batch keys n_embed"] | None = None,
        mask: MaskLike = True,
        memory_mask: MaskLike = False,
        *,
        angles: Angles | None = None,
        cache: LayerCache | None = None,
    ) -> Float[Tensor, "*batch tokens n_embed"]:
        """Return one row a token.

        Args:
            y: one row a token.
            memory: what the encoder gave; wanted where the layer has cross-attention.
            mask: between the tokens themselves; causal by default.
            memory_mask: which of the memory each token may look at.
            angles: of a rotary layer's positions.
            cache: what the layer keeps of earlier tokens and of the memory.

        Raises:
            ArgumentError: a memory is missing, or there is one that nothing looks at.
        """
        if (memory is None) == (self.cross is not None):
            raise ArgumentError(
                "memory is missing: the layer has cross-attention; pass what the encoder gave"
                if memory is None
                else "memory is given, but the layer has no cross-attention; leave it out"
            )
        if self.norm_first:
            self.attention.check("y", y)
        own, kept = (None, None) if cache is None else (cache.own, cache.cross)
        y = self.around(
            y, self.attention_norm,
            lambda y: self.attention(y, y, y, mask, angles=angles, cache=own),
        )  # fmt: skip
        cross, norm = self.cross, self.cross_norm
        if cross is not None and norm is not None:
            y = self.around(y, norm, lambda y: cross(y, memory, memory, memory_mask, cache=kept))
        return self.around(y, self.feed_forward_norm, self.feed_forward)

    def explain(  # type: ignore[override]  # a memory stands between y and its mask
        self,
        y: Float[Tensor, "*batch tokens n_embed"],
        memory: Float[Tensor, "*batch keys n_embed"] | None = None,
        mask: MaskLike = True,
        memory_mask: MaskLike = False,
        *,
        tokens: Sequence[str] | None = None,
        memory_tokens: Sequence[str] | None = None,
        batch: Batch = 0,
        angles: Angles | None = None,
    ) -> Calculation:
        """Write down every step of the layer; see `EncoderLayer.explain`."""
        return explain_layer(
            self, y, memory, mask, memory_mask=memory_mask, tokens=tokens,
            memory_tokens=memory_tokens, batch=batch, angles=angles,
        )  # fmt: skip


def _attention(
    n_embed: int, num_heads: int, options: LayerOptions, *, own: bool
) -> MultiHeadAttention:
    """Self-attention (`own`) or cross-attention of a layer."""
    size = options.get("d_head")
    if size is None:
        if num_heads < 1 or n_embed % num_heads:
            raise ArgumentError(f"num_heads={num_heads} cannot share n_embed={n_embed} evenly")
        size = n_embed // num_heads
    return MultiHeadAttention(
        n_embed, num_heads=num_heads, kv_heads=options.get("kv_heads"), n_out=n_embed,
        d_k=size, d_v=size, bias=options.get("bias", True),
        rotary=options.get("rotary") if own else None,
        scale=options.get("scale"), softcap=options.get("softcap"),
        dropout=probability(
            "attention_dropout", options.get("attention_dropout", options.get("dropout", 0.0))
        ),
        device=options.get("device"), dtype=options.get("dtype"),
    )  # fmt: skip


def _norm(n_embed: int, options: LayerOptions) -> nn.Module:
    make = options.get("norm", nn.LayerNorm)
    return make(n_embed).to(options.get("device"), options.get("dtype"))
