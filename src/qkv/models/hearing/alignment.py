"""When was a word said? Read off cross-attention: which frames each token looked at.

Radford et al. 2022 published the method with Whisper's code: the weights of some heads, made
comparable, smoothed and averaged, then the cheapest monotone path through them.
"""

import itertools

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from qkv.errors import ArgumentError

SMOOTHED = 7
"""Frames of the median filter."""


def warp(cost: Float[Tensor, "rows columns"], *, alone: bool = False) -> list[tuple[int, int]]:
    """Return the cheapest way from the first to the last row and column   Sakoe and Chiba 1978

        D[i, j] = cost[i, j] + min(D[i−1, j−1], D[i−1, j], D[i, j−1])

    Every step goes one row on, one column on, or both; at equal cost both.

    Args:
        cost: of each place on the way.
        alone: whether no two rows share a column: D[i−1, j] is left out.

    Raises:
        ArgumentError: nothing to go through, costs that are not finite, or too few columns for
            every row to have one alone.
    """
    if not cost.numel() or not cost.isfinite().all():
        raise ArgumentError(f"cost is {tuple(cost.shape)}; wanted finite numbers, one or more")
    if alone and cost.shape[0] > cost.shape[1]:
        raise ArgumentError(f"cost is {tuple(cost.shape)}; alone wants a column for every row")
    total = _accumulated(cost.detach().cpu().double().numpy(), alone)
    i, j = total.shape[0] - 1, total.shape[1] - 1
    steps = ((1, 1), (0, 1)) if alone else ((1, 1), (1, 0), (0, 1))
    path = [(i, j)]
    while (i, j) != (0, 0):
        before = [(i - down, j - on) for down, on in steps if i >= down and j >= on]
        i, j = min(before, key=lambda at: float(total[at]))
        path.append((i, j))
    return path[::-1]


def _accumulated(cost: NDArray[np.float64], alone: bool) -> NDArray[np.float64]:
    """D, a row at a time: a row that is entered at column k costs its sum from k to j."""
    total = np.cumsum(cost, axis=1)  # right for the first row, then overwritten row by row
    for i in range(1, len(cost)):
        until = np.concatenate(([0.0], total[i]))
        above = np.concatenate(([np.inf], total[i - 1, :-1]))
        if not alone:
            above = np.minimum(above, total[i - 1])
        total[i] = np.minimum.accumulate(above - until[:-1]) + until[1:]
    return total


def standardised(
    weights: Float[Tensor, "*heads tokens frames"],
) -> Float[Tensor, "*heads tokens frames"]:
    """(w − mean) / deviation of each frame over the tokens.

    What every token looks at alike, such as the first frame, then counts for nothing.
    """
    deviation, mean = torch.std_mean(weights, dim=-2, keepdim=True, unbiased=False)
    return (weights - mean) / deviation.clamp(min=torch.finfo(weights.dtype).tiny)


def smoothed(
    x: Float[Tensor, "*heads tokens frames"], width: int = SMOOTHED
) -> Float[Tensor, "*heads tokens frames"]:
    """Return the median of `width` frames around each; the ends are mirrored.

    Raises:
        ArgumentError: a width that is even or below 1.
    """
    if width < 1 or width % 2 == 0:
        raise ArgumentError(f"width is {width}; wanted an odd number, 1 or more")
    around = min(width // 2, x.shape[-1] - 1)
    ends = torch.arange(-around, x.shape[-1] + around, device=x.device).abs()
    mirrored = x[..., torch.minimum(ends, 2 * (x.shape[-1] - 1) - ends)]
    return mirrored.unfold(-1, 2 * around + 1, 1).median(dim=-1).values


def evidence(weights: Float[Tensor, "heads tokens frames"]) -> Float[Tensor, "tokens frames"]:
    """Return how much speaks for each token at each frame: the mean of what the heads say."""
    return smoothed(standardised(weights)).mean(dim=0)


def starts(weights: Float[Tensor, "heads tokens frames"]) -> list[int]:
    """Return the frame at which each token begins, by the heads that follow the sound.

    Each begins at a frame of its own, unless there are more tokens than frames.

    Args:
        weights: cross-attention of the chosen heads; row i is the query that wrote token i.

    Raises:
        ArgumentError: no heads, tokens or frames.
    """
    if not weights.numel():
        raise ArgumentError(f"weights are {tuple(weights.shape)}; wanted one head or more")
    path = warp(-evidence(weights), alone=weights.shape[1] <= weights.shape[2])
    return [next(steps)[1] for _, steps in itertools.groupby(path, key=lambda at: at[0])]


def follows(weights: Float[Tensor, "tokens frames"], within: int = 10) -> float:
    """Return how well one head follows the sound, 0 to 1.

    Of what it gives to frames beyond what the average token gives them, the share that lies
    within some frames of its own best monotone path. A head that rests on one frame, or looks
    everywhere, has no such path.

    Args:
        weights: cross-attention of one head.
        within: frames on either side of the path that count as on it.

    Raises:
        ArgumentError: fewer than two tokens, or no frames.
    """
    if len(weights) < 2 or not weights.numel():
        raise ArgumentError(f"weights are {tuple(weights.shape)}; wanted two tokens or more")
    beyond = (weights - weights.mean(dim=0)).clamp(min=0).double()
    near = torch.zeros_like(beyond, dtype=torch.bool)
    for i, j in warp(-beyond):
        near[i, max(0, j - within) : j + within + 1] = True
    total = beyond.sum()
    return float(beyond[near].sum() / total) if total > 0 else 0.0
