"""`Blocking`: what the mask of an attention hides, in plain numbers and in words."""

from dataclasses import dataclass
from typing import TypeGuard

import torch
from jaxtyping import Bool
from torch import Tensor

from qkv.core.mask import Mask
from qkv.core.mask_parts import Band, Pairs, Part, Region
from qkv.recording.calls.masks import Added


@dataclass(frozen=True, eq=False)
class Blocking:
    """Who may look at whom, as far as it was recognised; `print` says it in words.

    Attributes:
        causal: whether every query sees nothing after its own key.
        offset: which key is the own one of query 0, under a causal mask or a window: keys −
            queries where the last query sees the last key, 0 at the upper left. None where
            there is neither.
        window: neighbours that are seen before and after the own key; None beside a whole side.
        padding: keys that no query of an example sees; None where there are none.
        idle: queries that may look at nothing because their own token is padding, or None.
        biased: whether numbers are added besides.
        other: whether something is hidden in a way that is none of these.
        queries, keys: how many there are.
        others: for how many examples and heads something else is hidden in such a way.
    """

    causal: bool
    offset: int | None
    window: tuple[int | None, int | None] | None
    padding: Bool[Tensor, "batch keys"] | None
    idle: Bool[Tensor, "batch queries"] | None
    biased: bool
    other: bool
    queries: int
    keys: int
    others: tuple[int, int] = (1, 1)

    @staticmethod
    def of(mask: Mask | None, queries: int, keys: int) -> "Blocking":
        """Read the parts of a mask."""
        parts: tuple[Part, ...] = () if mask is None else mask.parts
        bands = [part for part in parts if isinstance(part, Band)]
        over_keys = [_keys_of(p, queries, keys) for p in parts if p.only_keys(queries)]
        over_rows = [p.values[:, 0, :, 0] for p in parts if _only_queries(p, keys)]
        known = len(bands) + len(over_keys) + len(over_rows) + sum(p.is_bias for p in parts)
        own = None
        if bands:
            own = keys - queries if bands[0].offset is None else bands[0].offset
        return Blocking(
            causal=any(band.after == 0 for band in bands),
            offset=own,
            window=_window(bands, keys),
            padding=_hidden(over_keys),
            idle=_hidden(over_rows),
            biased=any(p.is_bias and not (isinstance(p, Added) and not p.biases) for p in parts),
            other=known < len(parts) or any(isinstance(p, Added) and p.hides for p in parts),
            queries=queries,
            keys=keys,
            others=_leading([p for p in parts if _is_other(p, queries, keys)]),
        )

    def __str__(self) -> str:
        said = []
        if self.causal:
            said.append("causal" + self._aligned())
        if self.window is not None:
            said.append(f"window of {self._sides(*self.window)}")
        if self.padding is not None:
            hidden = self.padding.sum(-1).tolist()
            least, most = min(hidden), max(hidden)
            said.append(f"{most if least == most else f'{least} to {most}'} keys hidden")
        if self.idle is not None:
            said.append(f"{int(self.idle.sum())} padded queries")
        if self.other:
            said.append(f"pairs hidden one by one{self._by_what()}")
        if self.biased:
            said.append("numbers added")
        return ", ".join(said) or "all open"

    def _by_what(self) -> str:
        """Say for what a mask differs; which pairs are hidden, only the mask itself can say."""
        named = zip(self.others, ("example", "head"), strict=True)
        for_each = [f"for each {name}" for count, name in named if count > 1]
        return f" ({' and '.join(for_each)})" if for_each else ""

    def _sides(self, before: int | None, after: int | None) -> str:
        """Say how far a window reaches; the side that a triangle closes goes without saying."""
        reaches = ((before, "before"), (after, "after"))
        sides = [f"{'all' if n is None else n} {side}" for n, side in reaches if n != 0]
        return " and ".join(sides) or "the own key alone"

    def _aligned(self) -> str:
        if self.offset == self.keys - self.queries:
            return "" if self.queries == self.keys else " (the last query sees the last key)"
        if self.offset == 0:
            return " (query 1 sees key 1)"
        return f" (query 1 sees up to key {(self.offset or 0) + 1})"


def _is_other(part: Part, queries: int, keys: int) -> bool:
    """Whether a part hides something that is neither a band nor padding."""
    if part.is_bias:
        return isinstance(part, Added) and part.hides
    known = isinstance(part, Band) or part.only_keys(queries) or _only_queries(part, keys)
    return not known


def _leading(parts: list[Part]) -> tuple[int, int]:
    """How many examples and heads parts of a mask are made for."""
    axes = [tuple(sizes)[-2:] for part in parts for sizes in part.axes]
    batches = [sizes[-2] for sizes in axes if len(sizes) > 1]
    return max(batches, default=1), max((sizes[-1] for sizes in axes if sizes), default=1)


def _window(bands: list[Band], keys: int) -> tuple[int | None, int | None] | None:
    """The narrowest of the bands that have an edge besides the triangle's."""
    edged = [b for b in bands if b.before is not None or 0 < b.after < keys]
    if not edged:
        return None
    before = [band.before for band in edged if band.before is not None]
    after = [band.after for band in edged if 0 < band.after < keys]
    causal = any(band.after == 0 for band in bands)
    return min(before, default=None), 0 if causal else min(after, default=None)


def _hidden(visible: list[Tensor]) -> Tensor | None:
    if not visible:
        return None
    together = visible[0]
    for one in visible[1:]:
        together = together & one
    return ~together


def _keys_of(part: Part, queries: int, keys: int) -> Bool[Tensor, "batch keys"]:
    """What a part says of the keys, the same for every query."""
    tile = part.tile(Region(range(1), range(keys), queries, keys), None)
    if isinstance(tile, bool):
        return torch.full((1, keys), tile)
    return tile.expand(*tile.shape[:-1], keys).reshape(-1, keys)


def _only_queries(part: Part, keys: int) -> TypeGuard[Pairs]:
    """Whether a part hides the queries of padding: for all keys and heads alike."""
    if not isinstance(part, Pairs) or part.is_bias or part.values.dim() != 4:
        return False
    return part.values.shape[-1] == 1 < keys and part.values.shape[1] == 1
