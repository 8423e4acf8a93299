"""`Contributions`: how much of each output comes from each key, by weight and size of its value."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from qkv.weights.matrix import DENSE, Top, Weights


@dataclass(frozen=True, eq=False, repr=False)
class Contributions:
    """p_ij ‖v_j W_O‖ of one head      Kobayashi et al. 2020, "Attention is not only a weight", § 3

    A large weight on a small value gives little. Nothing of the size queries × keys is formed
    but by `dense`.

    Attributes:
        weights: of the head, (batch, 1, queries, keys).
        sizes: ‖v_j W_O‖, of the head's values after its part of the output projection.
        projected: whether that projection is known; without it the sizes are ‖v_j‖.
        tilted: returns softmax(logits + ln sizes), whose rows are in proportion to these.
    """

    weights: Weights
    sizes: Float[Tensor, "batch 1 keys"]
    projected: bool
    tilted: Callable[[], Weights]

    def __repr__(self) -> str:
        batch, _, queries, keys = self.shape
        what = "‖v_j W_O‖" if self.projected else "‖v_j‖, as no output projection was seen"
        return (
            f"Contributions({queries} × {keys}, batch {batch}: weight × {what}; ask for rows, "
            f"tile, received, top or dense)"
        )

    @property
    def shape(self) -> torch.Size:
        """(batch, 1, queries, keys)."""
        return self.weights.shape

    def rows(self, i: int | range | slice) -> Tensor:
        """Return rows of the matrix; an int leaves the axis out."""
        rows = self.weights.rows(i)
        return rows * (self.sizes if isinstance(i, int) else self.sizes[..., None, :])

    def tile(
        self, rows: range | slice, columns: range | slice
    ) -> Float[Tensor, "batch 1 rows columns"]:
        """Return a part of the matrix."""
        across = slice(columns.start, columns.stop) if isinstance(columns, range) else columns
        return self.weights.tile(rows, columns) * self.sizes[..., None, across]

    def received(self) -> Float[Tensor, "batch 1 keys"]:
        """Σ_i p_ij ‖v_j W_O‖: what each key gives to all queries."""
        return self.weights.received() * self.sizes

    def top(self, k: int) -> Top:
        """Return the k largest contributions to every query, and their keys."""
        tilted = self.tilted()
        found = tilted.top(k)
        # In a row of the tilted weights everything is divided by the same: by Σ_j p_ij ‖v_j W_O‖.
        whole = self.weights @ self.sizes[..., None]
        part = tilted @ torch.ones_like(self.sizes[..., None])
        return Top(found.weights * torch.where(part > 0, whole / part, 0.0), found.keys)

    def dense(self, limit: int = DENSE) -> Float[Tensor, "batch 1 queries keys"]:
        """Return the whole matrix.

        Raises:
            ArgumentError: it has more than `limit` numbers.
        """
        return self.weights.dense(limit) * self.sizes[..., None, :]


def sizes_of(
    v: Float[Tensor, "batch 1 keys d_v"], projection: Float[Tensor, "d_v n_out"] | None
) -> Float[Tensor, "batch 1 keys"]:
    """Return ‖v_j W‖, by the triangle of Wᵀ = Q R: ‖v W‖ = ‖v Rᵀ‖ has d_v numbers a key."""
    v = v.to(torch.promote_types(v.dtype, torch.float32))
    if projection is not None:
        v = v @ torch.linalg.qr(projection.detach().to(v).mT, mode="r").R.mT
    sizes: Tensor = torch.linalg.vector_norm(v, dim=-1)
    return sizes
