"""Sinusoidal positions: word order, added to the encodings."""

from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from qkv.errors import ArgumentError

Layout = Literal["interleaved", "halves"]


def sinusoidal(
    tokens: int,
    n_embed: int,
    *,
    first: int = 0,
    base: float = 10_000.0,
    layout: Layout = "interleaved",
    dtype: torch.dtype = torch.float32,
    device: torch.device | str | None = None,
) -> Float[Tensor, "tokens n_embed"]:
    """Return one row a position: sines in the even columns, cosines in the odd ones.

        PE[p, 2i]     = sin(p / base^(2i / n_embed))
        PE[p, 2i + 1] = cos(p / base^(2i / n_embed))     Vaswani et al. 2017, section 3.5

    Args:
        tokens: how many positions.
        n_embed: values a position; an odd number leaves out the last cosine.
        first: number of the first position, for text that goes on.
        base: the longest wavelength is 2π · base.
        layout: "interleaved" as above; "halves" puts all sines before all cosines (Marian).
        dtype: of the result; computed in float64, so long positions stay exact.
        device: of the result.

    Raises:
        ArgumentError: a size is below 0, or n_embed below 1.
    """
    if tokens < 0 or n_embed < 1:
        raise ArgumentError(
            f"tokens is {tokens} and n_embed is {n_embed}; wanted at least 0 and at least 1"
        )
    position = torch.arange(first, first + tokens, device=device)
    return waves(position, n_embed, base=base, layout=layout, dtype=dtype)


def waves(
    positions: Int[Tensor, "*batch"],
    n_embed: int,
    *,
    base: float = 10_000.0,
    layout: Layout = "interleaved",
    dtype: torch.dtype = torch.float32,
) -> Float[Tensor, "*batch n_embed"]:
    """Return PE of any positions, one row each; the arguments are those of `sinusoidal`."""
    even = torch.arange(0, n_embed, 2, dtype=torch.float64, device=positions.device)
    angle = positions[..., None] / base ** (even / n_embed)
    if layout == "halves":
        return torch.cat((angle.sin(), angle.cos()[..., : n_embed // 2]), dim=-1).to(dtype)
    return torch.stack((angle.sin(), angle.cos()), -1).flatten(-2)[..., :n_embed].to(dtype)
