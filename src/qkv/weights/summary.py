"""What there is to say of an attention's heads, all of it from one pass over the weights."""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from qkv.errors import ArgumentError, ShapeError
from qkv.weights.blocks import Block, Softmax
from qkv.weights.places import Places
from qkv.weights.regions import Regions
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
    """The measures of one head; see `Summary`."""

    entropy: float
    distance: float
    first: float
    previous: float
    itself: float
    separators: float | None = None
    same: float | None = None
    induction: float | None = None


@dataclass(frozen=True)
class HeadSummary:
    """One head in a line: what a table shows and a drawing draws.

    Attributes:
        path: the module it belongs to.
        layer: number of its layer, where it is known.
        head: number of the head in its module.
        kind: "induction", "same word", "previous token", "itself", "first token", "separator",
            "broad" or "focused".
        measure: how much of that it is: the share of its weight, or for "broad" the entropy as
            a share of that of a uniform row, and 1 minus that for "focused".
    """

    path: str
    layer: int | None
    head: int
    kind: str
    measure: float
    entropy: float
    distance: float
    first: float
    previous: float
    itself: float
    separators: float | None = None
    same: float | None = None
    induction: float | None = None

    @classmethod
    def of(
        cls, path: str, layer: int | None, head: int, keys: int, measures: Measures
    ) -> "HeadSummary":
        """Name the kind of a head that looks at so many keys."""
        return cls(path, layer, head, *kind_of(measures, keys), **measures._asdict())


def kind_of(measures: Measures, keys: int) -> tuple[str, float]:
    """Return a head's kind, and how much of that it is."""
    for measure, name in NAMES.items():
        share = getattr(measures, measure)
        if share is not None and share > MOST:
            return name, share
    spread = measures.entropy / math.log(keys) if keys > 1 else 0.0
    return ("broad", spread) if spread >= BROAD else ("focused", 1 - spread)


@dataclass(frozen=True, eq=False)
class Summary:
    """Measures of each head of one call, and the small part of its weights that is worth keeping.

    Means are over the queries that are real (`valid`) and may look at something. Positions: the
    last query stands at the last key. Several batch axes are flattened into one.

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
            the queries that have one      Olsson et al. 2022
        entropies: the entropy of each query.
        received: Σ_i p_ij of each key, over the real queries.
        weights: the strongest weights of each query, strongest first.
        keys: the keys that they go to.
        map: as `Weights.map` has it.
    """

    entropy: Float[Tensor, "batch heads"]
    distance: Float[Tensor, "batch heads"]
    first: Float[Tensor, "batch heads"]
    previous: Float[Tensor, "batch heads"]
    itself: Float[Tensor, "batch heads"]
    separators: Float[Tensor, "batch heads"] | None
    same: Float[Tensor, "batch heads"] | None
    induction: Float[Tensor, "batch heads"] | None
    entropies: Float[Tensor, "batch heads queries"]
    received: Float[Tensor, "batch heads keys"]
    weights: Float[Tensor, "batch heads queries k"]
    keys: Int[Tensor, "batch heads queries k"]
    map: Float[Tensor, "batch heads height width"]

    def heads(
        self, path: str = "", *, layer: int | None = None, batch: int | None = None
    ) -> list[HeadSummary]:
        """Return a record for each head: of one example, or of the mean of all of them."""
        measured = {name: getattr(self, name) for name in Measures._fields}
        columns = {
            name: (values.mean(0) if batch is None else values[batch]).tolist()
            for name, values in measured.items()
            if values is not None
        }
        keys, records = self.received.shape[-1], []
        for head in range(self.entropy.shape[1]):
            measures = Measures(**{name: column[head] for name, column in columns.items()})
            records.append(HeadSummary.of(path, layer, head, keys, measures))
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
) -> Summary:
    """Ask everything of each block of the weights, once.

    Raises:
        ShapeError: valid, separators or words are not (batch, queries) or (batch, keys).
        ArgumentError: top or a size of the map is below 1.
    """
    batch, heads, queries, keys = softmax.logits.shape
    _check("valid", valid, (batch, queries))
    _check("separators", separators, (batch, keys))
    _check("words", words, (batch, keys))
    if top < 1:
        raise ArgumentError(f"top is {top}; wanted 1 or more")
    places = Places(keys - queries, keys, separators, words)
    regions = Regions.of(softmax, *map)
    small = regions.empty(softmax)
    received = small.new_zeros(batch, heads, keys)
    names: list[str] = []

    def question(b: Block) -> tuple[Tensor, ...]:
        groups, sums = regions.down(b)
        regions.add(small, b, groups, sums)
        here = slice(b.columns.start, b.columns.stop)
        received[b.examples, b.heads, here] += _real(b, valid) if valid is not None else sums.sum(2)
        found = {"entropy": b.entropy, "counted": b.reaches.to(small), **places.measure(b)}
        names[:] = found
        return (*strongest_keys(b, min(top, keys), keys), *found.values())

    best, at, *answers = softmax.by_rows(question, keep_logits=True)
    by_query = dict(zip(names, answers, strict=True))
    small /= regions.sizes[:, None]
    means = _means(by_query, valid, keys - queries)
    entropies = by_query["entropy"]
    return Summary(
        **means, entropies=entropies, received=received, weights=best, keys=at, map=small
    )


def _real(b: Block, valid: Bool[Tensor, "batch queries"]) -> Float[Tensor, "examples heads keys"]:
    """Σ_i p_ij over the real queries of a block."""
    real = valid[b.examples, None, None, b.rows.start : b.rows.stop].to(b.weights)
    return (real @ b.weights)[..., 0, :]


def _means(
    by_query: dict[str, Tensor], valid: Bool[Tensor, "batch queries"] | None, offset: int
) -> dict[str, Any]:
    """Average over the queries to which a measure applies."""
    counted = by_query["counted"]
    if valid is not None:
        counted = counted * valid[:, None].to(counted)
    at = torch.arange(counted.shape[-1], device=counted.device) + offset
    applies = {
        "previous": (at > 0).to(counted),
        "same": by_query.get("repeats"),
        "induction": by_query.get("follows"),
    }
    means = {}
    for name in Measures._fields:
        narrower = applies.get(name)
        weight = counted if narrower is None else counted * narrower
        values = by_query.get(name)
        total = weight.sum(-1).clamp(min=1.0)
        means[name] = None if values is None else (values * weight).sum(-1) / total
    return means


def _check(argument: str, tensor: Tensor | None, wanted: tuple[int, int]) -> None:
    if tensor is not None and tuple(tensor.shape) != wanted:
        raise ShapeError(f"{argument} is {tuple(tensor.shape)}; wanted {wanted}")
