"""What is measured of each head, over one call or over the means of many."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from qkv.recording.call import Call
from qkv.recording.joining import Key
from qkv.recording.tokens import Tokens
from qkv.weights.summary import HeadSummary, Measures, Summary


def summarise(call: Call, tokens: Tokens | None) -> Summary:
    """Measure every head of a call.

    Args:
        call: padding, where its mask hides keys as such, is left out of the means.
        tokens: of what the model read; without them, or where the keys are not those tokens,
            nothing is measured of words and separators.
    """
    batch, keys = call.q.shape[0], call.k.shape[-2]
    words = separators = None
    if tokens is not None and tokens.fit(batch, keys):
        words = tokens.words(batch).to(call.q.device)
        separators = tokens.separators(batch).to(call.q.device)
    return call.weights.summary(valid=_real(call), separators=separators, words=words)


def _real(call: Call) -> Bool[Tensor, "batch queries"] | None:
    """Which queries are tokens rather than padding; None where that is all of them."""
    batch, _, queries, _ = call.q.shape
    blocking = call.blocking
    if blocking.padding is None or call.kind == "cross" or queries > blocking.keys:
        return None
    return ~blocking.padding[:, blocking.keys - queries :].expand(batch, -1)


class Mean(NamedTuple):
    """A mean over calls of one measure.

    Attributes:
        total: sum of what each call measured, times its queries; one number a head.
        queries: so many went into it.
    """

    total: Float[Tensor, "heads"]
    queries: float


@dataclass(eq=False)
class Measured:
    """Means over the calls of one module.

    Attributes:
        means: by the name of the measure.
        calls: how many there were.
        keys: of all of them.
    """

    means: dict[str, Mean]
    calls: int = 0
    keys: int = 0

    @property
    def heads(self) -> int:
        """How many heads were measured."""
        return max((len(mean.total) for mean in self.means.values()), default=0)

    def add(self, summary: Summary) -> None:
        """Take another call into the means."""
        self.calls += 1
        self.keys += summary.received.shape[-1]
        batch, _, queries = summary.entropies.shape
        for name in Measures._fields:
            measure = getattr(summary, name)
            if measure is not None:
                total = measure.double().mean(0) * batch * queries
                before = self.means.get(name, Mean(torch.zeros_like(total), 0.0))
                self.means[name] = Mean(before.total + total, before.queries + batch * queries)

    def summaries(self, path: str, layer: int | None) -> list[HeadSummary]:
        """Return a record for each head."""
        means = {name: (mean.total / mean.queries).tolist() for name, mean in self.means.items()}
        keys = round(self.keys / self.calls)
        return [
            HeadSummary.of(
                path, layer, head, keys, Measures(**{n: m[head] for n, m in means.items()})
            )
            for head in range(self.heads)
        ]


class Gathered(dict[Key, Measured]):
    """Means over the calls of each module."""

    def add(self, key: Key, summary: Summary) -> None:
        """Take a call of a module into its means."""
        self.setdefault(key, Measured({})).add(summary)
