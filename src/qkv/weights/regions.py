"""Parts of the matrix: runs of rows and columns, and the small map that groups of them make."""

import operator
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from qkv.errors import ArgumentError
from qkv.weights.blocks import Block, Softmax, in_full
from qkv.weights.checks import check_whole


def run_of(argument: str, which: int | range | slice, size: int) -> range:
    """Return a run of an axis of this size.

    Raises:
        ArgumentError: an int outside of it, a range outside of it, or steps other than 1.
    """
    whole = range(size)
    if hasattr(which, "__index__") and not isinstance(which, bool):  # NumPy's integers too
        which = operator.index(which)
    if isinstance(which, slice):
        run = whole[which]
    elif isinstance(which, int):
        if not -size <= which < size:
            raise ArgumentError(f"{argument} got {which}; there are {size}, wanted 0 to {size - 1}")
        run = whole[which : which + 1 or None]
    elif isinstance(which, range):
        run = which
    else:
        raise ArgumentError(f"{argument} got {which!r}; wanted an int, a range or a slice")
    outside = len(run) > 0 and (run.start < 0 or run.stop > size)
    if run.step != 1 or outside:
        raise ArgumentError(
            f"{argument} got {which}; there are {size}, wanted a run of neighbours within them: "
            f"range(10, 20)"
        )
    return run


def crop(
    tensor: Shaped[Tensor, "*axes columns"], columns: range, wanted: range
) -> Shaped[Tensor, "*axes wanted"]:
    """Return the wanted columns of a tensor over `columns`, 0 where it has none."""
    first, last = max(columns.start, wanted.start), min(columns.stop, wanted.stop)
    if first >= last:
        return tensor[..., :0].sum(-1, keepdim=True).expand(*tensor.shape[:-1], len(wanted))
    inside = tensor[..., first - columns.start : last - columns.start]
    outside = first - wanted.start, wanted.stop - last
    return inside if outside == (0, 0) else F.pad(inside, outside)


def along(b: Block, wanted: range) -> Float[Tensor, "examples heads rows"]:
    """Return the weight of row r of a block on wanted[r], 0 where there is no such key."""
    offset = wanted.start - b.columns.start
    found = b.weights.diagonal(offset, -2, -1)
    before = min(len(b.rows), max(0, -offset))
    return F.pad(found, (before, len(b.rows) - before - found.shape[-1]))


@dataclass(frozen=True, eq=False)
class Regions:
    """The matrix cut into height × width regions of nearly equal size.

    Attributes:
        right: 1 where a key (row) belongs to a group of keys (column).
        sizes: queries in each group of queries.
    """

    queries: int
    height: int
    right: Float[Tensor, "keys width"]
    sizes: Float[Tensor, "height"]

    @classmethod
    def of(cls, softmax: Softmax, height: int, width: int) -> "Regions":
        """Cut the matrix of these weights.

        Raises:
            ArgumentError: a size that is no whole number, or below 1.
        """
        height, width = check_whole("height", height, 1), check_whole("width", width, 1)
        logits = softmax.logits
        queries, keys = logits.shape[-2:]
        height, width = min(height, queries), min(width, keys)
        numbers = torch.empty(0, dtype=logits.dtype, device=logits.device)
        right = numbers.new_zeros(keys, width)
        right[torch.arange(keys), _groups(range(keys), keys, width)] = 1.0
        sizes = torch.bincount(_groups(range(queries), queries, height), minlength=height)
        return cls(queries, height, right, sizes.to(numbers))

    def cut(self, rows: range) -> "Cut":
        """Cut some rows where one group of queries ends and the next begins."""
        first = rows.start * self.height // max(1, self.queries)
        last = (rows.stop - 1) * self.height // max(1, self.queries) if rows else first - 1
        groups = torch.arange(first, last + 1)
        starts = -(-groups * self.queries // self.height) - rows.start
        starts = starts.clamp(min=0)
        sizes = torch.diff(starts, append=starts.new_tensor([len(rows)]))
        return Cut(slice(first, last + 1), starts, sizes)

    def across(self, sums: Tensor, columns: range) -> Float[Tensor, "examples heads groups width"]:
        """Add columns up by groups."""
        return sums @ self.right[columns.start : columns.stop]

    def map(self, softmax: Softmax) -> Float[Tensor, "batch heads height width"]:
        """Mean over each group of queries of the mass on each group of keys."""
        logits = softmax.logits
        if softmax.trained():
            (by_query,) = softmax.by_rows(lambda b: (self.across(b.weights, b.columns),))
            groups = _groups(range(self.queries), self.queries, self.height)
            left = F.one_hot(groups, self.height).to(by_query).T
            with in_full(logits.device):
                return left @ by_query / self.sizes[:, None]
        total = self.empty(softmax)
        with in_full(logits.device):
            for b in softmax.blocks(range(logits.shape[-2])):
                cut = self.cut(b.rows)
                self.add(total, b, cut, cut.sums(b.weights))
        return total / self.sizes[:, None]

    def empty(self, softmax: Softmax) -> Float[Tensor, "batch heads height width"]:
        """Return a map of 0, to which blocks are added."""
        return self.right.new_zeros(*softmax.logits.shape[:2], self.height, self.right.shape[1])

    def add(self, total: Tensor, b: Block, cut: "Cut", sums: Tensor) -> None:
        """Add the sums of the groups of a block to the map."""
        total[b.examples, b.heads, cut.groups] += self.across(sums, b.columns)


@dataclass(frozen=True, eq=False)
class Cut:
    """The rows of a block, cut into pieces of a group of queries each.

    Attributes:
        groups: which groups these are.
        starts: the first row of each piece, counted within the block.
        sizes: rows of each piece.
    """

    groups: slice
    starts: Int[Tensor, "pieces"]
    sizes: Int[Tensor, "pieces"]
    _known: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)

    def sums(
        self,
        weights: Float[Tensor, "examples heads rows columns"],
        factors: Float[Tensor, "rows"] | None = None,
        chosen: Bool[Tensor, "examples rows"] | None = None,
    ) -> Float[Tensor, "examples heads pieces columns"]:
        """Add up the rows of each piece, times a factor for each, in one pass over memory.

        Args:
            weights: all rows of the block.
            factors: by default 1.
            chosen: rows that take part; what the others hold has no influence, NaN included.
        """
        examples, heads, rows, columns = weights.shape
        shape = (examples, heads, len(self.starts), columns)
        if weights.numel() == 0:
            return weights.new_zeros(shape)
        starts, taken = self._indices(examples * heads, weights)
        if factors is not None:
            factors = factors.repeat(examples * heads)
        if chosen is not None:
            every = chosen[:, None].expand(examples, heads, rows).flatten()
            before = F.pad(every.cumsum(0), (1, 0))
            starts, taken = before[starts], taken[every]
            factors = None if factors is None else factors[every]
        flat = weights.reshape(-1, columns)
        bags = torch.embedding_bag(flat, taken, starts, False, 0, False, factors)
        return bags[0].view(shape)

    def _indices(self, heads: int, like: Tensor) -> tuple[Tensor, Tensor]:
        """Return where each piece of so many heads starts, and all rows."""
        if heads not in self._known:
            rows = int(self.sizes.sum())
            own = torch.arange(heads, device=like.device)[:, None] * rows
            starts = (own + self.starts.to(own.device)).flatten()
            self._known[heads] = (starts, torch.arange(heads * rows, device=like.device))
        return self._known[heads]


def _groups(tokens: range, size: int, count: int) -> Tensor:
    """Number of the group of each of these of `size` tokens, in `count` groups."""
    return torch.arange(tokens.start, tokens.stop) * count // max(1, size)
