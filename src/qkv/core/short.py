"""Attention over short texts in training, in bfloat16 on a CPU: plain products, forth and back.

PyTorch's fused kernel multiplies bfloat16 there no faster than float32, backwards half as fast.
Of a short text the weights are kept; they take little more than its queries, keys and values.
"""

from collections.abc import Iterator
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from qkv.core.product import BFLOAT16, plain

SHORT = 256
"""Keys of a short text at most."""

ROWS = 64
"""Queries of a block under a triangle: what lies right of a block is never multiplied."""


def faster(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether plain products beat the fused kernel, with as many heads of keys as of queries."""
    return (
        q.dtype == torch.bfloat16
        and BFLOAT16
        and torch.is_grad_enabled()
        and (q.requires_grad or k.requires_grad or v.requires_grad)
        and q.shape[1] == k.shape[1]
        and 0 < k.shape[-2] <= SHORT
        and q.numel() > 0
        and plain(q, k)
    )


def attention(
    q: Float[Tensor, "batch heads queries d_k"],
    k: Float[Tensor, "batch heads keys d_k"],
    v: Float[Tensor, "batch heads keys d_v"],
    scale: float,
    triangle: bool,
) -> Float[Tensor, "batch heads queries d_v"]:
    """softmax(Q Kᵀ · scale + M) V, M open or a triangle over as many keys as queries."""
    out: Tensor = _Attention.apply(q, k, v, scale, triangle)
    return out


class _Attention(torch.autograd.Function):
    """O = P V with P = softmax(S), S = Q Kᵀ;  from dO come dV = Pᵀ dO, dP = dO Vᵀ,
    dS = P (dP − Σ dP P), dQ = dS K and dK = dSᵀ Q        (Dao et al. 2022, appendix B)
    """

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, scale: float, triangle: bool) -> Tensor:
        q = torch.mul(q, scale, out=q.new_empty(q.shape))
        Q, K, V = (tensor.contiguous().flatten(0, 1) for tensor in (q, k, v))
        out = q.new_empty(*q.shape[:-1], v.shape[-1])
        flat, kept = out.flatten(0, 1), []
        for rows, columns in _blocks(q.shape[-2], k.shape[-2], triangle):
            S = torch.bmm(Q[:, rows], K[:, columns].mT)
            if triangle:
                S[..., rows] += _ahead(S.shape[-2], S)
            kept.append(torch.softmax(S, -1, out=S))
            torch.bmm(S, V[:, columns], out=flat[:, rows])
        ctx.save_for_backward(Q, K, V, *kept)
        ctx.scale, ctx.triangle, ctx.shapes = scale, triangle, (q.shape, k.shape, v.shape)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
        Q, K, V, *kept = ctx.saved_tensors
        dO = dout.contiguous().flatten(0, 1)
        dQ, dK, dV = torch.empty_like(Q), torch.zeros_like(K), torch.zeros_like(V)
        blocks = _blocks(Q.shape[-2], K.shape[-2], ctx.triangle)
        for P, (rows, columns) in zip(kept, blocks, strict=True):
            dV[:, columns].baddbmm_(P.mT, dO[:, rows])
            dP = torch.bmm(dO[:, rows], V[:, columns].mT)
            dS = torch._softmax_backward_data(dP, P, -1, P.dtype)
            torch.bmm(dS, K[:, columns], out=dQ[:, rows])
            dK[:, columns].baddbmm_(dS.mT, Q[:, rows])
        dQ *= ctx.scale
        gradients = (d.view(shape) for d, shape in zip((dQ, dK, dV), ctx.shapes, strict=True))
        return *gradients, None, None


def _blocks(queries: int, keys: int, triangle: bool) -> Iterator[tuple[slice, slice]]:
    """Cut queries into rows, each with the columns that they may look at."""
    for start in range(0, queries, ROWS if triangle else queries):
        stop = min(start + ROWS, queries) if triangle else queries
        yield slice(start, stop), slice(0, stop if triangle else keys)


def _ahead(rows: int, like: Tensor) -> Tensor:
    """−∞ where a key stands behind its query"""
    return like.new_full((rows, rows), -torch.inf).triu_(1)
