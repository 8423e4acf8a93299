"""What the softmax is taken of, handed out tile by tile: cap(Q Kᵀ · scale) + M."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from qkv.core import blocks
from qkv.core.fused import attention, without_hidden
from qkv.core.mask import Mask
from qkv.core.mask_parts import Tile, as_bias
from qkv.weights.narrowing import mask_of_head


@runtime_checkable
class Logits(Protocol):
    """A calculation of logits (batch, heads, queries, keys) that never forms them whole.

    It may also have `requires_grad`, False where nothing in it is trained: then `Weights` need
    not keep a graph. Without it gradients are assumed to be wanted wherever they are enabled.
    And it may have the keys `k`, (batch, kv_heads, keys, d_k): then `weights @ x` takes an x
    with a head for each of theirs. And `head(example, head)`, the same for one head alone with
    axes of 1: without it a tile of one head is cut from a tile of them all.
    """

    @property
    def shape(self) -> torch.Size:
        """(batch, heads, queries, keys)."""

    @property
    def dtype(self) -> torch.dtype:
        """That of the tiles, float32 or float64."""

    @property
    def device(self) -> torch.device:
        """Where the tiles are made."""

    def reach(self, rows: range) -> range:
        """Return columns outside of which every one of these rows is blocked."""

    def tile(self, rows: range, columns: range) -> Float[Tensor, "batch heads rows columns"]:
        """Return the logits there, −∞ where blocked, in memory that the caller may write into."""


class Strip(NamedTuple):
    """Logits of some rows, of some heads of some examples, over the columns within reach."""

    columns: range
    examples: slice
    heads: slice
    logits: Float[Tensor, "examples heads rows columns"]
    part: slice = slice(0, 0)
    open: Bool[Tensor, "examples heads rows part"] | None = None
    """Whether they are above −∞, over the columns of `part`; all others are."""


class Scratch:
    """Memory that is used again from block to block: fresh pages are slow."""

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        """Start with none."""
        self._flat = torch.empty(0, dtype=dtype, device=device)

    def take(self, *shape: int) -> Tensor:
        """Return a tensor whose numbers are whatever was left there."""
        wanted = torch.Size(shape).numel()
        if self._flat.numel() < wanted:
            self._flat = self._flat.new_empty(wanted)
        return self._flat[:wanted].view(shape)


class OfQueriesAndKeys:
    """What logits of queries and keys have from these."""

    q: Float[Tensor, "batch heads queries d_k"]
    k: Float[Tensor, "batch kv_heads keys d_k"]

    @property
    def shape(self) -> torch.Size:
        """(batch, heads, queries, keys)."""
        return torch.Size((*self.q.shape[:-1], self.k.shape[-2]))

    @property
    def dtype(self) -> torch.dtype:
        """That of q and k."""
        return self.q.dtype

    @property
    def device(self) -> torch.device:
        """That of q and k."""
        return self.q.device


@dataclass(frozen=True, eq=False)
class Similarities(OfQueriesAndKeys):
    """cap(Q Kᵀ · scale) + M; heads that share keys share one product.

    Attributes:
        batch: the batch axes that were flattened into one; a mask's are flattened alike.
    """

    q: Float[Tensor, "batch heads queries d_k"]
    k: Float[Tensor, "batch kv_heads keys d_k"]
    scale: float
    softcap: float | None
    mask: Mask | None
    batch: torch.Size

    def __post_init__(self) -> None:
        """Let keys that are hidden from every query have no influence, NaN included."""
        object.__setattr__(self, "k", self.seen(self.k))

    def seen(
        self, x: Float[Tensor, "batch heads_of_x keys width"]
    ) -> Float[Tensor, "batch heads_of_x keys width"]:
        """Return x with 0 where keys are hidden from every query."""
        hiding = self.mask and self.mask.split(*self.shape[-2:])[0]
        if not hiding:
            return x
        visible = blocks.tile_of(hiding, self.q, self.k, self.batch)
        return without_hidden(x, x, visible)[0]

    @property
    def requires_grad(self) -> bool:
        """Whether anything that the logits are made of is trained."""
        bias = self.mask is not None and self.mask.trainable
        return bool(bias or self.q.requires_grad or self.k.requires_grad)

    def reach(self, rows: range) -> range:
        """Return columns outside of which every one of these rows is blocked."""
        return self._reach(rows)[0]

    def tile(self, rows: range, columns: range) -> Float[Tensor, "batch heads rows columns"]:
        """Return the logits there, −∞ where blocked."""
        kv_heads = self.k.shape[1]
        q = self.q[:, :, rows.start : rows.stop] * self.scale
        grouped = q.unflatten(1, (kv_heads, q.shape[1] // kv_heads)).flatten(2, 3)
        scaled: Tensor = grouped @ self.k[:, :, columns.start : columns.stop].mT  # Q Kᵀ · scale
        scaled = scaled.reshape(*q.shape[:-1], len(columns))
        if self.softcap is not None:
            scaled = self.softcap * torch.tanh(scaled / self.softcap)
        tile = self._mask_over(rows, columns)
        return scaled if tile is True else scaled + _added(tile, scaled)

    def strips(self, rows: range, width: int, scratch: Scratch) -> Iterator[Strip]:
        """Hand out these rows for up to `width` key/value heads at a time, without gradients.

        The logits lie in the scratch memory until the next ones are taken.
        """
        columns, tile = self._reach(rows)
        kv_heads = self.k.shape[1]
        groups = self.q.shape[1] // kv_heads
        q = (self.q[:, :, rows.start : rows.stop] * self.scale).unflatten(1, (kv_heads, groups))
        k = self.k[:, :, columns.start : columns.stop]
        part, added, is_open = self._added_over(columns, tile, q.flatten(1, 2))
        for e, h in blocks.portions(len(q), kv_heads, width):
            left, right = q[e, h].flatten(2, 3).flatten(0, 1), k[e, h].flatten(0, 1)
            scaled = scratch.take(len(left), left.shape[1], len(columns))
            torch.bmm(left, right.mT, out=scaled)  # Q Kᵀ · scale
            if self.softcap is not None:
                scaled.div_(self.softcap).tanh_().mul_(self.softcap)
            examples, heads = len(q[e]), slice(h.start * groups, h.stop * groups)
            shape = (examples, heads.stop - heads.start, len(rows), len(columns))
            logits = scaled.view(shape)
            if added is None or is_open is None:
                yield Strip(columns, e, heads, logits)
                continue
            logits[..., part] += added[e, heads]  # + M
            yield Strip(columns, e, heads, logits, part, is_open[e, heads])

    def head(self, example: int, head: int) -> "Similarities":
        """Return one head of one example, with axes of 1."""
        served = head // (self.q.shape[1] // self.k.shape[1])
        q = self.q[example : example + 1, head : head + 1]
        k = self.k[example : example + 1, served : served + 1]
        heads = torch.Size((*self.batch, self.q.shape[1]))
        mask = self.mask and mask_of_head(self.mask, heads, example, head)
        return replace(self, q=q, k=k, mask=mask, batch=torch.Size((1,)))

    def attend(
        self, values: Float[Tensor, "batch heads_of_values keys width"]
    ) -> Float[Tensor, "batch heads queries width"]:
        """softmax(logits) V by the fused operation; a head of values for each head of q or of k."""
        k = self.k.repeat_interleave(values.shape[1] // self.k.shape[1], 1)
        axes = self.batch or (1,)  # as the mask has them
        q, k, v = (t.reshape(*axes, *t.shape[1:]) for t in (self.q, k, values))
        out = attention(q, k, v, self.mask, scale=self.scale, softcap=self.softcap)
        return out.reshape(*self.q.shape[:-1], values.shape[-1])

    def _reach(self, rows: range) -> tuple[range, Tile]:
        return blocks.reach(self.mask, rows, self.q, self.k, self.batch)

    def _mask_over(self, rows: range, columns: range) -> Tile:
        if self.mask is None:
            return True
        queries, keys = self.shape[-2:]
        tile = self.mask.tile(rows, columns, queries=queries, keys=keys, device=self.device)
        return blocks.four_axes(tile, self.batch)

    def _added_over(
        self, columns: range, tile: Tile, q: Tensor
    ) -> tuple[slice, Tensor | None, Tensor | None]:
        """Return M for each head and where it is open, over the columns alone where it is not 0."""
        part = slice(0, len(columns))
        if isinstance(tile, Tensor) and tile.dtype == torch.bool and tile.shape[-1] > 1:
            closed = (~tile).flatten(0, -2).any(0).nonzero()
            part = slice(int(closed[0]), int(closed[-1]) + 1) if len(closed) else slice(0, 0)
            tile = tile[..., part]
        if tile is True or part.start == part.stop:
            return slice(0, 0), None, None
        added = _added(tile, q)
        is_open = tile if isinstance(tile, Tensor) and tile.dtype == torch.bool else None
        is_open = added > -torch.inf if is_open is None else is_open
        shape = (*q.shape[:3], part.stop - part.start)
        return part, added.expand(shape), is_open.expand(shape)


@dataclass(frozen=True, eq=False)
class LogitsOfHead:
    """One head of one example of any calculation of logits, with axes of 1."""

    logits: Logits
    example: int
    head: int

    @property
    def shape(self) -> torch.Size:
        """(1, 1, queries, keys)."""
        return torch.Size((1, 1, *self.logits.shape[2:]))

    @property
    def dtype(self) -> torch.dtype:
        """That of the tiles."""
        return self.logits.dtype

    @property
    def device(self) -> torch.device:
        """Where the tiles are made."""
        return self.logits.device

    @property
    def requires_grad(self) -> bool:
        """Whether gradients may be wanted."""
        return getattr(self.logits, "requires_grad", True)

    def reach(self, rows: range) -> range:
        """Return columns outside of which every one of these rows is blocked."""
        return self.logits.reach(rows)

    def tile(self, rows: range, columns: range) -> Float[Tensor, "1 1 rows columns"]:
        """Return the logits there."""
        one = slice(self.example, self.example + 1), slice(self.head, self.head + 1)
        return self.logits.tile(rows, columns)[one]


def _added(tile: Tile, like: Tensor) -> Tensor:
    if isinstance(tile, bool):
        tile = torch.full((1, 1), tile, device=like.device)
    return as_bias(tile, like.dtype)
