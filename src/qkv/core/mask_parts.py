"""The parts that a `Mask` is made of: each answers for a region, none forms the whole matrix."""

from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Int
from torch import Tensor

from qkv.core.operations import BLOCKED
from qkv.errors import MaskError

Tile = bool | Tensor
"""Part of a mask: True is open, False is closed, a tensor says it entry by entry."""

Device = torch.device | None


class Region(NamedTuple):
    """Some rows and columns of the similarities of `queries` with `keys`."""

    rows: range
    columns: range
    queries: int
    keys: int

    def row_positions(self, offset: int, device: Device) -> Int[Tensor, "rows"]:
        """Positions of the queries on the axis of the keys."""
        return torch.arange(self.rows.start + offset, self.rows.stop + offset, device=device)

    def column_positions(self, device: Device) -> Int[Tensor, "columns"]:
        """Positions of the keys."""
        return torch.arange(self.columns.start, self.columns.stop, device=device)


@runtime_checkable
class Part(Protocol):
    """One condition on who may look at whom."""

    @property
    def axes(self) -> tuple[torch.Size, ...]:
        """Axes (batch…, heads) of each tensor in it."""

    def check(self, queries: int, keys: int) -> None:
        """Raise MaskError where it cannot be meant for so many queries and keys."""

    def tile(self, region: Region, device: Device) -> Tile:
        """Answer for a region; a tensor has the axes (batch…, heads, rows, columns)."""

    def only_keys(self, queries: int) -> bool:
        """Whether it says the same for every query."""

    @property
    def is_bias(self) -> bool:
        """Whether numbers are added rather than pairs blocked."""


@dataclass(frozen=True, eq=False)
class Band:
    """Keys from `before` behind a query (None: any) to `after` ahead of it."""

    before: int | None
    after: int
    offset: int | None = None
    is_bias = False

    @property
    def axes(self) -> tuple[torch.Size, ...]:
        return ()

    def check(self, queries: int, keys: int) -> None:
        check_alignment("a causal mask or a window", queries, keys, self.offset)

    def tile(self, region: Region, device: Device) -> Tile:
        offset = region.keys - region.queries if self.offset is None else self.offset
        first, last = region.rows.start + offset, region.rows.stop - 1 + offset
        low, high = region.columns.start, region.columns.stop - 1
        if high <= first + self.after and (self.before is None or low >= last - self.before):
            return True
        if low > last + self.after or (self.before is not None and high < first - self.before):
            return False
        rows = region.row_positions(offset, device)
        distance = region.column_positions(device) - rows[:, None]
        may_look = distance <= self.after
        return may_look if self.before is None else may_look & (distance >= -self.before)

    def only_keys(self, queries: int) -> bool:
        return False

    def is_triangle(self, queries: int, keys: int) -> bool:
        """Whether it is the triangle that a fused kernel builds by itself."""
        aligned = queries == keys if self.offset is None else self.offset == 0
        return self.before is None and self.after == 0 and aligned


@dataclass(frozen=True, eq=False)
class Lengths:
    """The real keys of each example; the rest is padding."""

    lengths: Tensor
    side: str
    is_bias = False

    @property
    def axes(self) -> tuple[torch.Size, ...]:
        return (torch.Size((*self.lengths.shape, 1)),)

    def check(self, queries: int, keys: int) -> None:
        if not torch.compiler.is_compiling() and (self.lengths > keys).any():
            raise MaskError(
                f"padding got lengths {self.lengths.tolist()}, but there are {keys} keys"
            )

    def tile(self, region: Region, device: Device) -> Tile:
        lengths = self.lengths.to(device)[..., None, None, None]
        position = region.column_positions(device)
        if self.side == "right":
            return settled(position < lengths)
        return settled(position >= region.keys - lengths)

    def only_keys(self, queries: int) -> bool:
        return True


@dataclass(frozen=True, eq=False)
class Documents:
    """Tokens look at the tokens of their own document."""

    ids: Tensor
    is_bias = False

    @property
    def axes(self) -> tuple[torch.Size, ...]:
        return (torch.Size((*self.ids.shape[:-1], 1)),)

    def check(self, queries: int, keys: int) -> None:
        if self.ids.shape[-1] != keys:
            raise MaskError(
                f"documents has {self.ids.shape[-1]} tokens, similarities are "
                f"(…, {queries}, {keys}): keys differ, {self.ids.shape[-1]} ≠ {keys}"
            )
        if queries > keys:
            raise MaskError(f"documents has {keys} tokens, fewer than the {queries} queries")

    def tile(self, region: Region, device: Device) -> Tile:
        ids = self.ids.to(device)
        rows = ids[..., region.row_positions(region.keys - region.queries, device)]
        columns = ids[..., region.columns.start : region.columns.stop]
        same = rows[..., :, None] == columns[..., None, :]
        return settled(same if ids.dim() == 1 else same[..., None, :, :])

    def only_keys(self, queries: int) -> bool:
        return False


@dataclass(frozen=True, eq=False)
class Pairs:
    """A tensor over pairs: bools allow, numbers are added."""

    values: Tensor

    @property
    def axes(self) -> tuple[torch.Size, ...]:
        return (self.values.shape[:-2],)

    @property
    def is_bias(self) -> bool:
        """Whether numbers are added rather than pairs blocked."""
        return self.values.is_floating_point()

    def check(self, queries: int, keys: int) -> None:
        shape = tuple(self.values.shape)
        for axis, got, wanted in (("queries", shape[-2], queries), ("keys", shape[-1], keys)):
            if got not in (1, wanted):
                raise MaskError(
                    f"mask is {shape}, similarities are (…, {queries}, {keys}): "
                    f"{axis} differ, {got} ≠ {wanted}"
                )

    def tile(self, region: Region, device: Device) -> Tile:
        values = self.values
        if values.shape[-2] > 1:
            values = values[..., region.rows.start : region.rows.stop, :]
        if values.shape[-1] > 1:
            values = values[..., region.columns.start : region.columns.stop]
        values = values.to(device)
        if self.is_bias:  # what blocks everywhere else blocks here: −1E+30, or a dtype's least
            return values.masked_fill(values <= BLOCKED, -torch.inf)
        return settled(values)

    def only_keys(self, queries: int) -> bool:
        same_for_heads = self.values.dim() < 3 or self.values.shape[-3] == 1
        return not self.is_bias and self.values.shape[-2] == 1 and same_for_heads


@dataclass(frozen=True, eq=False)
class Either:
    """Looks where the one or the other lets it."""

    left: tuple[Part, ...]
    right: tuple[Part, ...]
    is_bias = False

    @property
    def axes(self) -> tuple[torch.Size, ...]:
        return tuple(axes for part in (*self.left, *self.right) for axes in part.axes)

    def check(self, queries: int, keys: int) -> None:
        for part in (*self.left, *self.right):
            part.check(queries, keys)

    def tile(self, region: Region, device: Device) -> Tile:
        left, right = every(self.left, region, device), every(self.right, region, device)
        if left is True or right is True:
            return True
        if left is False or right is False:
            return right if left is False else left
        return left | right

    def only_keys(self, queries: int) -> bool:
        return all(part.only_keys(queries) for part in (*self.left, *self.right))


def check_alignment(name: str, queries: int, keys: int, offset: int | None) -> None:
    """Raise MaskError where the queries cannot be the last of the keys."""
    if offset is None and queries > keys:
        raise MaskError(
            f"{queries} queries look at {keys} keys under {name}: which query is the last? "
            f"Say offset=0 to align them at the first"
        )


def every(parts: tuple[Part, ...], region: Region, device: Device) -> Tile:
    """Join the answers of parts that all have to agree; biases are added."""
    result: Tile = True
    for part in parts:
        result = _both(result, part.tile(region, device))
        if result is False:
            return False
    return result


def settled(tile: Tensor) -> Tile:
    """Say open or closed where a tensor says the same in every entry."""
    if tile.device.type != "cpu" or torch.compiler.is_compiling():
        return tile  # asking would wait for the device, or break the graph
    if tile.all():
        return True
    return tile if tile.any() else False


def as_bias(tile: Tensor, dtype: torch.dtype) -> Tensor:
    """Return what is added to the similarities: 0 where True, −∞ where False."""
    if tile.is_floating_point():
        return tile.to(dtype)
    return torch.zeros(tile.shape, dtype=dtype, device=tile.device).masked_fill(~tile, -torch.inf)


def _both(a: Tile, b: Tile) -> Tile:
    if isinstance(a, bool):
        return b if a else False
    if isinstance(b, bool):
        return a if b else False
    if a.is_floating_point():
        return a + as_bias(b, a.dtype)
    if b.is_floating_point():
        return as_bias(a, b.dtype) + b
    return a & b
