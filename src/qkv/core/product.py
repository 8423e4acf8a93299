"""X Wᵀ + b, by the fastest product that PyTorch has for the numbers at hand."""

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

_INNER = getattr(torch.ops.mkldnn, "_linear_pointwise", None)


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
    rows = x.numel() // max(1, x.shape[-1])
    inner = x.dtype == torch.float32 and 0 < rows <= FEW
    widen = x.dtype == torch.bfloat16 and rows > 3 and not BFLOAT16
    if not (inner or widen) or torch.is_grad_enabled() or _watched(x, W):
        return F.linear(x, W, b)
    if inner and _INNER is not None and _fit(x, W, b):
        y: Tensor = _INNER(x, W, b, "none", [], "")
        return y
    return _widened(x, W, b) if widen and W.dtype == x.dtype else F.linear(x, W, b)


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


def _watched(x: Tensor, W: Tensor) -> bool:
    """Whether another device, a compiler, a transform, autocast or forward mode has its own way."""
    return (
        x.device.type != "cpu"
        or torch.compiler.is_compiling()
        or torch._C._functorch.peek_interpreter_stack() is not None
        or torch.is_autocast_enabled("cpu")
        or forward_ad._current_level >= 0
        or type(x) is not Tensor
        or type(W) not in PLAIN
    )
