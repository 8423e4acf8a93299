"""Which token comes next: the best one, or one drawn from those that are likely enough."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from qkv.models.writing.options import Sampling

FEW = 1024
"""Tokens that are sorted first for top-p: seldom are more wanted, and all of them take longer."""

BELOW_ONE = 1 - 2**-52
"""The largest number that, times a sum of float64, still is below that sum."""


class Candidates(NamedTuple):
    """Tokens that may come next.

    Attributes:
        logits: how well each fits.
        ids: their numbers, the best first; None where all tokens are there as they are.
    """

    logits: Float[Tensor, "rows candidates"]
    ids: Int[Tensor, "rows candidates"] | None = None


def best(logits: Float[Tensor, "rows vocabulary"]) -> Int[Tensor, "rows"]:
    """Return the token that fits best, of each row."""
    return logits.argmax(-1)


def draw(
    logits: Float[Tensor, "rows vocabulary"], sampling: Sampling, at: Sequence[float]
) -> Int[Tensor, "rows"]:
    """Draw a token of each row.

    Args:
        logits: how well each token fits.
        sampling: temperature and filters.
        at: a random number of each row, evenly from 0 to below 1.
    """
    few = likely(logits, sampling)
    up_to = few.logits.softmax(-1).cumsum(-1, dtype=torch.float64)
    numbers = [[min(number, BELOW_ONE)] for number in at]
    # The first token up to which the probabilities exceed the number; one of 0 never does.
    aim = torch.tensor(numbers, dtype=torch.float64, device=logits.device) * up_to[:, -1:]
    place = torch.searchsorted(up_to, aim, right=True).clamp(max=up_to.shape[-1] - 1)
    return (place if few.ids is None else few.ids.gather(-1, place)).squeeze(-1)


def likely(logits: Float[Tensor, "rows vocabulary"], sampling: Sampling) -> Candidates:
    """Return what may be drawn: temperature, then top-k, top-p and min-p; the best has logit 0."""
    # below the best, so that nothing overflows however low the temperature is
    below = logits - logits.amax(-1, keepdim=True)
    few = Candidates(below / max(sampling.temperature, torch.finfo(logits.dtype).tiny))
    if sampling.top_k is not None:
        few = top_k(few, sampling.top_k)
    if sampling.top_p is not None and sampling.top_p < 1:
        few = top_p(few, sampling.top_p)
    if sampling.min_p is not None:
        few = min_p(few, sampling.min_p)
    return few


def top_k(few: Candidates, k: int) -> Candidates:
    """Keep k of them, the most likely, the best first."""
    logits, places = few.logits.topk(min(k, few.logits.shape[-1]))
    return Candidates(logits, places if few.ids is None else few.ids.gather(-1, places))


def top_p(few: Candidates, p: float) -> Candidates:
    """Keep the fewest that are as likely as p together: those before which less than p stands."""
    size = few.logits.shape[-1]
    total = few.logits.logsumexp(-1, keepdim=True)
    for k in (min(FEW, size), size):
        sorted_few = top_k(few, k)
        probabilities = (sorted_few.logits - total).exp()
        before = probabilities.cumsum(-1) - probabilities
        beyond = before >= p
        if k == size or bool(beyond[:, -1].all()):
            break
    return Candidates(sorted_few.logits.masked_fill(beyond, -math.inf), sorted_few.ids)


def min_p(few: Candidates, p: float) -> Candidates:
    """Keep those that are p times as likely as the best, or more."""
    least = few.logits.amax(-1, keepdim=True) + math.log(p)
    return Candidates(few.logits.masked_fill(few.logits < least, -math.inf), few.ids)
