"""What every attention module shares: sizes, checks, the fused call, and `explain`'s recipe."""

from abc import ABC, abstractmethod
from collections.abc import Collection
from typing import TypedDict

import torch
from jaxtyping import Float
from torch import Tensor, nn

from qkv.core.fused import attention
from qkv.core.mask import Mask, wanted
from qkv.core.steps import Head, Recipe
from qkv.errors import ArgumentError, ShapeError
from qkv.nn.cache import Kept
from qkv.nn.rotary import Angles, Rotary

PROJECTIONS = ("WQ", "WK", "WV")

Bias = bool | Collection[str]
MaskLike = bool | Mask | None


class Options(TypedDict, total=False):
    """Keyword arguments that all four modules take; `SelfAttention` says what they mean."""

    d_k: int | None
    d_v: int | None
    bias: Bias
    rotary: Rotary | None
    scale: float | None
    softcap: float | None
    dropout: float
    device: torch.device | str | None
    dtype: torch.dtype | None


_CAUSAL = Mask.causal()


class AttentionLayer(nn.Module, ABC):
    """softmax(Q Kᵀ / √d_k + M) V of one head or of several; subclasses hold the projections."""

    several = False
    """Whether the module has a `num_heads` of its own."""

    _joins_by_WO = False

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
        rotary: Rotary | None = None,
        scale: float | None = None,
        softcap: float | None = None,
        dropout: float = 0.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        """Check the sizes, then make the projections; `SelfAttention` says what they mean."""
        super().__init__()
        if (row, col) not in ((-2, -1), (0, 1)):
            many = row > 1 and self.several
            hint = f"; did you mean num_heads={row}?" if many else ""
            raise ArgumentError(
                f"row is {row} and col is {col}; wanted -2 and -1 (or 0 and 1, for inputs "
                f"without a batch){hint}"
            )
        self.n_embed, self.row, self.col = positive("n_embed", n_embed), row, col
        self.num_heads = positive("num_heads", num_heads)
        self.kv_heads = positive("kv_heads", kv_heads)
        if num_heads % kv_heads:
            raise ArgumentError(f"num_heads={num_heads} cannot share kv_heads={kv_heads} evenly")
        self.d_k = positive("d_k", n_embed if d_k is None else d_k)
        self.d_v = positive("d_v", n_embed if d_v is None else d_v)
        self.scale, self.softcap, self.dropout = scale, softcap, probability("dropout", dropout)
        self.rotary = rotary
        if rotary is not None and rotary.d_k != self.d_k:
            raise ArgumentError(f"rotary turns heads of {rotary.d_k} values, d_k is {self.d_k}")
        if softcap is not None and softcap <= 0:
            raise ArgumentError(f"softcap is {softcap}; wanted a number above 0, or None")
        self.biased = _biased(bias)
        if "WO" in self.biased and not isinstance(bias, bool) and not self._joins_by_WO:
            raise ArgumentError("bias names WO, but there is none; say n_out, or leave it out")
        self._build(device, dtype)

    @abstractmethod
    def _build(self, device: torch.device | str | None, dtype: torch.dtype | None) -> None:
        """Make the projections and draw their weights."""

    @property
    @abstractmethod
    def dtype(self) -> torch.dtype:
        """Of the parameters, and so of the encodings."""

    @abstractmethod
    def project(
        self, enc_q: Tensor, enc_k: Tensor, enc_v: Tensor, angles: Angles | None = None
    ) -> tuple[
        Float[Tensor, "*batch heads queries d_k"],
        Float[Tensor, "*batch kv_heads keys d_k"],
        Float[Tensor, "*batch kv_heads keys d_v"],
    ]:
        """Return the queries, keys and values of every head, turned where there are angles."""

    @abstractmethod
    def head(self, index: int) -> Head:
        """Return the projections of one head, counted from 0, as `core.steps` takes them."""

    def queries(self, enc_q: Tensor) -> Float[Tensor, "*batch heads queries d_k"]:
        """Return the queries alone."""
        return self.project(enc_q, enc_q, enc_q)[0]

    def context(
        self,
        enc_q: Tensor,
        enc_k: Tensor,
        enc_v: Tensor,
        mask: MaskLike,
        angles: Angles | None = None,
        cache: Kept | None = None,
    ) -> Float[Tensor, "*batch heads queries d_v"]:
        """softmax(Q Kᵀ / √d_k + M) V of every head, by one fused call."""
        self.check("enc_q", enc_q)
        if enc_k is not enc_q or enc_v is not enc_q:
            self.check("enc_k", enc_k)
            self.check("enc_v", enc_v)
        if cache is not None and cache.complete:  # the memory is what it was: only Q is new
            q, (k, v) = self.turn(self.queries(enc_q), angles), cache.read()
            if enc_k.shape[-2] != cache.length:
                raise ShapeError(
                    f"enc_k has {enc_k.shape[-2]} rows, but the cache was made of a memory of "
                    f"{cache.length}; start a new cache for another memory"
                )
        else:
            if self.rotary is not None and angles is None:
                angles = self.angles(enc_q, enc_k, 0 if cache is None else cache.length)
            q, k, v = self.project(enc_q, enc_k, enc_v, angles)
            if cache is not None:
                k, v = cache.extend(k, v)
        return attention(
            q, k, v, as_mask(mask), scale=self.scale, softcap=self.softcap,
            dropout=self.dropout if self.training else 0.0,
        )  # fmt: skip

    def angles(self, enc_q: Tensor, enc_k: Tensor, before: int = 0) -> Angles | None:
        """Return the angles of the positions `before`, `before` + 1, …, where the layer turns."""
        if self.rotary is None:
            return None
        tokens = enc_q.shape[-2]
        if enc_k.shape[-2] != tokens:
            raise ArgumentError("rotary queries and keys differ in number; wanted one text")
        positions = torch.arange(before, before + tokens, device=enc_q.device)
        return self.rotary.angles(positions, enc_q.dtype)

    def turn(self, x: Tensor, angles: Angles | None) -> Tensor:
        """Return queries or keys turned by their positions; as they are without angles."""
        if self.rotary is None or angles is None:
            return x
        return self.rotary.turn(x, angles).to(x.dtype)  # under autocast angles are finer than x

    def join(
        self, per_head: Float[Tensor, "*batch heads queries d_v"]
    ) -> Float[Tensor, "*batch queries n_out"]:
        """concat(head 1, …, head h)."""
        return per_head.transpose(-3, -2).flatten(-2)

    def rows(self, name: str, head: int) -> slice:
        """Rows of the projection `name` that belong to a head, counted from 0."""
        if name != "WQ":
            head //= self.num_heads // self.kv_heads
        size = self.d_v if name == "WV" else self.d_k
        return slice(head * size, (head + 1) * size)

    def check(self, name: str, x: Tensor) -> None:
        """Raise ShapeError or ArgumentError where encodings do not fit the layer."""
        if x.dim() < 2 or x.shape[-1] != self.n_embed:
            raise ShapeError(
                f"{name} is {tuple(x.shape)}; wanted (…, tokens, n_embed={self.n_embed})"
            )
        dtype = self.dtype
        if x.dtype != dtype and not torch.is_autocast_enabled(x.device.type):
            raise ArgumentError(
                f"{name} is {x.dtype}, the layer is {dtype}; say {name}.to({dtype})"
            )
        if self.row == 0 and x.dim() != 2:
            raise ShapeError(
                f"{name} has {x.dim()} axes, but row=0, col=1 name the tokens and the values of "
                f"two; for a batch leave row and col at -2 and -1"
            )

    def recipe(self, head: int | None = None) -> Recipe:
        """Return what the layer (or one of its heads) does, as `core.steps` takes it."""
        return Recipe((self.head(0),), scale=self.scale, softcap=self.softcap)

    def extra_repr(self) -> str:
        """Return the sizes."""
        return f"n_embed={self.n_embed}, num_heads={self.num_heads}, d_k={self.d_k}, d_v={self.d_v}"


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


def probability(name: str, number: float) -> float:
    """Return a probability that something is dropped, or say which number is none."""
    if not 0 <= number < 1:
        raise ArgumentError(f"{name} is {number}; wanted 0 to below 1")
    return number


def positive(name: str, number: int) -> int:
    """Return a number that has to be 1 or more, or say which is not."""
    if isinstance(number, bool) or not isinstance(number, int) or number < 1:
        raise ArgumentError(f"{name} is {number!r}; wanted a whole number, 1 or more")
    return number
