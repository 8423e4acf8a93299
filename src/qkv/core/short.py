"""Attention over short texts in training, in bfloat16 on a CPU: plain products.

PyTorch's fused kernel multiplies bfloat16 there no faster than float32, and backwards slower. The
weights of a text that is short beside a head's width take a few times the memory of its queries.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from qkv.core.product import BFLOAT16, MUCH, learns, plain

SHORT = 4
"""Keys of a short text at most, for each value of a query: 256 where a head has 64."""


def faster(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether plain products beat the fused kernel, with as many heads of keys as of queries."""
    return (
        q.dtype == torch.bfloat16
        and BFLOAT16
        and learns(q, k, v)
        and q.shape[1] == k.shape[1]
        and k.shape[-2] <= SHORT * q.shape[-1]
        and q.numel() * k.shape[-2] >= MUCH
        and plain(q, k, v)
    )


def attention(
    q: Float[Tensor, "batch heads queries d_k"],
    k: Float[Tensor, "batch heads keys d_k"],
    v: Float[Tensor, "batch heads keys d_v"],
    scale: float,
    triangle: bool,
) -> Float[Tensor, "batch heads queries d_v"]:
    """softmax(Q Kᵀ · scale + M) V, M open or a triangle over as many keys as queries.

    As in PyTorch's unfused attention the similarities are rounded to bfloat16.
    """
    similarities = (q * scale) @ k.mT
    if triangle:
        ahead = torch.ones(similarities.shape[-2:], dtype=torch.bool, device=q.device).triu_(1)
        similarities = similarities.masked_fill_(ahead, -torch.inf)
    return similarities.softmax(-1) @ v
