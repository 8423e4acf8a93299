"""`nn.Linear` by our own product, which is faster in float32 on a CPU."""

from jaxtyping import Float
from torch import Tensor, nn

from qkv.core.product import linear


class Linear(nn.Linear):
    """X Wᵀ + b; made, drawn, saved and trained as `torch.nn.Linear`."""

    def forward(self, x: Float[Tensor, "*batch inputs"]) -> Float[Tensor, "*batch outputs"]:
        """Return X Wᵀ + b."""
        return linear(x, self.weight, self.bias)
