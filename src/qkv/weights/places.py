"""How much of a query's weight goes where: to its neighbours, to far keys, to the same word."""

from dataclasses import dataclass, field

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from qkv.weights.blocks import Block
from qkv.weights.regions import crop

SPARSE = 8
"""Pairs are picked one by one where at most one in so many is wanted."""


@dataclass(eq=False)
class Places:
    """Measures of each query of a block, by where the keys stand and what words they are.

    Positions count along the keys; the last query stands at the last key.

    Attributes:
        offset: keys − queries, which is the position of the first query.
    """

    offset: int
    keys: int
    separators: Bool[Tensor, "batch keys"] | None
    words: Int[Tensor, "batch keys"] | None
    _pairs: dict[tuple[int, int], tuple["Pairs", "Pairs"]] = field(default_factory=dict)

    def measure(self, b: Block) -> dict[str, Float[Tensor, "examples heads rows"]]:
        """Return what each query of a block gives to whom."""
        first = range(b.rows.start + self.offset, b.rows.stop + self.offset)
        distance, to_separators = self._distance(b, first)
        found = {
            "distance": distance,
            "first": crop(b.weights, b.columns, range(1))[..., 0],
            "previous": _along(b, range(first.start - 1, first.stop - 1)),
            "itself": _along(b, first),
        }
        if to_separators is not None:
            found["separators"] = to_separators
        if self.words is not None:
            same, after = self._same_words(b, first)
            found |= {"same": same.weight(b.weights), "induction": after.weight(b.weights)}
            found |= {"repeats": same.having(b.weights), "follows": after.having(b.weights)}
        return found

    def _distance(self, b: Block, positions: range) -> tuple[Tensor, Tensor | None]:
        """Σ_j p_ij |i − j|, and the weight on separators.

        |i − j| = |i − s| + |s − j| for keys on the other side of s, the position at which the
        block starts: there the sum is a product of the weights with two vectors. Only the keys
        among the block's own positions are taken pair by pair.
        """
        at = torch.arange(b.columns.start, b.columns.stop, device=b.weights.device)
        start, own = positions.start, (at > positions.start) & (at < positions.stop - 1)
        side = torch.where(at <= start, 1, -1).masked_fill(own, 0)
        rows = [side, (side * (start - at))]
        features = torch.stack(rows).to(b.weights).expand(b.weights.shape[0], 2, -1)
        if self.separators is not None:
            columns = self.separators[b.examples, b.columns.start : b.columns.stop, None].mT
            features = torch.cat([features, columns.to(features)], 1)
        sums = features[:, None] @ b.weights.mT  # (examples, heads, features, rows)
        i = torch.arange(len(positions), device=at.device)
        distance = i * sums[..., 0, :] + sums[..., 1, :]
        near = range(max(start + 1, b.columns.start), min(positions.stop - 1, b.columns.stop))
        if near:
            j = torch.arange(near.start - start, near.stop - start, device=at.device)
            pairs = (i[:, None] - j).abs().to(b.weights)
            distance = distance + (crop(b.weights, b.columns, near) * pairs).sum(-1)
        return distance, sums[..., 2, :] if self.separators is not None else None

    def _same_words(self, b: Block, positions: range) -> tuple["Pairs", "Pairs"]:
        """Return the pairs whose words are equal, the key earlier, and those one key further.

        Heads of one example share them, so they are found once a block of rows.
        """
        key = (b.rows.start, b.examples.start or 0)
        if key not in self._pairs:
            assert self.words is not None
            words = self.words[b.examples]
            own = crop(words, range(self.keys), positions)[..., None]
            at = torch.arange(b.columns.start, b.columns.stop, device=words.device)
            i = torch.arange(positions.start, positions.stop, device=words.device)[:, None]
            same = (own == words[:, None, b.columns.start : b.columns.stop]) & (at < i)
            before = crop(words, range(self.keys), range(b.columns.start - 1, b.columns.stop - 1))
            after = (own == before[:, None]) & (at <= i) & (at > 0)
            self._pairs = {key: (Pairs.of(same), Pairs.of(after))}
        return self._pairs[key]


@dataclass(frozen=True, eq=False)
class Pairs:
    """Some pairs of query and key, as a table or, where they are few, one by one."""

    table: Bool[Tensor, "examples rows columns"]
    present: Bool[Tensor, "examples rows"]
    chosen: tuple[Tensor, Tensor] | None

    @classmethod
    def of(cls, table: Bool[Tensor, "examples rows columns"]) -> "Pairs":
        """Choose the cheaper form."""
        if len(table) > 1 or SPARSE * int(table.sum()) > table.numel():
            return cls(table, table.any(-1), None)
        rows, columns = table[0].nonzero().unbind(1)
        present = table.new_zeros(1, table.shape[1])
        present[0, rows] = True
        return cls(table, present, (rows, rows * table.shape[-1] + columns))

    def weight(self, weights: Float[Tensor, "examples heads rows columns"]) -> Tensor:
        """Add up the weights of these pairs, query by query."""
        if self.chosen is None:
            return (weights * self.table[:, None]).sum(-1)
        rows, places = self.chosen
        picked = weights.flatten(2)[..., places]
        return weights.new_zeros(weights.shape[:-1]).index_add_(-1, rows, picked)

    def having(self, like: Float[Tensor, "examples heads rows columns"]) -> Tensor:
        """1 for the queries that have such a key, for every head."""
        return self.present[:, None].to(like).expand(like.shape[:-1])


def _along(b: Block, wanted: range) -> Float[Tensor, "examples heads rows"]:
    """Weight of row r on wanted[r]."""
    return crop(b.weights, b.columns, wanted).diagonal(0, -2, -1)
