"""How much of a query's weight goes where: to its neighbours, to far keys, to the same word."""

from dataclasses import dataclass, field

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from qkv.weights.blocks import Block
from qkv.weights.regions import Cut, along, crop

SPARSE = 8
"""Pairs are picked one by one where at most one in so many is wanted."""


@dataclass(eq=False)
class Places:
    """Measures of the queries of a block, by where the keys stand and what words they are.

    Attributes:
        offset: position of the first query along the keys.
    """

    offset: int
    keys: int
    words: Int[Tensor, "batch keys"] | None
    _pairs: dict[tuple[int, int], tuple["Pairs", "Pairs"]] = field(default_factory=dict)
    _apart: dict[range, "Apart"] = field(default_factory=dict)

    def measure(self, b: Block) -> dict[str, Float[Tensor, "examples heads rows"]]:
        """Return what each query of a block gives to whom."""
        positions = self._positions(b)
        found = {
            "previous": along(b, range(positions.start - 1, positions.stop - 1)),
            "itself": along(b, positions),
        }
        if self.words is not None:
            same, after = self._same_words(b, positions)
            found |= {"same": same.weight(b.weights), "induction": after.weight(b.weights)}
            found |= {"repeats": same.having(b), "follows": after.having(b)}
        return found

    def distance(
        self,
        b: Block,
        cut: Cut,
        sums: Float[Tensor, "examples heads pieces columns"],
        chosen: Bool[Tensor, "examples rows"] | None,
    ) -> Float[Tensor, "examples heads"]:
        """Σ_ij p_ij |i − j| over the chosen queries of a block.

        Args:
            b: the block.
            cut: its pieces.
            sums: of the chosen rows of each piece.
            chosen: all where there is none.
        """
        if b.rows not in self._apart:
            self._apart = {b.rows: Apart.of(b, cut, self._positions(b).start)}
        return self._apart[b.rows].distance(b, cut, sums, chosen)

    def _positions(self, b: Block) -> range:
        return range(b.rows.start + self.offset, b.rows.stop + self.offset)

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
class Apart:
    """|i − j| for the pieces of a block, made of sums over the rows of each.

    |i − j| = |i − s| + |s − j| for keys on the other side of s, the position at which a piece
    starts, and for keys behind it |i − j| = |s − j| − |i − s|: there the sum over a piece is
    made of Σ_i p_ij and Σ_i p_ij (i − s). Only keys among a piece's own positions are taken pair
    by pair.

    Attributes:
        within: i − s of each row.
        sides: 1 before a piece, −1 behind it, 0 within it.
        far: |s − j|, 0 within a piece.
        pairs: rows and columns within the pieces, and |i − j| there.
    """

    within: Float[Tensor, "rows"]
    sides: Float[Tensor, "pieces columns"]
    far: Float[Tensor, "pieces columns"]
    pairs: tuple[Int[Tensor, "pairs"], Int[Tensor, "pairs"], Float[Tensor, "pairs"]]

    @classmethod
    def of(cls, b: Block, cut: Cut, first: int) -> "Apart":
        """Measure a block whose first row has this position."""
        device = b.weights.device
        j = torch.arange(b.columns.start, b.columns.stop, device=device)
        sizes = cut.sizes.to(device)
        start = (cut.starts.to(device) + first)[:, None]
        last = start + sizes[:, None] - 1
        sides = (j <= start).to(b.weights) - (j >= last).to(b.weights) * (j > start)
        rows = torch.arange(len(b.rows), device=device)
        piece = torch.repeat_interleave(torch.arange(len(sizes), device=device), sizes)
        i = rows + first
        tallest = int(sizes.max()) if len(sizes) else 0
        key = start[piece] + torch.arange(tallest, device=device)  # of the row's own piece
        inside = (key > start[piece]) & (key < last[piece])
        inside &= (key >= b.columns.start) & (key < b.columns.stop)
        r, at = inside.nonzero().unbind(1)
        columns = key[r, at]
        apart = (i[r] - columns).abs().to(b.weights)
        far = (start - j).abs() * sides.abs()
        within = (i - start[piece, 0]).to(b.weights)
        return cls(within, sides, far, (r, columns - b.columns.start, apart))

    def distance(
        self, b: Block, cut: Cut, sums: Tensor, chosen: Bool[Tensor, "examples rows"] | None
    ) -> Float[Tensor, "examples heads"]:
        """Σ_ij p_ij |i − j|; see `Places.distance`."""
        steps = cut.sums(b.weights, self.within, chosen)
        total = steps.flatten(2) @ self.sides.flatten() + sums.flatten(2) @ self.far.flatten()
        rows, columns, apart = self.pairs
        near = b.weights.flatten(2).gather(
            -1, (rows * len(b.columns) + columns).expand(*b.weights.shape[:2], -1)
        )
        if chosen is not None:
            near = near.masked_fill(~chosen[:, None, rows], 0.0)
        return total + near @ apart


@dataclass(frozen=True, eq=False)
class Pairs:
    """Some pairs of query and key, as a table or, where they are few, one by one."""

    table: Bool[Tensor, "examples rows columns"]
    chosen: tuple[Tensor, Tensor] | None

    @classmethod
    def of(cls, table: Bool[Tensor, "examples rows columns"]) -> "Pairs":
        """Choose the cheaper form."""
        if len(table) > 1 or SPARSE * int(table.sum()) > table.numel():
            return cls(table, None)
        rows, columns = table[0].nonzero().unbind(1)
        return cls(table, (rows, rows * table.shape[-1] + columns))

    def weight(self, weights: Float[Tensor, "examples heads rows columns"]) -> Tensor:
        """Add up the weights of these pairs, query by query."""
        if self.chosen is None:
            return (weights * self.table[:, None]).sum(-1)
        rows, places = self.chosen
        picked = weights.flatten(2)[..., places]
        return weights.new_zeros(weights.shape[:-1]).index_add_(-1, rows, picked)

    def having(self, b: Block) -> Float[Tensor, "examples heads rows"]:
        """1 for the queries that have such a key where they may look."""
        table = self.table[:, None]
        if b.open is None:
            present = table.any(-1)
        else:
            outside = table.clone()
            outside[..., b.part] = False
            present = outside.any(-1) | (table[..., b.part] & b.open).any(-1)
        return present.to(b.weights).expand(b.weights.shape[:-1])
