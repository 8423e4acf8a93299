"""Attention a second time, by NumPy in float64, written without a look at qkv.

The heads, the softmax, the masks and the gradients are spelled out with loops and einsum. What
compares raises; nothing here returns a truth value.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

Array = NDArray[np.float64]
INFINITY = float("inf")


def array(tensor: Tensor | ArrayLike) -> Array:
    """Return a float64 copy."""
    if isinstance(tensor, Tensor):
        tensor = tensor.detach().double().cpu().numpy()
    return np.array(tensor, dtype=np.float64)


def agree(actual: Tensor | ArrayLike, wanted: ArrayLike, within: float) -> None:
    """Raise where a shape differs or any entry is further away than `within` (NaN always is)."""
    got, expected = array(actual), np.asarray(wanted, dtype=np.float64)
    assert got.shape == expected.shape, f"shape {got.shape}, wanted {expected.shape}"
    np.testing.assert_allclose(got, expected, rtol=0, atol=within, equal_nan=False)


def softmax_rows(logits: Array) -> Array:
    """Shares of each row, entry by entry; a row of −∞ has none."""
    shares = np.zeros_like(logits)
    for index in np.ndindex(*logits.shape[:-1]):
        row = logits[index]
        if (row > -INFINITY).any():
            powers = np.exp(row - row.max())
            shares[index] = powers / powers.sum()
    return shares


def serves(head: int, heads: int, kv_heads: int) -> int:
    """Number of the key/value head that serves a head: 0 0 1 1."""
    return head // (heads // kv_heads)


def weights(
    q: Array, k: Array, added: ArrayLike = 0.0, scale: float | None = None, cap: float | None = None
) -> Array:
    """softmax(cap(Q Kᵀ · scale) + M) for (batch, heads, tokens, values), head after head."""
    batch, heads, queries, d_k = q.shape
    logits = np.empty((batch, heads, queries, k.shape[2]))
    for b in range(batch):
        for h in range(heads):
            served = k[b, serves(h, heads, k.shape[1])]
            logits[b, h] = np.einsum("id,jd->ij", q[b, h], served)
    logits = logits / np.sqrt(d_k) if scale is None else logits * scale
    if cap is not None:
        logits = cap * np.tanh(logits / cap)
    return softmax_rows(logits + np.broadcast_to(added, logits.shape))


def attention(
    q: Array,
    k: Array,
    v: Array,
    added: ArrayLike = 0.0,
    scale: float | None = None,
    cap: float | None = None,
) -> Array:
    """softmax(cap(Q Kᵀ · scale) + M) V for (batch, heads, tokens, values)."""
    shares = weights(q, k, added, scale, cap)
    out = np.empty((*q.shape[:3], v.shape[-1]))
    for b in range(q.shape[0]):
        for h in range(q.shape[1]):
            out[b, h] = np.einsum(
                "ij,jd->id", shares[b, h], v[b, serves(h, q.shape[1], v.shape[1])]
            )
    return out


def gradients(
    q: Array, k: Array, v: Array, added: ArrayLike, wished: Array
) -> tuple[Array, Array, Array]:
    """Gradients of Σ output · wished by q, k and v, from the chain rule on paper."""
    p, scale = weights(q, k, added), q.shape[-1] ** -0.5
    dq, dk, dv = np.zeros_like(q), np.zeros_like(k), np.zeros_like(v)
    for b in range(q.shape[0]):
        for h in range(q.shape[1]):
            g = serves(h, q.shape[1], k.shape[1])
            dp = wished[b, h] @ v[b, g].T
            ds = p[b, h] * (dp - (dp * p[b, h]).sum(-1, keepdims=True)) * scale
            dq[b, h] = ds @ k[b, g]
            dk[b, g] += ds.T @ q[b, h]
            dv[b, g] += p[b, h].T @ wished[b, h]
    return dq, dk, dv


def blocked(may_look: ArrayLike) -> Array:
    """M of a table of who may look at whom."""
    return np.where(np.asarray(may_look, dtype=bool), 0.0, -INFINITY)


def band(queries: int, keys: int, before: float, after: float, offset: int | None = None) -> Array:
    """M of a triangle or a window, pair by pair; the queries are the last ones."""
    first = keys - queries if offset is None else offset
    return blocked(
        [[-before <= j - (i + first) <= after for j in range(keys)] for i in range(queries)]
    )


def causal(queries: int, keys: int, offset: int | None = None) -> Array:
    """M of the article's lower triangle, aligned at the last key."""
    return band(queries, keys, INFINITY, 0, offset)


def padded(lengths: list[int], keys: int, side: str = "right") -> Array:
    """M of a padded batch, axes (batch, 1, 1, keys)."""
    rows = []
    for n in lengths:
        real, padding = [True] * n, [False] * (keys - n)
        rows.append(real + padding if side == "right" else padding + real)
    return blocked(rows)[:, None, None, :]


def documents(ids: list[int], queries: int) -> Array:
    """M of packed documents, pair by pair; the queries are the last tokens."""
    first = len(ids) - queries
    return blocked([[ids[first + i] == other for other in ids] for i in range(queries)])


SLOPES = {  # of ALiBi, from its authors' article and code
    1: [8], 2: [4, 8], 3: [4, 8, 2], 4: [2, 4, 6, 8], 5: [2, 4, 6, 8, 1], 6: [2, 4, 6, 8, 1, 3],
    7: [2, 4, 6, 8, 1, 3, 5], 8: [1, 2, 3, 4, 5, 6, 7, 8], 9: [1, 2, 3, 4, 5, 6, 7, 8, 0.5],
    16: [k / 2 for k in range(1, 17)],
}  # fmt: skip


def alibi(heads: int, queries: int, keys: int) -> Array:
    """−2^(−slope) · distance, pair by pair, axes (1, heads, queries, keys)."""
    added = np.zeros((1, heads, queries, keys))
    for h, i, j in np.ndindex(heads, queries, keys):
        added[0, h, i, j] = -(2.0 ** -SLOPES[heads][h]) * abs(j - (keys - queries + i))
    return added
