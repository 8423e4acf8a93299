"""What is measured of each head, over one call or over the means of many."""

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from qkv.recording.calls.blocking import Blocking
from qkv.recording.calls.call import Call
from qkv.recording.memory.joining import Key
from qkv.recording.tokens import Tokens
from qkv.weights.summary import MEASURES, HeadSummary, Measures, Summary


def summarise(call: Call, tokens: Tokens | None) -> Summary:
    """Measure every head of a call.

    Args:
        call: padding, where its mask hides keys as such, is left out of the means.
        tokens: of what the model read; without them, or where the keys are not those tokens,
            nothing is measured of words and separators.

    Between two texts (cross-attention) no key is a query's own, nor near it, nor its word: None.
    """
    batch, keys = call.q.shape[0], call.k.shape[-2]
    words = separators = None
    if tokens is not None and tokens.fit(batch, keys):
        if call.kind != "cross":
            words = tokens.words(batch).to(call.q.device)
        separators = tokens.separators(batch).to(call.q.device)
    offset = _own_key(call.blocking)
    valid = None if call.kind == "cross" else _real(call.blocking, offset, batch)
    found = call.weights.summary(valid=valid, separators=separators, words=words, offset=offset)
    if call.kind != "cross":
        return found
    return replace(found, distance=None, previous=None, itself=None)


def _own_key(blocking: Blocking) -> int:
    """Return which key is the own one of query 0.

    A cache may have more places than are filled: then it is no longer the last query that stands
    at the last key. One query alone stands at the last key that it sees.
    """
    if blocking.offset is not None:
        return blocking.offset
    if blocking.queries == 1 and blocking.padding is not None:
        seen = (~blocking.padding).any(0).nonzero()
        return int(seen[-1]) if len(seen) else blocking.keys - 1
    return blocking.keys - blocking.queries


def _real(blocking: Blocking, offset: int, batch: int) -> Bool[Tensor, "batch queries"] | None:
    """Which queries are tokens rather than padding; None where that is all of them."""
    last = offset + blocking.queries
    if blocking.padding is None or offset < 0 or last > blocking.keys:
        return None
    return ~blocking.padding[:, offset:last].expand(batch, -1)


class Mean(NamedTuple):
    """A mean over calls of one measure.

    Attributes:
        total: sum of what it is of each query; one number a head.
        queries: so many went into it.
    """

    total: Float[Tensor, "heads"]
    queries: Float[Tensor, "heads"]


@dataclass(eq=False)
class Measured:
    """Means over the calls of one module.

    Attributes:
        means: by the name of the measure.
        calls: how many there were.
    """

    means: dict[str, Mean]
    calls: int = 0

    @property
    def heads(self) -> int:
        """How many heads were measured."""
        return max((len(mean.total) for mean in self.means.values()), default=0)

    def add(self, summary: Summary) -> None:
        """Take another call into the means, query by query."""
        self.calls += 1
        for name, counts in zip(MEASURES, summary.counts.double(), strict=True):
            measure = getattr(summary, name)
            if measure is not None:
                total, queries = (measure.double() * counts).sum(0), counts.sum(0)
                nothing = torch.zeros_like(total)
                before = self.means.get(name, Mean(nothing, nothing))
                self.means[name] = Mean(before.total + total, before.queries + queries)

    def summaries(self, path: str, layer: int | None) -> list[HeadSummary]:
        """Return a record for each head."""
        means = {
            name: (mean.total / mean.queries.clamp(min=1.0)).tolist()
            for name, mean in self.means.items()
        }
        spread = means.pop("spread")
        records = []
        for head in range(self.heads):
            one: dict[str, Any] = dict.fromkeys(Measures._fields)
            one |= {name: column[head] for name, column in means.items()}
            records.append(HeadSummary.of(path, layer, head, spread[head], Measures(**one)))
        return records


class Gathered(dict[Key, Measured]):
    """Means over the calls of each module."""

    def add(self, key: Key, summary: Summary) -> None:
        """Take a call of a module into its means."""
        self.setdefault(key, Measured({})).add(summary)
