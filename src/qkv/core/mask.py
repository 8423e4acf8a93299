"""`Mask`: who may look at whom."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from qkv.core.mask_biases import Alibi
from qkv.core.mask_parts import (
    Band,
    Documents,
    Either,
    Lengths,
    Pairs,
    Part,
    Region,
    Tile,
    as_bias,
    every,
)
from qkv.errors import MaskError


@dataclass(frozen=True, eq=False)
class Mask:
    """Who may look at whom: immutable, and joined with `&` and `|`.

    Axes are (batch…, heads, queries, keys). With fewer queries than keys the queries are the
    last ones, as in decoding with a cache.

        Mask.causal() & Mask.padding([5, 3])      a batch of two sentences for a decoder
        Mask.causal() | Mask.keys(is_prefix)      a prefix language model
        Mask.causal() & Mask.alibi(8)             a bias is added, everything else blocks

    Attributes:
        parts: the conditions that all have to agree.
    """

    parts: tuple[Part, ...]

    @staticmethod
    def causal(offset: int | None = None) -> "Mask":
        """Let query i look at the keys up to i + offset.

        Args:
            offset: by default keys − queries, so that the last query sees the last key; more
                queries than keys is then an error. 0 aligns the triangle at the top left.
        """
        return Mask((Band(None, 0, offset),))

    @staticmethod
    def window(before: int, after: int = 0, *, offset: int | None = None) -> "Mask":
        """Let every query look at itself, `before` keys before it and `after` keys after it.

        `offset` says which key is a query's own, as for `causal`.
        """
        if before < 0 or after < 0:
            raise MaskError(f"window({before}, {after}): wanted numbers of neighbours, 0 or more")
        return Mask((Band(before, after, offset),))

    @staticmethod
    def padding(
        lengths: Sequence[int] | Int[Tensor, "*batch"], side: Literal["right", "left"] = "right"
    ) -> "Mask":
        """Hide the padding of a batch whose examples have these lengths.

        Args:
            lengths: real keys of each example, axes (batch…).
            side: where the padding stands.
        """
        tensor = torch.as_tensor(lengths).clone()
        if side not in ("right", "left"):
            raise MaskError(f"side is {side!r}; wanted 'right' or 'left'")
        if tensor.is_floating_point() or tensor.dtype == torch.bool or tensor.dim() == 0:
            raise MaskError(
                f"lengths are {tensor.dtype} with {tensor.dim()} axes; wanted one whole number "
                f"an example: [5, 3]"
            )
        if not torch.compiler.is_compiling() and (tensor < 0).any():
            raise MaskError(f"lengths are {tensor.tolist()}; wanted 0 or more")
        return Mask((Lengths(tensor, side),))

    @staticmethod
    def keys(visible: Bool[Tensor, "*batch keys"]) -> "Mask":
        """Let every query look at the keys that are True; axes (batch…, keys)."""
        values = _bools("keys", visible)
        if values.dim() == 0:
            raise MaskError("keys got a single bool; wanted axes (batch…, keys)")
        return Mask((Pairs(values[None] if values.dim() == 1 else values[..., None, None, :]),))

    @staticmethod
    def documents(ids: Sequence[int] | Int[Tensor, "*batch keys"]) -> "Mask":
        """Let every token look at the tokens of its own document; axes (batch…, tokens)."""
        tensor = torch.as_tensor(ids).clone()
        if tensor.is_floating_point() or tensor.dtype == torch.bool or tensor.dim() == 0:
            raise MaskError(
                f"documents got {tensor.dtype} with {tensor.dim()} axes; wanted one whole number "
                f"a token: [0, 0, 1]"
            )
        return Mask((Documents(tensor),))

    @staticmethod
    def allow(pairs: Bool[Tensor, "..."]) -> "Mask":
        """Let query i look at key j where True; axes (queries, keys) or all of them."""
        return Mask((Pairs(_unambiguous("allow", _bools("allow", pairs))),))

    @staticmethod
    def forbid(pairs: Bool[Tensor, "..."]) -> "Mask":
        """Forbid query i to look at key j where True; axes (queries, keys) or all of them."""
        return Mask((Pairs(~_unambiguous("forbid", _bools("forbid", pairs))),))

    @staticmethod
    def bias(added: Float[Tensor, "..."]) -> "Mask":
        """Add numbers to the scaled similarities; −∞ blocks, as does what is below −1E+20.

        The tensor is not copied: it may be trained.
        """
        if not isinstance(added, Tensor) or not added.is_floating_point():
            raise MaskError(
                f"bias got {_kind(added)}; wanted a tensor of floats, or allow/forbid for bools"
            )
        return Mask((Pairs(_unambiguous("bias", added)),))

    @staticmethod
    def alibi(
        num_heads: int, *, offset: int | None = None, dtype: torch.dtype = torch.float32
    ) -> "Mask":
        """Add −slope · distance, one slope a head: 2^(−8 k / n)      Press et al. 2022, section 3

        It works both ways; the paper joins it with `Mask.causal()`. Made tile by tile.

        Args:
            num_heads: heads of the queries.
            offset: which key is a query's own, as for `causal`.
            dtype: that the numbers are computed in; attention rounds them to that of its queries.
        """
        if isinstance(num_heads, bool) or not isinstance(num_heads, int) or num_heads < 1:
            raise MaskError(f"alibi got num_heads={num_heads!r}; wanted a whole number, 1 or more")
        if not dtype.is_floating_point:
            raise MaskError(f"alibi got dtype={dtype}; wanted a floating one")
        return Mask((Alibi(num_heads, offset, dtype),))

    def __and__(self, other: "Mask") -> "Mask":
        """Look only where both let it; biases are added."""
        return Mask(self.parts + wanted("&", other).parts)

    def __or__(self, other: "Mask") -> "Mask":
        """Look where either lets it; a bias has no meaning here and is refused."""
        parts = self.parts + wanted("|", other).parts
        if any(part.is_bias for part in parts):
            raise MaskError("a bias cannot be joined with |; add it afterwards with &")
        return Mask((Either(self.parts, other.parts),))

    def check(self, queries: int, keys: int) -> None:
        """Raise MaskError where the mask cannot be meant for so many queries and keys."""
        for part in self.parts:
            part.check(queries, keys)

    def tile(
        self,
        rows: range,
        columns: range,
        *,
        queries: int,
        keys: int,
        device: torch.device | None = None,
    ) -> Tile:
        """Answer for some rows and columns without forming the rest.

        Returns:
            True where all of it is open, False where all of it is closed, else a tensor (bool:
            may look; float: added) with axes (batch…, heads, rows, columns), any of them 1.
        """
        return every(self.parts, Region(rows, columns, queries, keys), device)

    def matrix(self, queries: int, keys: int | None = None) -> Float[Tensor, "... queries keys"]:
        """Return M, which is added to the scaled similarities: 0 where open, −∞ where not."""
        keys = queries if keys is None else keys
        self.check(queries, keys)
        whole, cpu = (range(queries), range(keys)), torch.device("cpu")
        tile = self.tile(*whole, queries=queries, keys=keys, device=cpu)
        if isinstance(tile, bool):
            tile = torch.full((queries, keys), tile)
        dtype = tile.dtype if tile.is_floating_point() else torch.get_default_dtype()
        return as_bias(tile.expand(*tile.shape[:-2], queries, keys), dtype)

    @property
    def leading_axes(self) -> tuple[torch.Size, ...]:
        """What stands before (queries, keys) in each part that holds a tensor."""
        return tuple(axes for part in self.parts for axes in part.axes)

    @property
    def trainable(self) -> bool:
        """Whether gradients are wanted for a bias in it."""
        return any(isinstance(part, Pairs) and part.values.requires_grad for part in self.parts)

    def split(self, queries: int, keys: int) -> tuple["Mask | None", bool, "Mask | None"]:
        """Return what hides keys from every query, whether a plain triangle follows, the rest."""
        hiding = tuple(part for part in self.parts if part.only_keys(queries))
        rest = tuple(part for part in self.parts if not part.only_keys(queries))
        triangles = [isinstance(p, Band) and p.is_triangle(queries, keys) for p in rest]
        others = tuple(part for part, plain in zip(rest, triangles, strict=True) if not plain)
        return Mask(hiding) if hiding else None, any(triangles), Mask(others) if others else None


def wanted(argument: str, mask: object) -> Mask:
    """Return a mask as it is, or say why it is none.

    Raises:
        MaskError: a bare tensor (PyTorch's own two conventions contradict each other) or
            anything else that is no Mask.
    """
    if isinstance(mask, Mask):
        return mask
    if isinstance(mask, Tensor):
        raise MaskError(
            f"{argument} got a bare tensor; say what True means: Mask.allow(tensor) or "
            f"Mask.forbid(tensor), or Mask.bias(tensor) for numbers that are added"
        )
    raise MaskError(f"{argument} got {_kind(mask)}; wanted a Mask, such as Mask.causal()")


def _kind(value: object) -> str:
    return str(value.dtype) if isinstance(value, Tensor) else type(value).__name__


def _bools(name: str, tensor: Tensor) -> Tensor:
    if not isinstance(tensor, Tensor) or tensor.dtype != torch.bool:
        raise MaskError(
            f"{name} got {_kind(tensor)}; wanted a tensor of bools (0 and 1 as numbers are "
            f"ambiguous: say `tensor == 1`)"
        )
    return tensor.clone()  # a mask does not change with the caller's tensor


def _unambiguous(name: str, pairs: Tensor) -> Tensor:
    if pairs.dim() in (0, 1, 3):
        raise MaskError(
            f"{name} has {pairs.dim()} axes {tuple(pairs.shape)}; wanted (queries, keys) or "
            f"(batch…, heads, queries, keys): a third axis could be the batch or the heads, "
            f"write [:, None] for the batch or [None] for the heads"
        )
    return pairs
