"""The largest numbers of each row, exactly, without sorting whole rows."""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor

from qkv.weights.blocks import Block
from qkv.weights.regions import crop

SHORT = 512
"""Up to so many numbers `torch.topk` on the whole row is as fast."""


def strongest(
    rows: Float[Tensor, "*axes numbers"], k: int
) -> tuple[Float[Tensor, "*axes k"], Int[Tensor, "*axes k"]]:
    """Return the k largest numbers of each row, largest first, and where they stand.

    The maxima of groups tell which k groups hold them: a number outside those is at most the
    smallest of k maxima. The groups take every n-th number, so that their maxima are those of
    vectors rather than within them.
    """
    numbers = rows.shape[-1]
    count = round(math.sqrt(numbers * max(1, k)) / 16) * 16  # groups, then candidates: the same
    each = numbers // max(1, count)
    if numbers <= SHORT or k > count or each < 2:
        values, at = torch.topk(rows, k, -1)
        return values, at
    whole = each * count
    grouped = rows[..., :whole].unflatten(-1, (each, count))
    best = torch.topk(grouped.amax(-2), k, -1, sorted=False).indices[..., None, :]
    best = best.expand(*grouped.shape[:-1], k)
    candidates = grouped.gather(-1, best).flatten(-2)
    places = torch.arange(0, whole, count, device=rows.device)[:, None] + best
    places = places.flatten(-2)
    if whole < numbers:
        rest = torch.arange(whole, numbers, device=rows.device)
        candidates = torch.cat([candidates, rows[..., whole:]], -1)
        places = torch.cat([places, rest.expand(*rows.shape[:-1], -1)], -1)
    values, at = torch.topk(candidates, k, -1)
    return values, places.gather(-1, at)


def strongest_keys(b: Block, k: int, keys: int) -> tuple[Tensor, Tensor]:
    """Return the k strongest weights of each query of a block, and which keys they go to.

    Where a query may look at fewer keys the rest are weights of 0, to other keys.
    """
    if len(b.columns) < k:
        return strongest(crop(b.weights, b.columns, range(keys)), k)
    values, at = strongest(b.weights, k)
    return values, at + b.columns.start
