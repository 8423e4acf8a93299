"""`nn.RMSNorm`, faster where a few rows are normalised, as while text is written."""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from qkv.core.product import FEW


class RMSNorm(nn.RMSNorm):
    """x / √(mean x² + eps) · γ        Zhang and Sennrich 2019, equation 4

    Made, saved and trained as `torch.nn.RMSNorm`, which PyTorch puts together of ten operations on
    a CPU. In inference a few rows go through LayerNorm's single one instead: (x, −x) has the mean 0
    and the variance mean x².

    Args:
        normalized_shape: values a row; a single number.
        eps: keeps rows of zeros finite.
    """

    def forward(self, x: Float[Tensor, "*batch values"]) -> Float[Tensor, "*batch values"]:
        """Return one row for each row."""
        n = x.shape[-1]
        few = 0 < x.numel() <= FEW * n and x.device.type == "cpu" and self.eps is not None
        if not few or torch.is_grad_enabled() or torch.compiler.is_compiling():
            return super().forward(x)
        both = torch.cat((x, -x), -1)
        unit = F.layer_norm(both, (2 * n,), eps=self.eps or 0.0).narrow(-1, 0, n)
        y: Tensor = unit * self.weight
        return y
