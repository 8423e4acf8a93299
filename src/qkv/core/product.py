"""X Wᵀ + b, by the fastest product that PyTorch has for the numbers at hand."""

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd import forward_ad

FEW = 32
"""Up to so many rows oneDNN's inner product beats the matrix product behind `F.linear`."""

BLOCK = 1 << 19
"""Weights of a bfloat16 matrix that are widened at a time: 2 MB in float32, in a core's cache."""

BFLOAT16 = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
"""Whether the processor has products of bfloat16 of its own."""

PLAIN = (Tensor, nn.Parameter)
"""Tensors of other classes have products of their own."""

_INNER: Any = getattr(getattr(torch.ops.mkldnn, "_linear_pointwise", None), "default", None)


def linear(
    x: Float[Tensor, "*batch inputs"],
    W: Float[Tensor, "outputs inputs"],
    b: Float[Tensor, "outputs"] | None = None,
) -> Float[Tensor, "*batch outputs"]:
    """X Wᵀ + b

    The same numbers as `torch.nn.functional.linear`, up to rounding. Inference on a CPU takes
    two other ways: a few rows in float32 (a token at a time, while text is written) go through
    oneDNN's inner product, and rows in bfloat16 are multiplied in float32 where the processor
    has no products of bfloat16 of its own.
    """
    if torch.is_grad_enabled():
        return F.linear(x, W, b)
    rows = x.numel() // max(1, x.shape[-1])
    few = x.dtype == torch.float32 and 0 < rows <= FEW and _INNER is not None
    if few and _fit(x, W, b) and _plain(x, W):
        y: Tensor = _INNER(x, W, b, "none", [], "")
        return y
    widen = x.dtype == W.dtype == torch.bfloat16 and rows > 3 and not BFLOAT16
    return _widened(x, W, b) if widen and _plain(x, W) else F.linear(x, W, b)


def _widened(x: Tensor, W: Tensor, b: Tensor | None) -> Tensor:
    """X Wᵀ + b in float32, rounded once at the end; a block of W at a time."""
    wide, step = x.float(), max(1, BLOCK // max(1, W.shape[1]))
    bias = None if b is None else b.float()
    y = x.new_empty(*x.shape[:-1], W.shape[0])
    for start in range(0, W.shape[0], step):
        rows = slice(start, start + step)
        y[..., rows] = linear(wide, W[rows].float(), None if bias is None else bias[rows])
    return y


def _fit(x: Tensor, W: Tensor, b: Tensor | None) -> bool:
    """Whether oneDNN takes them: its errors say little, and it reads a bias as if it lay dense."""
    fits = W.dtype == torch.float32 and W.dim() == 2 and x.shape[-1] == W.shape[1]
    return fits and (
        b is None or (b.dtype == W.dtype and b.shape == W.shape[:1] and b.is_contiguous())
    )


def _plain(x: Tensor, W: Tensor) -> bool:
    """Whether no device, compiler, transform, autocast or forward mode has a way of its own."""
    return (
        x.is_cpu
        and not torch.compiler.is_compiling()
        and type(x) is Tensor
        and type(W) in PLAIN
        and not torch.is_autocast_enabled("cpu")
        and forward_ad._current_level < 0
        and torch._C._functorch.peek_interpreter_stack() is None
    )
