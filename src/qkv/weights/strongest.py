"""The largest numbers of each row, exactly, without sorting whole rows."""

import math
import sys

import torch
from jaxtyping import Float, Int
from torch import Tensor

from qkv.weights.blocks import Block
from qkv.weights.regions import crop

SHORT = 128
"""Up to so many numbers whole rows are sorted."""


def strongest(
    rows: Float[Tensor, "*axes numbers"], k: int
) -> tuple[Float[Tensor, "*axes k"], Int[Tensor, "*axes k"]]:
    """Return the k largest numbers of each row, largest first, and where they stand.

    The maxima of groups tell which k groups hold them: a number outside those is at most the
    smallest of k maxima. The groups take every n-th number, so that their maxima are those of
    vectors rather than within them.

    Args:
        rows: none of them negative.
        k: how many.
    """
    numbers = rows.shape[-1]
    count = round(math.sqrt(numbers * max(1, k)) / 16) * 16  # groups, then candidates: the same
    each = numbers // max(1, count)
    if numbers <= SHORT or k > count or each < 2:
        return _largest(rows, k)
    whole = each * count
    grouped = rows[..., :whole].unflatten(-1, (each, count))
    best = _largest(grouped.amax(-2), k)[1][..., None, :]
    places = torch.arange(0, whole, count, device=rows.device)[:, None] + best
    places = places.flatten(-2)
    candidates = rows.gather(-1, places)
    if whole < numbers:
        rest = torch.arange(whole, numbers, device=rows.device)
        candidates = torch.cat([candidates, rows[..., whole:]], -1)
        places = torch.cat([places, rest.expand(*rows.shape[:-1], -1)], -1)
    values, at = _largest(candidates, k)
    return values, places.gather(-1, at)


def _largest(rows: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Sort whole rows: pairs of a number and its place, as integers of 64 bits.

    NumPy sorts these with vector instructions, five times as fast as `torch.topk` picks. As
    integers, floats that are not negative have the order that they have as numbers.
    """
    plain = rows.dtype == torch.float32 and rows.device.type == "cpu" and not rows.requires_grad
    if not plain or sys.byteorder != "little":
        values, at = torch.topk(rows, k, -1)
        return values, at
    places = torch.arange(rows.shape[-1], dtype=torch.int32).view(torch.float32)
    ordered = torch.complex(places, rows).view(torch.int64).numpy()  # the number in the high half
    ordered.sort(-1)
    largest = torch.from_numpy(ordered[..., : -k - 1 : -1].copy())[..., None]
    return largest.view(torch.float32)[..., 1], largest.view(torch.int32)[..., 0].long()


def strongest_keys(b: Block, k: int, keys: int) -> tuple[Tensor, Tensor]:
    """Return the k strongest weights of each query of a block, and which keys they go to.

    Where a query may look at fewer keys the rest are weights of 0, to other keys.
    """
    if len(b.columns) < k:
        return strongest(crop(b.weights, b.columns, range(keys)), k)
    values, at = strongest(b.weights, k)
    return values, at + b.columns.start
