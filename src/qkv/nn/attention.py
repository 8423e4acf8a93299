"""The four modules: self-attention, masked self-attention, attention, multi-head attention."""

from collections.abc import Collection, Sequence
from typing import Any, TypedDict, Unpack

import torch
from jaxtyping import Float
from torch import Tensor, nn

from qkv.core.calculation import Calculation
from qkv.core.fused import attention
from qkv.core.mask import Mask, wanted
from qkv.core.steps import Head, Projection, Recipe
from qkv.errors import ArgumentError, ShapeError
from qkv.nn.explain import explain
from qkv.nn.heads import PROJECTIONS, Heads, PackedLinear, draw, pack

Bias = bool | Collection[str]
MaskLike = bool | Mask | None


class Options(TypedDict, total=False):
    """Keyword arguments that all four modules take; `SelfAttention` says what they mean."""

    d_k: int | None
    d_v: int | None
    bias: Bias
    scale: float | None
    softcap: float | None
    dropout: float
    device: torch.device | str | None
    dtype: torch.dtype | None


_CAUSAL = Mask.causal()


class _AttentionLayer(nn.Module):
    """What the four share: projections, the fused call between them, and `explain`."""

    WQ: nn.Linear
    WK: nn.Linear
    WV: nn.Linear

    def __init__(
        self,
        n_embed: int,
        row: int,
        col: int,
        num_heads: int = 1,
        kv_heads: int = 1,
        *,
        d_k: int | None = None,
        d_v: int | None = None,
        bias: Bias = False,
        scale: float | None = None,
        softcap: float | None = None,
        dropout: float = 0.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if (row, col) not in ((-2, -1), (0, 1)):
            many = row > 1 and isinstance(self, MultiHeadAttention)
            hint = f"; did you mean num_heads={row}?" if many else ""
            raise ArgumentError(
                f"row is {row} and col is {col}; wanted -2 and -1 (or 0 and 1, for inputs "
                f"without a batch){hint}"
            )
        self.n_embed, self.row, self.col = _positive("n_embed", n_embed), row, col
        self.num_heads = _positive("num_heads", num_heads)
        self.kv_heads = _positive("kv_heads", kv_heads)
        if num_heads % kv_heads:
            raise ArgumentError(f"num_heads={num_heads} cannot share kv_heads={kv_heads} evenly")
        self.d_k = _positive("d_k", n_embed if d_k is None else d_k)
        self.d_v = _positive("d_v", n_embed if d_v is None else d_v)
        self.scale, self.softcap, self.dropout = scale, softcap, dropout
        if not 0 <= dropout < 1:
            raise ArgumentError(f"dropout is {dropout}; wanted 0 to below 1")
        biased = _biased(bias)
        for name, size in zip(PROJECTIONS, (self.d_k, self.d_k, self.d_v), strict=True):
            heads = num_heads if name == "WQ" else kv_heads
            setattr(self, name, PackedLinear(n_embed, heads * size, name in biased, device, dtype))
        self._draw()

    def _draw(self) -> None:
        """Draw WQ, WK, WV of one head after the other; shared keys and values once."""
        for head in range(self.num_heads):
            fresh = head % (self.num_heads // self.kv_heads) == 0
            for name in PROJECTIONS if fresh else ("WQ",):
                draw(getattr(self, name), self.rows(name, head))

    def rows(self, name: str, head: int) -> slice:
        """Rows of the packed projection `name` that belong to a head, counted from 0."""
        if name != "WQ":
            head //= self.num_heads // self.kv_heads
        size = self.d_v if name == "WV" else self.d_k
        return slice(head * size, (head + 1) * size)

    def context(
        self, enc_q: Tensor, enc_k: Tensor, enc_v: Tensor, mask: MaskLike
    ) -> Float[Tensor, "*batch heads queries d_v"]:
        """softmax(Q Kᵀ / √d_k + M) V of every head, by one fused call."""
        for name, x in (("enc_q", enc_q), ("enc_k", enc_k), ("enc_v", enc_v)):
            self.check(name, x)
        q = self.WQ(enc_q).unflatten(-1, (self.num_heads, self.d_k)).transpose(-3, -2)
        k = self.WK(enc_k).unflatten(-1, (self.kv_heads, self.d_k)).transpose(-3, -2)
        v = self.WV(enc_v).unflatten(-1, (self.kv_heads, self.d_v)).transpose(-3, -2)
        return attention(
            q, k, v, as_mask(mask), scale=self.scale, softcap=self.softcap,
            dropout=self.dropout if self.training else 0.0,
        )  # fmt: skip

    def join(
        self, per_head: Float[Tensor, "*batch heads queries d_v"]
    ) -> Float[Tensor, "*batch queries n_out"]:
        """concat(head 1, …, head h)."""
        return per_head.transpose(-3, -2).flatten(-2)

    def check(self, name: str, x: Tensor) -> None:
        """Raise ShapeError where encodings do not fit the layer."""
        if x.dim() < 2 or x.shape[-1] != self.n_embed:
            raise ShapeError(
                f"{name} is {tuple(x.shape)}; wanted (…, tokens, n_embed={self.n_embed})"
            )
        if self.row == 0 and x.dim() != 2:
            raise ShapeError(
                f"{name} has {x.dim()} axes, but row=0, col=1 name the tokens and the values of "
                f"two; for a batch leave row and col at -2 and -1"
            )

    def _head(self, index: int) -> Head:
        parts = []
        for name in PROJECTIONS:
            linear, rows = getattr(self, name), self.rows(name, index)
            bias = None if linear.bias is None else linear.bias[rows]
            parts.append(Projection(linear.weight[rows], bias))
        return Head(index + 1, *parts)

    def recipe(self, head: int | None = None) -> Recipe:
        """Return what the layer (or one of its heads) does, as `core.steps` takes it."""
        return Recipe((self._head(0),), scale=self.scale, softcap=self.softcap)

    def extra_repr(self) -> str:
        """Return the sizes."""
        return f"n_embed={self.n_embed}, num_heads={self.num_heads}, d_k={self.d_k}, d_v={self.d_v}"


class SelfAttention(_AttentionLayer):
    """Every token looks at every token, both ways.

    softmax(Q Kᵀ / √d_k) V with Q = X WQᵀ, K = X WKᵀ, V = X WVᵀ   Vaswani et al. 2017, eq. 1

    Args:
        n_embed: values a token.
        row, col: axes of tokens and of values: -2 and -1, or 0 and 1 for inputs of two axes.
        d_k, d_v: values a query and key, and values a value; n_embed by default.
        bias: whether the projections have one; a bool, or their names: ("WQ", "WV").
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


class MaskedSelfAttention(_AttentionLayer):
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


class Attention(_AttentionLayer):
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
        enc_k = enc_q if enc_k is None else enc_k
        enc_v = enc_k if enc_v is None else enc_v
        return explain(
            self, enc_q, enc_k, enc_v, as_mask(mask), tokens=tokens, key_tokens=key_tokens,
            batch=batch,
        )  # fmt: skip


class MultiHeadAttention(_AttentionLayer):
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
        super().__init__(n_embed, row, col, num_heads, kv_heads, **options)
        self.WO: nn.Linear | None = None
        if n_out is not None:
            biased = "WO" in _biased(options.get("bias", False))
            where = options.get("device"), options.get("dtype")
            self.WO = nn.Linear(num_heads * self.d_v, _positive("n_out", n_out), biased, *where)

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
    ) -> Float[Tensor, "*batch queries n_out"]:
        """Return one row a query. `mask` reaches every head: True is causal, or a `Mask`."""
        return self.join(self.context(enc_q, enc_k, enc_v, mask))

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
            return Recipe((self._head(head),), scale=self.scale, softcap=self.softcap)
        heads = tuple(self._head(i) for i in range(self.num_heads))
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
    ) -> Calculation:
        """Write down every step of all heads, or of one (counted from 0) without the joining."""
        enc_k = enc_q if enc_k is None else enc_k
        enc_v = enc_k if enc_v is None else enc_v
        return explain(
            self, enc_q, enc_k, enc_v, as_mask(mask), head=head, tokens=tokens,
            key_tokens=key_tokens, batch=batch,
        )  # fmt: skip

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "heads":
            raise ArgumentError("heads are views; copy into WQ.weight, … under torch.no_grad()")
        super().__setattr__(name, value)

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any) -> None:
        pack(state_dict, prefix, self)
        super()._load_from_state_dict(state_dict, prefix, *args)


def as_mask(mask: MaskLike) -> Mask | None:
    """Return a module's mask argument as a Mask: True is causal, False and None are none."""
    if mask is None or mask is False:
        return None
    return _CAUSAL if mask is True else wanted("mask", mask)


def _biased(bias: Bias) -> frozenset[str]:
    names = (*PROJECTIONS, "WO")
    if isinstance(bias, bool):
        return frozenset(names if bias else ())
    unknown = set(bias) - set(names)
    if isinstance(bias, str) or unknown:
        raise ArgumentError(f"bias is {bias!r}; wanted a bool or some of {names}")
    return frozenset(bias)


def _positive(name: str, number: int) -> int:
    if number < 1:
        raise ArgumentError(f"{name} is {number}; wanted 1 or more")
    return number
