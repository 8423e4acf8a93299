"""The four modules: self-attention, masked self-attention, attention, multi-head attention."""

from collections.abc import Sequence
from typing import Unpack

import torch
from jaxtyping import Float
from torch import Tensor, nn

from qkv.core.calculation import Calculation
from qkv.core.steps import Head, Projection, Recipe
from qkv.errors import ArgumentError
from qkv.nn.attending import AttentionLayer, MaskLike, Options, as_mask, positive
from qkv.nn.cache import Kept
from qkv.nn.explain import explain
from qkv.nn.linear import Linear
from qkv.nn.packed import Heads, PackedProjections
from qkv.nn.rotary import Angles


class _OneHead(AttentionLayer):
    """One head: three `nn.Linear`s, drawn in the order WQ, WK, WV."""

    def _build(self, device: torch.device | str | None, dtype: torch.dtype | None) -> None:
        n = self.n_embed
        self.WQ = nn.Linear(n, self.d_k, "WQ" in self.biased, device, dtype)
        self.WK = nn.Linear(n, self.d_k, "WK" in self.biased, device, dtype)
        self.WV = nn.Linear(n, self.d_v, "WV" in self.biased, device, dtype)

    def project(
        self, enc_q: Tensor, enc_k: Tensor, enc_v: Tensor, angles: Angles | None = None
    ) -> tuple[
        Float[Tensor, "*batch 1 queries d_k"],
        Float[Tensor, "*batch 1 keys d_k"],
        Float[Tensor, "*batch 1 keys d_v"],
    ]:
        """Return X WQᵀ, X WKᵀ and X WVᵀ."""
        q, k, v = self.WQ(enc_q), self.WK(enc_k), self.WV(enc_v)
        q, k = self.turn(q.unsqueeze(-3), angles), self.turn(k.unsqueeze(-3), angles)
        return q, k, v.unsqueeze(-3)

    @property
    def dtype(self) -> torch.dtype:
        """Of the weights."""
        return self.WQ.weight.dtype

    def head(self, index: int) -> Head:
        """Return the three projections."""
        linears = (self.WQ, self.WK, self.WV)
        return Head(1, *(Projection(linear.weight, linear.bias) for linear in linears))


class SelfAttention(_OneHead):
    """Every token looks at every token, both ways.

    softmax(Q Kᵀ / √d_k) V with Q = X WQᵀ, K = X WKᵀ, V = X WVᵀ   Vaswani et al. 2017, eq. 1

    Args:
        n_embed: values a token.
        row, col: axes of tokens and of values: -2 and -1, or 0 and 1 for inputs of two axes.
        d_k, d_v: values a query and key, and values a value; n_embed by default.
        bias: whether the projections have one; a bool, or their names: ("WQ", "WV").
        rotary: turns queries and keys by their positions; none by default.
        scale: what the similarities are multiplied by; 1 / √d_k by default.
        softcap: c of c · tanh(scaled / c); none by default.
        dropout: probability that a weight is dropped in training.
        device, dtype: of the parameters.

    Raises:
        ArgumentError: an argument that cannot be meant; `forward` raises ShapeError.
    """

    def __init__(
        self, n_embed: int = 2, row: int = -2, col: int = -1, **options: Unpack[Options]
    ) -> None:
        """Draw the weights: WQ, WK, WV."""
        super().__init__(n_embed, row, col, **options)

    def forward(
        self, x: Float[Tensor, "*batch tokens n_embed"]
    ) -> Float[Tensor, "*batch tokens d_v"]:
        """Return one row a token: the values mixed by its weights."""
        return self.context(x, x, x, None).squeeze(-3)

    def explain(
        self,
        x: Float[Tensor, "*batch tokens n_embed"],
        *,
        tokens: Sequence[str] | None = None,
        batch: int | tuple[int, ...] = 0,
    ) -> Calculation:
        """Write down every step for one example of the batch."""
        return explain(self, x, x, x, None, tokens=tokens, batch=batch)


class MaskedSelfAttention(_OneHead):
    """Self-attention in which a token looks at itself and what stands before it.

    softmax(Q Kᵀ / √d_k + M) V, M = 0 where a token may look and −∞ where not

    Args:
        mask: False switches the mask off (then it is `SelfAttention`); True is causal; a `Mask`
            says anything else. The other arguments are those of `SelfAttention`.
    """

    def __init__(
        self,
        n_embed: int = 2,
        row: int = -2,
        col: int = -1,
        mask: MaskLike = False,
        **options: Unpack[Options],
    ) -> None:
        """Draw the weights: WQ, WK, WV."""
        super().__init__(n_embed, row, col, **options)
        self.mask = as_mask(mask)

    def forward(
        self, x: Float[Tensor, "*batch tokens n_embed"]
    ) -> Float[Tensor, "*batch tokens d_v"]:
        """Return one row a token: the values mixed by its weights."""
        return self.context(x, x, x, self.mask).squeeze(-3)

    def explain(
        self,
        x: Float[Tensor, "*batch tokens n_embed"],
        *,
        tokens: Sequence[str] | None = None,
        batch: int | tuple[int, ...] = 0,
    ) -> Calculation:
        """Write down every step for one example of the batch."""
        return explain(self, x, x, x, self.mask, tokens=tokens, batch=batch)


class Attention(_OneHead):
    """One class for all three kinds: queries, keys and values come from where you say.

    `a(x, x, x)` is self-attention, `a(x, x, x, mask=True)` masked, `a(decoder, encoder, encoder)`
    cross-attention. The arguments are those of `SelfAttention`.
    """

    def __init__(
        self, n_embed: int = 2, row: int = -2, col: int = -1, **options: Unpack[Options]
    ) -> None:
        """Draw the weights: WQ, WK, WV."""
        super().__init__(n_embed, row, col, **options)

    def forward(
        self,
        enc_q: Float[Tensor, "*batch queries n_embed"],
        enc_k: Float[Tensor, "*batch keys n_embed"],
        enc_v: Float[Tensor, "*batch keys n_embed"],
        mask: MaskLike = False,
    ) -> Float[Tensor, "*batch queries d_v"]:
        """Return one row a query. `mask`: True is causal, a `Mask` says anything else."""
        return self.context(enc_q, enc_k, enc_v, mask).squeeze(-3)

    def explain(
        self,
        enc_q: Float[Tensor, "*batch queries n_embed"],
        enc_k: Float[Tensor, "*batch keys n_embed"] | None = None,
        enc_v: Float[Tensor, "*batch keys n_embed"] | None = None,
        mask: MaskLike = False,
        *,
        tokens: Sequence[str] | None = None,
        key_tokens: Sequence[str] | None = None,
        batch: int | tuple[int, ...] = 0,
    ) -> Calculation:
        """Write down every step for one example of the batch; keys default to the queries'."""
        return explain(
            self, enc_q, enc_k, enc_v, as_mask(mask), tokens=tokens, key_tokens=key_tokens,
            batch=batch,
        )  # fmt: skip


class MultiHeadAttention(PackedProjections):
    """Several heads side by side, each with its own weights, joined at the end.

    concat(head 1, …, head h) WOᵀ with head i = Attention(…)     Vaswani et al. 2017, sec. 3.2.2

    Args:
        num_heads: heads of the queries.
        n_out: adds the fully connected layer WO to so many values; None only concatenates.
            The three ways back down to n_embed: n_out=n_embed, or d_v=n_embed // num_heads,
            or code behind it that takes any size.
        kv_heads: heads of keys and values (grouped-query attention, Ainslie et al. 2023);
            num_heads by default.
        bias: a bool, or the names of the projections that have one: ("WQ", "WV", "WO").
            The other arguments are those of `SelfAttention`. A transformer layer passes
            d_k = d_v = n_embed // num_heads.

    The projections are packed: `WQ.weight` holds the heads one below the other, and `heads[i]`
    is a view on head i. `load_state_dict` takes this layout and that of a list of single heads
    (`heads.0.WQ.weight`).
    """

    def __init__(
        self,
        n_embed: int = 2,
        row: int = -2,
        col: int = -1,
        num_heads: int = 1,
        *,
        n_out: int | None = None,
        kv_heads: int | None = None,
        **options: Unpack[Options],
    ) -> None:
        """Draw the weights: WQ, WK, WV of head after head, then WO."""
        kv_heads = num_heads if kv_heads is None else kv_heads
        self._joins_by_WO = n_out is not None
        super().__init__(n_embed, row, col, num_heads, kv_heads, **options)
        self.WO: nn.Linear | None = None
        if n_out is not None:
            where = options.get("device"), options.get("dtype")
            self.WO = Linear(
                num_heads * self.d_v, positive("n_out", n_out), "WO" in self.biased, *where
            )

    @property
    def heads(self) -> Heads:
        """Views on the heads: `heads[1].WQ.weight`. Read-only; write into the packed weights."""
        return Heads(self)

    def forward(
        self,
        enc_q: Float[Tensor, "*batch queries n_embed"],
        enc_k: Float[Tensor, "*batch keys n_embed"],
        enc_v: Float[Tensor, "*batch keys n_embed"],
        mask: MaskLike = False,
        *,
        angles: Angles | None = None,
        cache: Kept | None = None,
    ) -> Float[Tensor, "*batch queries n_out"]:
        """Return one row a query.

        Args:
            enc_q, enc_k, enc_v: what queries, keys and values are made of.
            mask: reaches every head: True is causal, a `Mask` says anything else.
            angles: of a rotary layer's positions; by default 0, 1, 2, …, or on from the cache.
            cache: keys and values of what was read before; those of these encodings are added.
        """
        return self.join(self.context(enc_q, enc_k, enc_v, mask, angles, cache))

    def join(
        self, per_head: Float[Tensor, "*batch heads queries d_v"]
    ) -> Float[Tensor, "*batch queries n_out"]:
        """concat(head 1, …, head h) WOᵀ, or without WO the heads side by side."""
        joined = super().join(per_head)
        return joined if self.WO is None else self.WO(joined)

    def recipe(self, head: int | None = None) -> Recipe:
        """Return what the layer does; with `head`, that head alone and nothing joined."""
        if head is not None:
            if not 0 <= head < self.num_heads:
                raise ArgumentError(
                    f"head is {head}; this layer has heads 0 to {self.num_heads - 1}"
                )
            return Recipe((self.head(head),), scale=self.scale, softcap=self.softcap)
        heads = tuple(self.head(i) for i in range(self.num_heads))
        output = None if self.WO is None else Projection(self.WO.weight, self.WO.bias)
        return Recipe(heads, output, joins=True, scale=self.scale, softcap=self.softcap)

    def explain(
        self,
        enc_q: Float[Tensor, "*batch queries n_embed"],
        enc_k: Float[Tensor, "*batch keys n_embed"] | None = None,
        enc_v: Float[Tensor, "*batch keys n_embed"] | None = None,
        mask: MaskLike = False,
        *,
        head: int | None = None,
        tokens: Sequence[str] | None = None,
        key_tokens: Sequence[str] | None = None,
        batch: int | tuple[int, ...] = 0,
        angles: Angles | None = None,
    ) -> Calculation:
        """Write down every step of all heads, or of one (counted from 0) without the joining."""
        return explain(
            self, enc_q, enc_k, enc_v, as_mask(mask), head=head, tokens=tokens,
            key_tokens=key_tokens, batch=batch, angles=angles,
        )  # fmt: skip
