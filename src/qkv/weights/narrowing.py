"""The mask of one head of one example, out of a mask for all of them."""

from dataclasses import dataclass

import torch
from torch import Tensor

from qkv.core.mask import Mask
from qkv.core.mask_parts import Device, Pairs, Part, Region, Tile


def mask_of_head(mask: Mask, axes: torch.Size, example: int, head: int) -> Mask:
    """Return what a mask says of one head.

    Args:
        mask: for similarities with the axes (batch…, heads) before queries and keys.
        axes: those axes.
        example: number of the example, the batch axes counted as one.
        head: number of the head.
    """
    return Mask(tuple(_narrowed(part, axes, example, head) for part in mask.parts))


def _narrowed(part: Part, axes: torch.Size, example: int, head: int) -> Part:
    if all(shape.numel() == 1 for shape in part.axes):
        return part
    if isinstance(part, Pairs):
        return Pairs(_of_head(part.values, axes, example, head))
    return OneHead(part, axes, example, head)


def _of_head(values: Tensor, axes: torch.Size, example: int, head: int) -> Tensor:
    own = values.shape[:-2]
    surplus = max(0, len(own) - len(axes))  # what stands further left is 1
    values = values[(0,) * surplus]
    values = values.expand(*axes, *values.shape[-2:])
    places = [int(at) for at in torch.unravel_index(torch.tensor(example), axes[:-1])]
    return values[(*places, head)]


@dataclass(frozen=True, eq=False)
class OneHead:
    """A condition of a mask, for one head of one example."""

    part: Part
    heads: torch.Size
    example: int
    head: int

    @property
    def axes(self) -> tuple[torch.Size, ...]:
        """None: what is left has the axes (rows, columns)."""
        return ()

    @property
    def is_bias(self) -> bool:
        """Whether numbers are added rather than pairs blocked."""
        return self.part.is_bias

    def check(self, queries: int, keys: int) -> None:
        """Raise MaskError where it cannot be meant for so many queries and keys."""
        self.part.check(queries, keys)

    def tile(self, region: Region, device: Device) -> Tile:
        """Answer for a region."""
        tile = self.part.tile(region, device)
        if isinstance(tile, bool):
            return tile
        return _of_head(tile, self.heads, self.example, self.head)

    def only_keys(self, queries: int) -> bool:
        """Whether it says the same for every query."""
        return self.part.only_keys(queries)
