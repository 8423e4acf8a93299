"""Every question, asked of a dense float64 matrix by NumPy: nothing here knows `Weights`."""

import numpy as np

from tests.reference import Array, softmax_rows


def logits(q: Array, k: Array, added: Array, scale: float | None, cap: float | None) -> Array:
    """cap(Q Kᵀ · scale) + M, heads of keys repeated 0 0 1 1."""
    keys = np.repeat(k, q.shape[1] // k.shape[1], axis=1)
    x = np.einsum("bhid,bhjd->bhij", q, keys) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if cap is not None:
        x = cap * np.tanh(x / cap)
    return x + np.broadcast_to(added, x.shape)


def weights(x: Array, sinks: Array | None = None) -> Array:
    """softmax of each row; sinks (batch, heads, queries, number) are appended and dropped."""
    if sinks is None:
        return softmax_rows(x)
    return softmax_rows(np.concatenate([x, sinks], -1))[..., : x.shape[-1]]


def logsumexp(x: Array, sinks: Array | None = None) -> Array:
    """ln Σ exp, −∞ where there is nothing."""
    every = x if sinks is None else np.concatenate([x, sinks], -1)
    highest = every.max(-1, keepdims=True)
    highest[np.isneginf(highest)] = 0.0
    with np.errstate(divide="ignore"):
        return np.log(np.exp(every - highest).sum(-1)) + highest[..., 0]


def entropy(p: Array) -> Array:
    """−Σ p ln p, 0 ln 0 = 0."""
    return -(p * np.log(np.where(p > 0, p, 1.0))).sum(-1)


def regions(p: Array, height: int, width: int) -> Array:
    """Mean over groups of rows of the sum over groups of columns, entry by entry."""
    queries, keys = p.shape[-2:]
    height, width = min(height, queries), min(width, keys)
    down = [i * height // queries for i in range(queries)]
    across = [j * width // keys for j in range(keys)]
    out = np.zeros((*p.shape[:2], height, width))
    for i in range(queries):
        for j in range(keys):
            out[:, :, down[i], across[j]] += p[:, :, i, j] / down.count(down[i])
    return out


def distance(p: Array) -> Array:
    """Σ_j p_ij |i − j|, the last query at the last key."""
    queries, keys = p.shape[-2:]
    i = np.arange(queries)[:, None] + keys - queries
    return (p * np.abs(i - np.arange(keys))).sum(-1)
