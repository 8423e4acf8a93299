"""The feed-forward network of a layer: every token by itself."""

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from qkv.errors import ArgumentError
from qkv.nn.linear import Linear

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "relu": F.relu,
    "silu": F.silu,
}
"""What bends: exact GELU, its approximation by tanh (GPT-2), ReLU, and SiLU (x · sigmoid x)."""


class FeedForward(nn.Module):
    """W2 f(W1 x + b1) + b2; gated: W2 (f(W1 x) · W3 x)

    Vaswani et al. 2017, equation 2 (ReLU); Devlin et al. 2018 (GELU); Shazeer 2020 (SwiGLU is
    gated SiLU).

    Args:
        n_embed: values a token.
        n_hidden: values a token between the two.
        activation: "gelu", "gelu_tanh", "relu" or "silu".
        gated: whether a second projection W3 multiplies what the first one lets through.
        bias: whether the projections have one.
        device, dtype: of the parameters.

    Raises:
        ArgumentError: the activation is not known.
    """

    def __init__(
        self,
        n_embed: int,
        n_hidden: int,
        *,
        activation: str = "gelu",
        gated: bool = False,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        """Draw W1 and W2, then W3."""
        super().__init__()
        if activation not in ACTIVATIONS:
            raise ArgumentError(f"activation is {activation!r}; known: {', '.join(ACTIVATIONS)}")
        self.activation, self.gated = activation, gated
        self.W1 = Linear(n_embed, n_hidden, bias, device, dtype)
        self.W2 = Linear(n_hidden, n_embed, bias, device, dtype)
        self.W3 = Linear(n_embed, n_hidden, bias, device, dtype) if gated else None
        self._bend = ACTIVATIONS[activation]

    def forward(
        self, x: Float[Tensor, "*batch tokens n_embed"]
    ) -> Float[Tensor, "*batch tokens n_embed"]:
        """Return one row a token, of the same width."""
        hidden = self._bend(self.W1(x))
        if self.W3 is not None:
            hidden = hidden * self.W3(x)
        y: Tensor = self.W2(hidden)
        return y
