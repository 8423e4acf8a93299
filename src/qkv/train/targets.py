"""Targets: what is to be told of a text, what stands before it, and how wrong a model is."""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import cross_entropy

IGNORED = -100
"""Stands where there is nothing to tell, as behind the end of a shorter text."""

MOST_NATS = 700.0
"""Of a target: e to more of them is no number in float64."""


def before(
    wanted: Int[Tensor, "batch tokens"], begin: int, pad: int
) -> Int[Tensor, "batch tokens"]:
    """Return what stands before each token that is to be told (teacher forcing).

    Args:
        wanted: the tokens of each text; `IGNORED` behind its end.
        begin: stands before the first one.
        pad: stands behind the end.
    """
    ids = wanted.roll(1, dims=1)
    ids[:, 0] = begin
    return ids.masked_fill(wanted == IGNORED, pad)


def nats(
    logits: Float[Tensor, "*batch vocabulary"], wanted: Int[Tensor, "*batch"], smoothing: float
) -> Float[Tensor, ""]:
    """−Σ log softmax(logits) at what was wanted, in float32 at least; `IGNORED` counts nothing

    Args:
        logits: for each target.
        wanted: the targets.
        smoothing: share of each that is spread over the vocabulary (Szegedy et al. 2016, section
            7).
    """
    exact = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return cross_entropy(
        exact.flatten(0, -2), wanted.flatten(), ignore_index=IGNORED, reduction="sum",
        label_smoothing=smoothing,
    )  # fmt: skip


def perplexity(loss: float) -> float:
    """e^loss; of a loss so large that this is no number, the largest that is told"""
    return math.exp(min(loss, MOST_NATS))
