"""Queries, keys and values as they are, without a module around them."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from qkv.core import steps
from qkv.core.calculation import Calculation
from qkv.core.fused import attention
from qkv.core.mask import Mask
from qkv.core.working import Working
from qkv.errors import ArgumentError
from qkv.nn.explain import example_index, example_mask


@torch.no_grad()
def explain_tensors(
    q: Float[Tensor, "*batch_heads queries d_k"],
    k: Float[Tensor, "*batch_kv_heads keys d_k"],
    v: Float[Tensor, "*batch_kv_heads keys d_v"],
    *,
    mask: Mask | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    tokens: Sequence[str] | None = None,
    key_tokens: Sequence[str] | None = None,
    batch: int | tuple[int, ...] = 0,
) -> Calculation:
    """Write down softmax(Q Kᵀ / √d_k + M) V for every head of one example.

    Two axes are one head, three axes (heads, tokens, values); axes before them are the batch.
    """
    observed = attention(q, k, v, mask, scale=scale, softcap=softcap)
    index = example_index(q.shape[:-3], batch)
    if not k.shape[-2]:
        raise ArgumentError(f"k has no keys, its shape is {tuple(k.shape)}; wanted one row a token")
    matrices = None
    if mask is not None:
        matrices = example_mask(mask, q.shape[-2], k.shape[-2], index)
    q, k, v, observed = (_heads(x, index) for x in (q, k, v, observed))
    if key_tokens is None and len(q[0]) == len(k[0]):
        key_tokens = tokens
    _check_labels("tokens", tokens, len(q[0]))
    _check_labels("key_tokens", key_tokens, len(k[0]))
    w = Working("Attention" if len(q) == 1 else f"Attention, {len(q)} heads")
    seen = {}
    for head, queries in enumerate(q):
        section = f"head {head + 1}/" if len(q) > 1 else ""
        shared = head // (len(q) // len(k))
        w.given(f"{section}queries", queries, symbol="Q", rows=tokens)
        w.given(f"{section}keys", k[shared], symbol="K", rows=key_tokens)
        w.given(f"{section}values", v[shared], symbol="V", rows=key_tokens)
        blocked = None
        if matrices is not None:
            m = matrices[head if len(matrices) > 1 else 0].to(queries)
            blocked = w.given(
                f"{section}mask", m, symbol="M", blocks=True, rows=tokens, columns=key_tokens
            )
        output = steps.attend(
            w, f"{section}queries", f"{section}keys", f"{section}values", blocked,
            scale=scale, softcap=softcap, section=section,
        )  # fmt: skip
        seen[output] = observed[head]
    return w.finish(seen)


def _check_labels(name: str, labels: Sequence[str] | None, size: int) -> None:
    if labels is not None and len(labels) != size:
        raise ArgumentError(f"{name} has {len(labels)} labels for {size} rows")


def _heads(x: Tensor, index: tuple[int, ...]) -> Tensor:
    return x[index] if x.dim() > 2 else x[None]
