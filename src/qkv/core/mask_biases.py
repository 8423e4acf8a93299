"""The part of a `Mask` that adds numbers by distance: ALiBi, made tile by tile."""

from dataclasses import dataclass

import torch
from torch import Tensor

from qkv.core.mask_parts import Device, Region, check_alignment


def slopes(num_heads: int) -> list[float]:
    """Return 2^(−8 k / n) of head k of n, from 1      Press et al. 2022, section 3

    Where n is no power of two: the slopes of the power below, then every other one of the power
    above, as the authors' code interpolates.
    """
    below = 1 << (num_heads.bit_length() - 1)
    first = [2 ** (-8 * k / below) for k in range(1, below + 1)]
    between = [2 ** (-4 * k / below) for k in range(1, 2 * (num_heads - below), 2)]
    return first + between


@dataclass(frozen=True, eq=False)
class Alibi:
    """−slope · distance, each head by a slope of its own."""

    num_heads: int
    offset: int | None
    dtype: torch.dtype
    is_bias = True

    @property
    def axes(self) -> tuple[torch.Size, ...]:
        return (torch.Size((1, self.num_heads)),)

    def check(self, queries: int, keys: int) -> None:
        check_alignment("alibi", queries, keys, self.offset)

    def tile(self, region: Region, device: Device) -> Tensor:
        offset = region.keys - region.queries if self.offset is None else self.offset
        rows = region.row_positions(offset, device)
        distance = (region.column_positions(device) - rows[:, None]).abs()
        slope = torch.tensor(slopes(self.num_heads), dtype=self.dtype, device=device)
        return -slope[None, :, None, None] * distance

    def only_keys(self, queries: int) -> bool:
        return False
