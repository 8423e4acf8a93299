"""RMSNorm, as fast as LayerNorm on a CPU."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from qkv.core.product import learns, plain

FEW = 32
"""Up to so many rows one call counts more than the numbers that it reads twice."""

EXACT = (torch.float32, torch.float64)
"""Whose sums over many rows stay close: half precision has PyTorch's gradient."""


class RMSNorm(nn.RMSNorm):
    """x / √(mean x² + eps) · γ        Zhang and Sennrich 2019, equation 4

    Made, saved and trained as `torch.nn.RMSNorm`, whose gradient PyTorch puts together of dozens of
    operations on a CPU: in training it is written out here. In inference a few rows go through
    LayerNorm's single one instead: (x, −x) has the mean 0 and the variance mean x².

    Args:
        normalized_shape: values a row; a single number.
        eps: keeps rows of zeros finite.
    """

    def forward(self, x: Float[Tensor, "*batch values"]) -> Float[Tensor, "*batch values"]:
        """Return one row for each row."""
        n, gain, eps = x.shape[-1], self.weight, self.eps
        if eps is None or gain is None or self.normalized_shape != (n,) or not plain(x, gain):
            return super().forward(x)
        if learns(x, gain):
            if not x.dtype == gain.dtype in EXACT:
                return super().forward(x)
            y: Tensor = _Trained.apply(x, gain, eps)
            return y
        if not 0 < x.numel() <= FEW * n:
            return super().forward(x)
        both = torch.cat((x, -x), -1)
        unit = torch.layer_norm(both, (2 * n,), None, None, eps).narrow(-1, 0, n)
        return unit * gain


class _Trained(torch.autograd.Function):
    """y = u γ, u = x / RMS;  from dy come dx = (dy γ − u mean(dy γ u)) / RMS and dγ = Σ dy u."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, gain: Tensor, eps: float) -> Tensor:
        scale = _over_rms(x, eps)
        ctx.save_for_backward(x, gain, scale)
        ctx.eps = eps
        return (x * scale).mul_(gain)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, gain, scale = ctx.saved_tensors
        n = x.shape[-1]
        if torch.is_grad_enabled():  # somebody wants the gradient of a gradient
            scale = _over_rms(x, ctx.eps)
            unit = x * scale
            moved = dy * unit
            mean = (moved * gain).mean(-1, keepdim=True)
            return scale * (dy * gain - unit * mean), moved.reshape(-1, n).sum(0), None
        # LayerNorm's, as if the mean were 0; it takes the mean of dy γ away, which is put back.
        zero = torch.zeros_like(scale)
        dx, dgain, _ = torch.ops.aten.native_layer_norm_backward(
            dy, x, [n], zero, scale, gain, None, [True, True, False]
        )
        return dx.add_(scale * (dy * gain).mean(-1, keepdim=True)), dgain, None


def _over_rms(x: Tensor, eps: float) -> Tensor:
    """1 / √(mean x² + eps) of each row"""
    length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    scale: Tensor = (length.square() / x.shape[-1] + eps).rsqrt()
    return scale
