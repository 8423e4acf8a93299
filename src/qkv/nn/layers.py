"""One layer of an encoder: attention, then a feed-forward network."""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import gelu

from qkv.errors import ArgumentError
from qkv.nn.attending import MaskLike
from qkv.nn.attention import MultiHeadAttention

Norm = Callable[[int], nn.Module]
"""Makes the normalisation of so many values a token: `nn.LayerNorm`."""


class FeedForward(nn.Module):
    """W2 gelu(W1 x + b1) + b2, for every token by itself

    Vaswani et al. 2017, equation 2; GELU in place of ReLU as in Devlin et al. 2018.

    Args:
        n_embed: values a token.
        n_hidden: values a token between the two.
        device, dtype: of the parameters.
    """

    def __init__(
        self,
        n_embed: int,
        n_hidden: int,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        """Draw W1 and W2."""
        super().__init__()
        self.W1 = nn.Linear(n_embed, n_hidden, device=device, dtype=dtype)
        self.W2 = nn.Linear(n_hidden, n_embed, device=device, dtype=dtype)

    def forward(
        self, x: Float[Tensor, "*batch tokens n_embed"]
    ) -> Float[Tensor, "*batch tokens n_embed"]:
        """Return one row a token, of the same width."""
        y: Tensor = self.W2(gelu(self.W1(x)))
        return y


class EncoderLayer(nn.Module):
    """Attention, then a feed-forward network; what each adds is normalised.

    y = norm(x + attention(x, x, x))
    z = norm(y + feed_forward(y))        Vaswani et al. 2017, section 3.1 (post-norm)

    Args:
        n_embed: values a token; each head has n_embed / num_heads of them.
        num_heads: heads of the attention.
        n_hidden: values a token within the feed-forward network.
        norm: makes a normalisation of `n_embed` values; `nn.LayerNorm` by default.
        device, dtype: of the parameters.

    Raises:
        ArgumentError: the heads cannot share n_embed evenly.
    """

    def __init__(
        self,
        n_embed: int,
        num_heads: int,
        n_hidden: int,
        *,
        norm: Norm = nn.LayerNorm,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        """Draw the weights: attention, then feed-forward."""
        super().__init__()
        if num_heads < 1 or n_embed % num_heads:
            raise ArgumentError(f"num_heads={num_heads} cannot share n_embed={n_embed} evenly")
        size = n_embed // num_heads
        self.attention = MultiHeadAttention(
            n_embed, num_heads=num_heads, n_out=n_embed, d_k=size, d_v=size, bias=True,
            device=device, dtype=dtype,
        )  # fmt: skip
        self.attention_norm = norm(n_embed).to(device, dtype)
        self.feed_forward = FeedForward(n_embed, n_hidden, device=device, dtype=dtype)
        self.feed_forward_norm = norm(n_embed).to(device, dtype)

    def forward(
        self, x: Float[Tensor, "*batch tokens n_embed"], mask: MaskLike = False
    ) -> Float[Tensor, "*batch tokens n_embed"]:
        """Return one row a token. `mask`: True is causal, a `Mask` says anything else."""
        y = self.attention_norm(x + self.attention(x, x, x, mask))
        z: Tensor = self.feed_forward_norm(y + self.feed_forward(y))
        return z
