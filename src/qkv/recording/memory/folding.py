"""Heads that share keys and were put among the queries, taken apart again.

With a single query, heads of a group can be the rows of one product: (batch, heads, 1, d_k) becomes
(batch, kv_heads, group, d_k). How many heads there are is known from the calls before.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from jaxtyping import Shaped
from torch import Tensor

from qkv.recording.calls.operands import Lazy, Operands, Operation


def is_folded(operands: Operands, heads: int) -> bool:
    """Whether a call has one query of so many heads, and most of them stand among the rows."""
    kv_heads, rows = operands.q.shape[1:3]
    return kv_heads == operands.k.shape[1] < heads and kv_heads * rows == heads


def unfolded(operands: Operands, projection: Lazy | None) -> Operands:
    """Return the same call with each head on its own: (batch, heads, 1, …).

    Args:
        operands: with heads among the rows.
        projection: of all the heads, as a call before knows it.
    """
    kv_heads, rows = operands.q.shape[1:3]
    return replace(
        operands,
        q=_heads(operands.q, kv_heads, rows),
        output=_heads(operands.output, kv_heads, rows),
        scores=_operations(operands.scores, kv_heads, rows),
        after=_operations(operands.after, kv_heads, rows),
        sinks=_lazily(operands.sinks, kv_heads, rows),
        noise=_lazily(operands.noise, kv_heads, rows),
        projection=projection,
    )


def _heads(
    x: Shaped[Tensor, "batch some rows width"], kv_heads: int, rows: int
) -> Shaped[Tensor, "batch heads 1 width"]:
    if x.shape[1] == x.shape[2] == 1:
        return x  # the same for all
    return x.expand(-1, kv_heads, rows, -1).reshape(len(x), kv_heads * rows, 1, x.shape[-1])


def _lazily(lazy: Lazy | None, kv_heads: int, rows: int) -> Lazy | None:
    return None if lazy is None else partial(_later, lazy, kv_heads, rows)


def _later(lazy: Lazy, kv_heads: int, rows: int) -> Tensor:
    return _heads(lazy(), kv_heads, rows)


def _operations(operations: Sequence[Operation], kv_heads: int, rows: int) -> tuple[Operation, ...]:
    return tuple(
        replace(
            operation,
            operand=_lazily(operation.operand, kv_heads, rows),
            other=_lazily(operation.other, kv_heads, rows),
        )
        for operation in operations
    )
