"""Words and places: where the numbers of a transformer come from."""

import math

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from qkv.core.positions import Layout, waves
from qkv.core.product import linear
from qkv.errors import ArgumentError, ShapeError
from qkv.nn.attending import positive


class WordEmbedding(nn.Module):
    """One row of numbers for each token of the vocabulary.

    Args:
        vocabulary: number of tokens.
        n_embed: values a token.
        scaled: whether rows are multiplied by √n_embed (Vaswani et al. 2017, section 3.4).
        device, dtype: of the table.
    """

    def __init__(
        self,
        vocabulary: int,
        n_embed: int,
        *,
        scaled: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        """Draw the table: N(0, 1), or N(0, 1 / n_embed) where rows are scaled."""
        super().__init__()
        sizes = positive("vocabulary", vocabulary), positive("n_embed", n_embed)
        self.scale = math.sqrt(n_embed) if scaled else 1.0
        self.weight = nn.Parameter(torch.empty(sizes, device=device, dtype=dtype))
        nn.init.normal_(self.weight, std=1 / self.scale)

    def forward(self, ids: Int[Tensor, "*batch tokens"]) -> Float[Tensor, "*batch tokens n_embed"]:
        """Return the row of each token."""
        rows = F.embedding(ids, self.weight)
        return rows if self.scale == 1.0 else rows * self.scale

    def logits(self, x: Float[Tensor, "*batch n_embed"]) -> Float[Tensor, "*batch vocabulary"]:
        """X Wᵀ: how well each token of the vocabulary fits what stands in a row.

        The same table reads and writes (Press and Wolf 2017).
        """
        return linear(x, self.weight)

    def extra_repr(self) -> str:
        """Return the sizes."""
        return " × ".join(map(str, self.weight.shape))


class PositionalEncoding(nn.Module):
    """x + PE[p]: word order, which attention itself does not see.

    Args:
        n_embed: values a token.
        most: positions that there are; None (sinusoidal only) for as many as are asked for.
        learned: whether PE is a trained table rather than sines (Vaswani et al. 2017,
            section 3.5: both work alike).
        layout: how sines and cosines lie, as for `core.positions.sinusoidal`.
        offset: rows of a learned table before the one of position 0.
        device, dtype: of a learned table.

    Raises:
        ArgumentError: a learned table without its size; `forward` raises it for a position that
            there is not, and ShapeError for another width.
    """

    weight: nn.Parameter | None

    def __init__(
        self,
        n_embed: int,
        most: int | None = None,
        *,
        learned: bool = False,
        layout: Layout = "interleaved",
        offset: int = 0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        """Draw the table where it is learned."""
        super().__init__()
        self.n_embed, self.layout, self.offset = positive("n_embed", n_embed), layout, offset
        self.most = most if most is None else positive("most", most)
        if learned and most is None:
            raise ArgumentError("a learned table has a size: say most=, the number of positions")
        self.register_parameter("weight", None)
        if learned and most is not None:
            table = torch.empty(offset + most, n_embed, device=device, dtype=dtype)
            self.weight = nn.Parameter(nn.init.normal_(table, std=0.02))

    def forward(
        self,
        x: Float[Tensor, "*batch tokens n_embed"],
        positions: Int[Tensor, "*#batch tokens"] | None = None,
    ) -> Float[Tensor, "*batch tokens n_embed"]:
        """Return x + PE[positions]; by default they are 0, 1, 2, …"""
        if positions is None:
            positions = torch.arange(x.shape[-2], device=x.device)
        if x.shape[-1] != self.n_embed:
            raise ShapeError(f"x is {tuple(x.shape)}; wanted (…, tokens, n_embed={self.n_embed})")
        self._check(positions)
        if self.weight is not None:
            return x + F.embedding(positions + self.offset, self.weight)
        # Rounded to float32, whatever x is: so the models were trained that have such a table.
        return x + waves(positions, self.n_embed, layout=self.layout).to(x.dtype)

    def _check(self, positions: Tensor) -> None:
        unseen = torch.compiler.is_compiling() or positions.is_meta
        if self.most is None or unseen or not positions.numel():
            return
        low, high = int(positions.min()), int(positions.max())
        if low < 0 or high >= self.most:
            raise ArgumentError(
                f"positions reach from {low} to {high}; there are 0 to {self.most - 1}: "
                f"the text is too long for this model"
            )

    def extra_repr(self) -> str:
        """Return the sizes."""
        kind = "sinusoidal" if self.weight is None else "learned"
        return f"{kind}, n_embed={self.n_embed}, most={self.most}"
