"""What the masks of a model mean: a triangle, a window, padding, or a tensor that has to be read.

A model hands its masks over as tensors of bools or of numbers. They are read by reference and in
blocks of rows; whatever is recognised is compared with the tensor entry by entry first.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor

from qkv.core.blocks import runs
from qkv.core.mask import Mask
from qkv.core.mask_parts import Band, Device, Pairs, Part, Region, Tile, settled
from qkv.core.operations import BLOCKED
from qkv.errors import MaskError

PAIRS = 1 << 19
"""Pairs of query and key, over all heads, that are read in one go: they stay in a core's cache."""

SAMPLES = 32
"""Rows at which the edges of a band are looked for; the whole is compared afterwards."""

Closed = Callable[[Tensor], Tensor]
"""Says of each entry of a part of a mask whether it hides a key."""


@dataclass(frozen=True, eq=False)
class Forbidden:
    """A tensor in which True, or what is not 0, hides; by reference: nothing is turned round."""

    values: Shaped[Tensor, "#batch #heads #queries #keys"]
    is_bias = False

    @property
    def axes(self) -> tuple[torch.Size, ...]:
        """Axes (batch, heads) of the tensor."""
        return (self.values.shape[:-2],)

    def check(self, queries: int, keys: int) -> None:
        """Raise MaskError where it cannot be meant for so many queries and keys."""
        _check(self.values, queries, keys)

    def tile(self, region: Region, device: Device) -> Tile:
        """Answer for a region: True where a query may look."""
        return settled(~part_of(self.values, region.rows, region.columns).to(device).bool())

    def only_keys(self, queries: int) -> bool:
        """Whether it says the same for every query and head."""
        return self.values.shape[-2] == 1 and self.values.shape[-3] == 1


@dataclass(frozen=True, eq=False)
class Added:
    """A tensor of numbers that is added, `factor` times, by reference.

    Attributes:
        values: the numbers.
        factor: what they are multiplied by.
        biases: whether any of them is neither 0 nor hides.
        hides: whether any of them hides, in a way that was not recognised.
    """

    values: Float[Tensor, "#batch #heads #queries #keys"]
    factor: float = 1.0
    biases: bool = True
    hides: bool = False
    is_bias = True

    @property
    def axes(self) -> tuple[torch.Size, ...]:
        """Axes (batch, heads) of the tensor."""
        return (self.values.shape[:-2],)

    def check(self, queries: int, keys: int) -> None:
        """Raise MaskError where it cannot be meant for so many queries and keys."""
        _check(self.values, queries, keys)

    def tile(self, region: Region, device: Device) -> Tile:
        """Answer for a region: what is added, −∞ where that blocks."""
        part = part_of(self.values, region.rows, region.columns).to(device)
        part = part.to(torch.promote_types(part.dtype, torch.float32))
        scaled = part if self.factor == 1 else part * self.factor
        return scaled.masked_fill(scaled <= BLOCKED, -torch.inf)

    def only_keys(self, queries: int) -> bool:
        """Whether nothing but keys is hidden: numbers are added, so never."""
        return False


def narrowed(values: Tensor) -> Tensor:
    """Leave repeated axes out: a mask that was expanded says the same in every entry of them."""
    for axis, (size, stride) in enumerate(zip(values.shape, values.stride(), strict=True)):
        if size > 1 and stride == 0:
            values = values.narrow(axis, 0, 1)
    return values


def part_of(values: Tensor, rows: range, columns: range) -> Tensor:
    """Cut a tensor over pairs; an axis of 1 serves every row or column."""
    if values.shape[-2] > 1:
        values = values[..., rows.start : rows.stop, :]
    return values[..., columns.start : columns.stop] if values.shape[-1] > 1 else values


def open_(tile: Tensor) -> Tensor:
    """Where a part of a mask lets look."""
    return tile > -torch.inf if tile.is_floating_point() else tile


def blocks_of(values: Tensor) -> Iterator[tuple[range, Tensor]]:
    """Cut a mask into blocks of rows, so that nothing else of its size is made."""
    across = values.shape[0] * values.shape[1] * values.shape[-1]
    for rows in runs(values.shape[-2], max(1, PAIRS // max(1, across))):
        yield rows, values[..., rows.start : rows.stop, :]


def recognised(values: Tensor, closed: Closed, queries: int, keys: int) -> Mask | None:
    """Return what a mask hides as a band and hidden keys, if it is nothing else.

    Args:
        values: the mask, repeated axes left out.
        closed: which of its entries hide.
        queries, keys: that it is for; the axes of `values` may be 1.

    Returns:
        A Mask without parts where nothing is hidden; None where it is of another shape.
    """
    if values.shape[-1] != keys:
        open_everywhere = not any(bool(closed(block).any()) for _, block in blocks_of(values))
        return Mask(()) if open_everywhere else None
    seen = _visible(values, closed)
    if seen is None:
        return None
    visible, looking = seen
    if values.shape[-2] == 1:
        return _joined((), visible)
    band = _band(values, closed, visible)
    first, last = _edges(band, queries, keys)
    # Keys outside the band of every query are hidden by it already: they are no padding.
    positions = torch.arange(keys, device=values.device)
    visible = visible | (positions < first) | (positions > queries - 1 + last)
    padded_queries = False
    for rows, block in blocks_of(values):
        may_look = ~closed(block)[:, 0]
        expected = _expected(visible, rows, first, last)
        if torch.equal(may_look, expected):
            continue
        if not torch.equal(may_look, expected & looking[:, rows.start : rows.stop, None]):
            return None
        padded_queries = True
    parts: list[Part] = [] if band is None else [band]
    if padded_queries:
        parts.append(Pairs(looking[:, None, :, None]))
    return _joined(tuple(parts), visible)


def hides_all(mask: Mask, queries: int, keys: int, device: torch.device) -> bool:
    """Whether under a mask there is a query that may look at nothing."""
    plain = _bands_and_keys(mask.parts)
    if plain is not None:
        return _nothing_left(*plain, queries, keys, device)
    hiding = Mask(tuple(p for p in mask.parts if not isinstance(p, Added) or p.hides))
    for rows in runs_under(hiding.leading_axes, queries, keys):
        tile = hiding.tile(rows, range(keys), queries=queries, keys=keys, device=device)
        if isinstance(tile, bool):
            if not tile:
                return True
            continue
        if not bool(open_(tile).any(-1).all()):
            return True
    return False


def runs_under(axes: Iterable[torch.Size], queries: int, keys: int) -> Iterator[range]:
    """Cut queries into runs, with PAIRS entries of a mask of these (batch, heads) in each."""
    across = torch.broadcast_shapes(*axes).numel()
    return runs(queries, max(1, PAIRS // max(1, across * keys)))


def _visible(
    values: Tensor, closed: Closed
) -> tuple[Bool[Tensor, "batch keys"], Bool[Tensor, "batch queries"]] | None:
    """Keys that some query may look at, queries that may look at some key; None: heads differ."""
    visible = torch.zeros(values.shape[0], values.shape[-1], dtype=torch.bool, device=values.device)
    looking = []
    for _, block in blocks_of(values):
        hidden = closed(block)
        if hidden.shape[1] > 1 and not bool((hidden == hidden[:, :1]).all()):
            return None
        visible |= ~hidden[:, 0].all(-2)
        looking.append(~hidden[:, 0].all(-1))
    return visible, torch.cat(looking, -1)


def _band(values: Tensor, closed: Closed, visible: Tensor) -> Band | None:
    """The narrowest band that the sampled rows stay within, where it hides a visible key."""
    queries, keys = values.shape[-2:]
    sample = torch.linspace(0, queries - 1, min(queries, SAMPLES)).long().to(values.device)
    may_look = ~closed(values[:, 0, sample])  # (batch, rows, keys)
    looks = may_look.any(-1)
    if not bool(looks.any()):
        return None
    first = may_look.int().argmax(-1) - sample
    last = keys - 1 - may_look.flip(-1).int().argmax(-1) - sample
    low, high = int(first[looks].min()), int(last[looks].max())
    above = bool(visible[:, max(0, high + 1) :].any())  # hidden from the first query by its edge
    below = bool(visible[:, : max(0, queries - 1 + low)].any())  # and from the last one
    if not above and not below:
        return None
    if not below:
        return Band(None, 0, offset(high, queries, keys))
    centre = keys - queries if not above or low <= keys - queries <= high else high
    after = high - centre if above else keys + queries
    return Band(centre - low, after, offset(centre, queries, keys))


def offset(own: int, queries: int, keys: int) -> int | None:
    """The offset of a band in which key `own` is query 0's; None: the last ones belong together."""
    return None if own == keys - queries >= 0 else own


def _edges(band: Band | None, queries: int, keys: int) -> tuple[int, int]:
    """First and last key of query 0; those of query i are i further on."""
    if band is None:
        return -queries, keys
    own = keys - queries if band.offset is None else band.offset
    return -queries if band.before is None else own - band.before, own + band.after


def _expected(
    visible: Bool[Tensor, "batch keys"], rows: range, first: int, last: int
) -> Bool[Tensor, "batch rows keys"]:
    """What a band and hidden keys leave open."""
    keys = torch.arange(visible.shape[-1], device=visible.device, dtype=torch.int32)
    own = torch.arange(rows.start, rows.stop, device=visible.device, dtype=torch.int32)[:, None]
    return visible[:, None, :] & (keys <= own + last) & (keys >= own + first)


def _joined(parts: tuple[Part, ...], visible: Bool[Tensor, "batch keys"]) -> Mask:
    if bool(visible.all()):
        return Mask(parts)
    return Mask((*parts, Pairs(visible[:, None, None, :])))


def _bands_and_keys(parts: tuple[Part, ...]) -> tuple[list[Band], list[Tensor]] | None:
    """The parts of a mask, if there are only bands and hidden keys."""
    bands, visible = [], []
    for part in parts:
        if isinstance(part, Band):
            bands.append(part)
        elif isinstance(part, Pairs) and part.only_keys(0):
            visible.append(part.values[:, 0, 0, :])
        else:
            return None
    return bands, visible


def _nothing_left(
    bands: list[Band], visible: list[Tensor], queries: int, keys: int, device: torch.device
) -> bool:
    """Count the visible keys within the bands of each query."""
    seen = torch.ones(1, keys, dtype=torch.bool, device=device)
    for one in visible:
        seen = seen & one
    count = torch.nn.functional.pad(seen.cumsum(-1), (1, 0))  # of the keys before each
    i = torch.arange(queries, device=device)
    low, high = torch.zeros_like(i), torch.full_like(i, keys)
    for band in bands:
        first, last = _edges(band, queries, keys)
        low, high = torch.maximum(low, i + first), torch.minimum(high, i + last + 1)
    low, high = low.clamp(0, keys), high.clamp(0, keys)
    return bool((count[:, high] - count[:, low] <= 0).any())


def _check(values: Tensor, queries: int, keys: int) -> None:
    if values.shape[-2] not in (1, queries) or values.shape[-1] not in (1, keys):
        raise MaskError(
            f"mask is {tuple(values.shape)}, similarities are (…, {queries}, {keys}): queries "
            f"or keys differ"
        )
