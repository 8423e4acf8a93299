"""What there is to say of an attention's heads, all of it from one pass over the weights."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from qkv.errors import ArgumentError, ShapeError
from qkv.weights.blocks import Block, Softmax, asked_for
from qkv.weights.places import Places
from qkv.weights.regions import Cut, Regions
from qkv.weights.strongest import strongest_keys

MOST = 0.5
"""A head is named after what it gives more than half of its weight to: no two disjoint kinds of
key can both have that."""

NAMES = {
    "induction": "induction",
    "same": "same word",
    "previous": "previous token",
    "itself": "itself",
    "first": "first token",
    "separators": "separator",
}
"""Kinds by measure, the narrower first where two can hold: the first token may be a separator."""

BROAD = 0.5
"""Entropy, as a share of that of a uniform row, from which on a head without a name is broad."""


class Measures(NamedTuple):
    """The measures of one head; see `Summary`. Those of positions are None between two texts."""

    entropy: float
    distance: float | None
    first: float
    previous: float | None
    itself: float | None
    separators: float | None = None
    same: float | None = None
    induction: float | None = None


MEASURES = (*Measures._fields, "spread")
"""What is averaged over queries, in the order in which `Summary.counts` has it."""


@dataclass(frozen=True)
class HeadSummary:
    """One head in a line: what a table shows and a drawing draws.

    Attributes:
        path: the module it belongs to.
        layer: number of its layer, where it is known.
        head: number of the head in its module.
        kind: "induction", "same word", "previous token", "itself", "first token", "separator",
            "broad" or "focused".
        measure: how much of that it is: the share of its weight, or for "broad" the spread, and
            1 minus that for "focused".
    """

    path: str
    layer: int | None
    head: int
    kind: str
    measure: float
    entropy: float
    distance: float | None
    first: float
    previous: float | None
    itself: float | None
    separators: float | None = None
    same: float | None = None
    induction: float | None = None

    @classmethod
    def of(
        cls, path: str, layer: int | None, head: int, spread: float, measures: Measures
    ) -> "HeadSummary":
        """Name the kind of a head; see `Summary.spread`."""
        return cls(path, layer, head, *kind_of(measures, spread), **measures._asdict())


def kind_of(measures: Measures, spread: float) -> tuple[str, float]:
    """Return a head's kind, and how much of that it is."""
    for measure, name in NAMES.items():
        share = getattr(measures, measure)
        if share is not None and share > MOST:
            return name, share
    return ("broad", spread) if spread >= BROAD else ("focused", 1 - spread)


@dataclass(frozen=True, eq=False)
class Summary:
    """Measures of each head of one call, and the small part of its weights that is worth keeping.

    Means are over the queries that are real (`valid`) and may look at something. Several batch
    axes are flattened into one.

    Attributes:
        entropy: −Σ_j p_ij ln p_ij, in nats.
        distance: Σ_j p_ij |i − j|.
        first: weight on key 0.
        previous: weight on the key before the query's own, over the queries that have one.
        itself: weight on the query's own key.
        separators: weight on separators; None where it was not said which keys are.
        same: weight on the same word earlier, over the queries whose word stands earlier within
            reach; 0 where there are none, None without words.
        induction: weight on keys that follow an earlier occurrence of the query's word, over
            the queries that have one within reach      Olsson et al. 2022
        spread: entropy as a share of that of a uniform row, over queries that see two keys.
        counts: over how many queries each of MEASURES is a mean.
        entropies: the entropy of each query.
        received: Σ_i p_ij of each key, over the real queries.
        weights: the strongest weights of each query, strongest first.
        keys: the keys that they go to.
        map: as `Weights.map` has it.
    """

    entropy: Float[Tensor, "batch heads"]
    distance: Float[Tensor, "batch heads"] | None
    first: Float[Tensor, "batch heads"]
    previous: Float[Tensor, "batch heads"] | None
    itself: Float[Tensor, "batch heads"] | None
    separators: Float[Tensor, "batch heads"] | None
    same: Float[Tensor, "batch heads"] | None
    induction: Float[Tensor, "batch heads"] | None
    spread: Float[Tensor, "batch heads"]
    counts: Float[Tensor, "measures batch heads"]
    entropies: Float[Tensor, "batch heads queries"]
    received: Float[Tensor, "batch heads keys"]
    weights: Float[Tensor, "batch heads queries k"]
    keys: Int[Tensor, "batch heads queries k"]
    map: Float[Tensor, "batch heads height width"]

    def heads(
        self, path: str = "", *, layer: int | None = None, batch: int | None = None
    ) -> list[HeadSummary]:
        """Return a record for each head: of one example, or over the queries of all of them.

        Raises:
            ArgumentError: there is no such example.
        """
        examples = len(self.entropy)
        if batch is not None and not -examples <= batch < examples:
            raise ArgumentError(f"batch is {batch}; wanted one of the {examples} examples, from 0")
        which = slice(None) if batch is None else slice(batch, batch + 1 or None)
        columns = {}
        for name, count in zip(MEASURES, self.counts, strict=True):
            values = getattr(self, name)
            if values is not None:
                total = (values * count)[which].sum(0)
                columns[name] = (total / count[which].sum(0).clamp(min=1.0)).tolist()
        spread = columns.pop("spread")
        records = []
        for head in range(self.entropy.shape[1]):
            one: dict[str, Any] = dict.fromkeys(Measures._fields)
            one |= {name: column[head] for name, column in columns.items()}
            measures = Measures(**one)
            records.append(HeadSummary.of(path, layer, head, spread[head], measures))
        return records


@torch.no_grad()
def summarise(
    softmax: Softmax,
    *,
    top: int = 8,
    map: tuple[int, int] = (64, 64),
    valid: Bool[Tensor, "batch queries"] | None = None,
    separators: Bool[Tensor, "batch keys"] | None = None,
    words: Int[Tensor, "batch keys"] | None = None,
    offset: int | None = None,
) -> Summary:
    """Ask everything of each block of the weights, once.

    Raises:
        ShapeError: valid, separators or words are not (batch, queries) or (batch, keys).
        ArgumentError: top or a size of the map is below 1; valid or separators are no booleans.
    """
    batch, _, queries, keys = softmax.logits.shape
    _check("valid", valid, (batch, queries), torch.bool)
    _check("separators", separators, (batch, keys), torch.bool)
    _check("words", words, (batch, keys))
    if top < 1:
        raise ArgumentError(f"top is {top}; wanted 1 or more")
    places = Places(keys - queries if offset is None else offset, keys, words)
    asking = Asking(places, Regions.of(softmax, *map), softmax, min(top, keys), valid)
    best, at, *answers = softmax.by_rows(asking.question, keep="entropy")
    by_query = dict(zip(asking.names, answers, strict=True))
    totals = {"distance": asking.distance, "first": asking.received[..., :1].sum(-1)}
    if separators is not None:
        totals["separators"] = (asking.received * separators[:, None]).sum(-1)
    return Summary(
        **_means(by_query, totals, valid, places.offset),
        entropies=by_query["entropy"],
        received=asking.received,
        weights=best,
        keys=at,
        map=asking.map / asking.regions.sizes[:, None],
    )


class Asking:
    """Asks everything of one block after the other.

    Attributes:
        names: of the answers that there are for each query.
        received, distance, map: sums over the queries so far.
    """

    def __init__(
        self,
        places: Places,
        regions: Regions,
        softmax: Softmax,
        top: int,
        valid: Bool[Tensor, "batch queries"] | None,
    ) -> None:
        """Start with sums of 0."""
        self.places, self.regions, self.top, self.valid = places, regions, top, valid
        batch, heads, _, self.keys = softmax.logits.shape
        self.map = regions.empty(softmax)
        self.received = self.map.new_zeros(batch, heads, self.keys)
        self.distance = self.map.new_zeros(batch, heads)
        self.names: list[str] = []
        self._cut: tuple[range, Cut] | None = None

    def question(self, b: Block) -> tuple[Tensor, ...]:
        """Add to the sums, and return what there is to say of each query."""
        cut = self._cut_of(b)
        sums, chosen = cut.sums(b.weights), None
        self.regions.add(self.map, b, cut, sums)
        if self.valid is not None:
            chosen = self.valid[b.examples, b.rows.start : b.rows.stop]
            sums = cut.sums(b.weights, chosen=chosen)
        self.received[b.examples, b.heads, b.columns.start : b.columns.stop] += sums.sum(2)
        self.distance[b.examples, b.heads] += self.places.distance(b, cut, sums, chosen)
        found = {"entropy": asked_for(b.entropy), "visible": b.visible.to(b.weights)}
        found |= self.places.measure(b)
        self.names = list(found)
        return (*strongest_keys(b, self.top, self.keys), *found.values())

    def _cut_of(self, b: Block) -> Cut:
        if self._cut is None or self._cut[0] != b.rows:  # heads share it
            self._cut = (b.rows, self.regions.cut(b.rows))
        return self._cut[1]


def _means(
    by_query: dict[str, Tensor],
    totals: dict[str, Tensor],
    valid: Bool[Tensor, "batch queries"] | None,
    offset: int,
) -> dict[str, Any]:
    """Average over the queries to which a measure applies, and count them."""
    visible = by_query["visible"]
    counted = visible > 0
    if valid is not None:
        counted = counted & valid[:, None]
    at = torch.arange(visible.shape[-1], device=visible.device) + offset
    uniform = visible.clamp(min=2.0).log()
    by_query["spread"] = by_query["entropy"] / uniform
    applies: dict[str, Tensor] = {"previous": at > 0, "spread": visible > 1}
    if "repeats" in by_query:
        applies["same"] = by_query["repeats"] > 0
        applies["induction"] = by_query["follows"] > 0
    means: dict[str, Any] = {}
    counts = []
    for name in MEASURES:
        taken = counted & applies[name] if name in applies else counted
        count = taken.sum(-1).to(visible)
        values = by_query.get(name)
        total = totals.get(name) if values is None else values.masked_fill(~taken, 0.0).sum(-1)
        means[name] = None if total is None else total / count.clamp(min=1.0)
        counts.append(count)
    return {**means, "counts": torch.stack(counts)}


def _check(
    argument: str, tensor: Tensor | None, wanted: tuple[int, int], dtype: torch.dtype | None = None
) -> None:
    if tensor is None:
        return
    if tuple(tensor.shape) != wanted:
        raise ShapeError(f"{argument} is {tuple(tensor.shape)}; wanted {wanted}")
    if dtype is not None and tensor.dtype != dtype:
        raise ArgumentError(f"{argument} is {tensor.dtype}; wanted {dtype}")
