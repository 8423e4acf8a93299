"""The strongest links between the words of a text, head by head."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from qkv.explaining.inputs import Rows
from qkv.recording.calls.call import Call
from qkv.show.links import Link

NEAREST = 8
"""Keys of each query that are looked through; what comes after them has less than 1/8."""
LINKS = 3
"""Links that are told of a head."""


@dataclass(frozen=True)
class Linking:
    """How much a head links words.

    Attributes:
        attention, head: counted from 1.
        share: what a word takes from the one other word that it looks at most, on average.
            Neighbours do not count: looking next door shows order, not meaning. Nor does the first
            token of a decoder, where heads look that have nothing to say (Xiao et al. 2023).
        links: the strongest.
    """

    attention: int
    head: int
    share: float
    links: tuple[Link, ...]

    @property
    def name(self) -> str:
        """As a person asks for it."""
        return f"{self.attention}.{self.head}"

    def plain(self) -> dict[str, Any]:
        """Return it as a dict."""
        links = [{"query": x.query, "key": x.key, "weight": x.weight} for x in self.links]
        return {
            "attention": self.attention, "head": self.head, "share": self.share, "links": links,
        }  # fmt: skip


def linking(number: int, call: Call, queries: Rows, keys: Rows) -> list[Linking]:
    """Say of each head of an attention how it links words; of a batch the first example.

    Args:
        number: of the attention.
        call: as it ran.
        queries, keys: the rows that look, and those that are looked at: the same ones in
            self-attention, where neighbours do not count.
    """
    top = call.weights.top(min(NEAREST, call.k.shape[-2]))
    weights, places = top.weights[0], top.keys[0]  # (heads, queries, few)
    counts = _counts(places, queries, keys, causal=bool(call.blocking.causal))
    weights = torch.where(counts, weights, 0.0)
    best, which = weights.max(-1)  # (heads, queries)
    targets = places.gather(-1, which[..., None])[..., 0]
    own = torch.tensor(queries.own)
    found = []
    for head in range(len(best)):
        order = best[head].sort(descending=True, stable=True).indices.tolist()
        links = (
            Link(queries.names[i], keys.names[int(targets[head, i])], float(best[head, i]))
            for i in order
            if best[head, i] > 0
        )
        share = float(best[head, own].mean()) if len(own) else 0.0
        found.append(Linking(number, head + 1, share, _different(links)))
    return found


def ranked(found: Iterable[Linking], most: int) -> list[Linking]:
    """Return those that link most."""
    linked = [one for one in found if one.links]
    return sorted(linked, key=lambda one: -one.share)[:most]


def _counts(
    places: Int[Tensor, "heads queries few"], queries: Rows, keys: Rows, *, causal: bool
) -> Bool[Tensor, "heads queries few"]:
    """Which links are between words that are no neighbours."""
    looks = _among(len(queries.names), queries.own)[:, None]
    counts = looks & _among(len(keys.names), keys.own)[places]
    if queries is keys:
        apart = 2 if len(keys.own) > 3 else 1
        here = torch.arange(len(queries.names))[:, None]
        counts = counts & ((places - here).abs() >= apart)
        if causal:
            counts = counts & (places > 0)
    return counts


def _different(links: Iterable[Link]) -> tuple[Link, ...]:
    """The first few between different words: "the" may look at "the" from several places."""
    found: dict[tuple[str, str], Link] = {}
    for link in links:
        found.setdefault((link.query, link.key), link)
        if len(found) == LINKS:
            break
    return tuple(found.values())


def _among(size: int, which: Sequence[int]) -> Bool[Tensor, "size"]:
    found = torch.zeros(size, dtype=torch.bool)
    found[list(which)] = True
    return found
