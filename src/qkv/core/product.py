"""X Wᵀ + b, by the fastest product that PyTorch has for the numbers at hand."""

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd import forward_ad

from qkv.core.laid import FEW, laid, lay

MUCH = 1 << 23
"""From so many products of two numbers on oneDNN's inner product is faster than `F.linear`."""

LARGE = 1 << 18
"""And for few rows of so many weights, as while text is written: it reads memory faster."""

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

    The same numbers as `torch.nn.functional.linear`, up to rounding. On a CPU float32 goes through
    oneDNN's inner product where that is faster: where much is to be multiplied, in training too, or
    few rows by many weights, which may be `Laid` for them. In inference rows in bfloat16 are
    multiplied in float32 where the processor has no products of bfloat16 of its own.
    """
    if not torch.compiler.is_compiling() and (blocks := laid(x, W)) is not None and _adds(W, b):
        return _inner(x, blocks, b)
    rows, size = x.numel() // max(1, x.shape[-1]), W.numel()
    written = 0 < rows <= FEW and size >= LARGE and not torch.is_grad_enabled()
    inner = written or rows * size >= MUCH
    if inner and _fit(x, W, b) and plain(x, W, b):
        if written:
            lay(W)
        if x.dtype == torch.float32:
            y: Tensor = _Trained.apply(x, W, b) if learns(x, W, b) else _inner(x, W, b)
            return y
    if x.dtype == torch.bfloat16 and not BFLOAT16 and rows > 3 and _widens(x, W, b):
        return _widened(x, W, b)
    return F.linear(x, W, b)


class _Trained(torch.autograd.Function):
    """X Wᵀ + b;  from dY come dX = dY W, dW = dYᵀ X and db, the sum of dY's rows."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, W: Tensor, b: Tensor | None) -> Tensor:
        of_x, of_W, _ = ctx.needs_input_grad
        ctx.save_for_backward(x if of_W else None, W if of_x else None)
        ctx.shape = x.shape
        return _inner(x, W, b)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, W = ctx.saved_tensors
        rows = dy.reshape(-1, dy.shape[-1])
        dx = None if W is None else linear(rows, W.mT).view(ctx.shape)
        dW = None if x is None else rows.mT @ x.reshape(-1, x.shape[-1])
        return dx, dW, rows.sum(0) if ctx.needs_input_grad[2] else None


def _widened(x: Tensor, W: Tensor, b: Tensor | None) -> Tensor:
    """X Wᵀ + b in float32, rounded once at the end; a block of W at a time."""
    wide, step = x.float(), max(1, BLOCK // max(1, W.shape[1]))
    bias = None if b is None else b.float()
    y = x.new_empty(*x.shape[:-1], W.shape[0])
    for start in range(0, W.shape[0], step):
        rows = slice(start, start + step)
        y[..., rows] = linear(wide, W[rows].float(), None if bias is None else bias[rows])
    return y


def _inner(x: Tensor, W: Tensor, b: Tensor | None) -> Tensor:
    y: Tensor = _INNER(x, W, b, "none", [], "")
    return y


def _fit(x: Tensor, W: Tensor, b: Tensor | None) -> bool:
    """Whether oneDNN takes them: its errors say little, and it reads a bias as if it lay dense."""
    return (
        _INNER is not None
        and x.dtype == W.dtype
        and (x.dtype == torch.float32 or (x.dtype == torch.bfloat16 and BFLOAT16))
        and not torch.is_autocast_enabled("cpu")
        and W.dim() == 2
        and x.shape[-1] == W.shape[1]
        and _adds(W, b)
    )


def _adds(W: Tensor, b: Tensor | None) -> bool:
    return b is None or (b.dtype == W.dtype and b.shape == W.shape[:1] and b.is_contiguous())


def _widens(x: Tensor, W: Tensor, b: Tensor | None) -> bool:
    """Whether bfloat16 is multiplied in float32: in inference alone."""
    low = W.dtype == x.dtype and not torch.is_autocast_enabled("cpu")
    return low and not learns(x, W, b) and plain(x, W, b)


def learns(*tensors: Tensor | None) -> bool:
    """Whether a gradient is to come back to one of them."""
    return torch.is_grad_enabled() and any(one is not None and one.requires_grad for one in tensors)


def plain(*tensors: Tensor | None) -> bool:
    """Whether no device, compiler, transform, trace or forward mode has a way of its own."""
    for one in tensors:
        if one is None or (type(one) in PLAIN and one.is_cpu and one.layout is torch.strided):
            continue
        return False
    return (
        not torch.compiler.is_compiling()
        and not torch._C._is_tracing()
        and forward_ad._current_level < 0
        and torch._C._functorch.peek_interpreter_stack() is None
    )
