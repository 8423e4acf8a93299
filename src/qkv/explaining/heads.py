"""Which heads link the words of a text, and what each word looks at."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from qkv.core.recompute import Array
from qkv.errors import ArgumentError
from qkv.explaining.attended import CROSS
from qkv.explaining.inputs import Rows

SHOWN = 12
"""Heads that the table shows."""

LOOKS = 3
"""Words that the table shows for each word."""


@dataclass(frozen=True)
class Link:
    """How much one word takes from another in one head; layer and head counted from 1."""

    source: str
    target: str
    weight: float
    layer: int
    head: int


@dataclass(frozen=True)
class HeadLook:
    """One head on one sentence.

    Attributes:
        layer, head: counted from 1.
        linking: how much a word takes from the one other word that it looks at most, on
            average. Neighbours do not count: looking next door shows order, not meaning. Nor
            does the first token of a decoder, where heads look that have nothing to say (Xiao
            et al. 2023). Across the bridge every word of the source counts.
        reach: how many tokens a word looks at: 2 to the power of its entropy, on average.
        links: its strongest links between words that are no neighbours.
    """

    layer: int
    head: int
    linking: float
    reach: float
    links: tuple[Link, ...]


@dataclass(frozen=True)
class HeadTable:
    """The heads of a model on one sentence.

    Attributes:
        title: what was looked at.
        kind: of attention: "encoder", "decoder" or "cross".
        chosen: whether the model has several kinds, so that one has to be named.
        ranked: heads, those that link words most first.
        looks: for each word those it looks at most, by the mean weight of all these heads.
    """

    title: str
    kind: str
    chosen: bool
    ranked: tuple[HeadLook, ...]
    looks: tuple[tuple[str, tuple[tuple[str, float], ...]], ...]

    @property
    def first(self) -> HeadLook:
        """The head that links words most."""
        return self.ranked[0]

    def plain(self) -> dict[str, Any]:
        """Return it as dicts and lists."""
        return asdict(self)


@dataclass(frozen=True)
class Ranking:
    """Ranks heads of one kind.

    Attributes:
        kind: of attention.
        queries, keys: the rows that look, and those that are looked at.
    """

    kind: str
    queries: Rows
    keys: Rows

    def table(
        self, layers: Iterable[tuple[int, Array]], where: str, *, chosen: bool = False
    ) -> HeadTable:
        """Rank the heads of layers, each its number and its weights, by how they link words.

        Raises:
            ArgumentError: nothing was written that could look at anything.
        """
        if not self.queries.own:
            raise ArgumentError(
                "the model wrote nothing, so nothing looks at anything: say what it wrote "
                "(output=, in the command --output)"
            )
        looks: list[HeadLook] = []
        total: Array = np.zeros((len(self.queries.names), len(self.keys.names)))
        for at, weights in layers:
            looks += [self._look(matrix, at, head) for head, matrix in enumerate(weights, start=1)]
            total += weights.sum(axis=0)
        ranked = sorted(looks, key=lambda look: -look.linking)[:SHOWN]
        sizes = f"{len(self.queries.names)} tokens"
        if self.kind == CROSS:
            sizes += f" that look at {len(self.keys.names)}"
        title = f"{sizes}, {where}: {len(looks)} heads"
        return HeadTable(title, self.kind, chosen, tuple(ranked), self._looks(total / len(looks)))

    def _links(self, matrix: Array, apart: int) -> Array:
        """Weights between the input's own rows, 0 where a link does not count."""
        between: Array = matrix[np.ix_(self.queries.own, self.keys.own)]
        if self.kind == CROSS:
            return between
        distance = np.abs(np.subtract.outer(self.queries.own, self.keys.own))
        counts = distance >= apart
        if self.kind == "decoder":
            counts &= np.asarray(self.keys.own) > 0
        return np.where(counts, between, 0.0)

    def _look(self, matrix: Array, layer: int, head: int) -> HeadLook:
        between = self._links(matrix, apart=2 if len(self.keys.own) > 3 else 1)
        entropy = -(matrix * np.log2(np.where(matrix > 0, matrix, 1.0))).sum(axis=1)
        targets = between.argmax(axis=1)
        best = between[range(len(between)), targets]
        links = tuple(
            Link(*self._names(int(i), int(targets[i])), float(best[i]), layer, head)
            for i in np.argsort(-best)[:3]
            if best[i] > 0
        )
        return HeadLook(layer, head, float(best.mean()), float(2 ** entropy.mean()), links)

    def _looks(self, mean: Array) -> tuple[tuple[str, tuple[tuple[str, float], ...]], ...]:
        """For every word the others that it looks at most, by the mean of all heads."""
        mean = self._links(mean, apart=1)
        return tuple(
            (
                self.queries.names[place],
                tuple(
                    (self.keys.names[self.keys.own[j]], float(row[j]))
                    for j in np.argsort(-row)[:LOOKS]
                    if row[j]
                ),
            )
            for place, row in zip(self.queries.own, mean, strict=True)
        )

    def _names(self, source: int, target: int) -> tuple[str, str]:
        return (
            self.queries.names[self.queries.own[source]],
            self.keys.names[self.keys.own[target]],
        )
