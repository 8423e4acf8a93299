"""Parts of the matrix: runs of rows and columns, and the small map that groups of them make."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float, Shaped
from torch import Tensor

from qkv.errors import ArgumentError
from qkv.weights.blocks import Block, Softmax


def run_of(argument: str, which: int | range | slice, size: int) -> range:
    """Return a run of an axis of this size.

    Raises:
        ArgumentError: an int outside of it, a range outside of it, or steps other than 1.
    """
    whole = range(size)
    if isinstance(which, slice):
        run = whole[which]
    elif isinstance(which, int):
        if not -size <= which < size:
            raise ArgumentError(f"{argument} got {which}; there are {size}, wanted 0 to {size - 1}")
        run = whole[which : which + 1 or None]
    else:
        run = which
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
            ArgumentError: a size below 1.
        """
        if min(height, width) < 1:
            raise ArgumentError(f"map got height={height}, width={width}; wanted 1 or more")
        logits = softmax.logits
        queries, keys = logits.shape[-2:]
        height, width = min(height, queries), min(width, keys)
        right = F.one_hot(_groups(range(keys), keys, width), width)
        sizes = torch.bincount(_groups(range(queries), queries, height), minlength=height)
        numbers = torch.empty(0, dtype=logits.dtype, device=logits.device)
        return cls(queries, height, right.to(numbers), sizes.to(numbers))

    def down(self, b: Block) -> tuple[slice, Float[Tensor, "examples heads groups columns"]]:
        """Add the rows of a block up by groups; say which groups these are."""
        groups = _groups(b.rows, self.queries, self.height)
        if not len(groups):
            return slice(0, 0), b.weights
        first, last = int(groups[0]), int(groups[-1])
        left = F.one_hot(groups - first, last - first + 1).to(b.weights).T
        return slice(first, last + 1), left @ b.weights

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
            return left @ by_query / self.sizes[:, None]
        total = self.empty(softmax)
        for b in softmax.blocks(range(logits.shape[-2])):
            self.add(total, b, *self.down(b))
        return total / self.sizes[:, None]

    def empty(self, softmax: Softmax) -> Float[Tensor, "batch heads height width"]:
        """Return a map of 0, to which blocks are added."""
        return self.right.new_zeros(*softmax.logits.shape[:2], self.height, self.right.shape[1])

    def add(self, total: Tensor, b: Block, groups: slice, sums: Tensor) -> None:
        """Add what `down` made of a block to the map."""
        total[b.examples, b.heads, groups] += self.across(sums, b.columns)


def _groups(tokens: range, size: int, count: int) -> Tensor:
    """Number of the group of each of these of `size` tokens, in `count` groups."""
    return torch.arange(tokens.start, tokens.stop) * count // max(1, size)
