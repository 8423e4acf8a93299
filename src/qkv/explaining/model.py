"""A sentence in a real model: any layer and head, and which heads link its words."""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from qkv.core.calculation import Calculation
from qkv.core.recompute import Array
from qkv.errors import ArgumentError
from qkv.explaining.text import window
from qkv.models import load
from qkv.models.bert import Bert
from qkv.nn.attention import MultiHeadAttention

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
            average. Neighbours do not count: looking next door shows order, not meaning.
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
        ranked: heads, those that link words most first.
        looks: for each word those it looks at most, by the mean weight of all these heads.
    """

    title: str
    ranked: tuple[HeadLook, ...]
    looks: tuple[tuple[str, tuple[tuple[str, float], ...]], ...]

    @property
    def first(self) -> HeadLook:
        """The head that links words most."""
        return self.ranked[0]

    def plain(self) -> dict[str, Any]:
        """Return it as dicts and lists."""
        return asdict(self)


@dataclass(frozen=True, eq=False)
class ModelText:
    """A text that a model has read.

    Attributes:
        model: the model.
        tokens: names of the tokens, those around the text included.
        words: positions of the text's own tokens.
        states: what goes into each layer, (tokens, n_embed).
    """

    model: Bert
    tokens: tuple[str, ...]
    words: tuple[int, ...]
    states: tuple[Tensor, ...]

    @classmethod
    def read(cls, text: str, model: str, tokens: str | None = None) -> "ModelText":
        """Let a model read a text, or only those of its tokens that `tokens`, "A:B", takes.

        Raises:
            ArgumentError: the text is empty, or longer than the model can read.
            ModelError, FileError, MissingPackageError: the model cannot be loaded.
        """
        loaded = load(model)
        found = loaded.tokenizer(text)
        own = [i for i, special in enumerate(found.special) if not special]
        taken = {own[i] for i in window(len(own), tokens)}
        kept = [i for i, special in enumerate(found.special) if special or i in taken]
        ids = torch.tensor([[found.ids[i] for i in kept]])
        with torch.no_grad():
            states = loaded.hidden_states(ids)
        words = tuple(place for place, i in enumerate(kept) if i in taken)
        names = tuple(found.names[i] for i in kept)
        return cls(loaded, names, words, tuple(state[0] for state in states[:-1]))

    def explain(self, layer: int, head: int) -> Calculation:
        """Write one head down, without the projection behind it; counted from 1.

        Raises:
            ArgumentError: there is no such layer or head.
        """
        module, x = self._attention(layer)
        head = _checked("head", head, module.num_heads)
        told = module.explain(x, head=head - 1, tokens=self.tokens)
        return Calculation(f"Layer {layer}: {told.title}", told.steps, told.eps, told.observed)

    @torch.no_grad()
    def weights(self, layer: int) -> Array:
        """softmax(Q Kᵀ / √d_k) of every head of a layer: (heads, tokens, tokens)."""
        module, x = self._attention(layer)
        q, k, _ = module.project(x, x, x)
        scale = module.d_k**-0.5 if module.scale is None else module.scale
        weights: Array = (q @ k.mT * scale).softmax(-1).to("cpu", torch.float64).numpy()
        return weights

    def heads(self, layer: int | None = None) -> HeadTable:
        """Rank the heads of a layer, or of all layers, by how much they link words.

        Raises:
            ArgumentError: there is no such layer.
        """
        looks: list[HeadLook] = []
        total: Array = np.zeros((len(self.tokens), len(self.tokens)))
        for at in range(1, len(self.states) + 1) if layer is None else [layer]:
            weights = self.weights(at)
            looks += [self._look(matrix, at, head) for head, matrix in enumerate(weights, start=1)]
            total += weights.sum(axis=0)
        where = "all layers" if layer is None else f"layer {layer}"
        title = f"{len(self.tokens)} tokens, {where}: {len(looks)} heads"
        ranked = sorted(looks, key=lambda look: -look.linking)
        return HeadTable(title, tuple(ranked[:SHOWN]), self._looks(total / len(looks)))

    def _attention(self, layer: int) -> tuple[MultiHeadAttention, Tensor]:
        """The attention of a layer, counted from 1, and what goes into it."""
        at = _checked("layer", layer, len(self.states)) - 1
        return self.model.layers[at].attention, self.states[at]

    def _links(self, matrix: Array, apart: int) -> Array:
        """Weights between the text's own tokens, 0 to those less than so far apart."""
        between = matrix[np.ix_(self.words, self.words)]
        distance = np.abs(np.subtract.outer(self.words, self.words))
        return np.where(distance >= apart, between, 0.0)

    def _look(self, matrix: Array, layer: int, head: int) -> HeadLook:
        between = self._links(matrix, apart=2 if len(self.words) > 3 else 1)
        entropy = -(matrix * np.log2(np.where(matrix > 0, matrix, 1.0))).sum(axis=1)
        targets = between.argmax(axis=1)
        best = between[range(len(between)), targets]
        links = tuple(
            self._link(int(i), int(targets[i]), float(best[i]), layer, head)
            for i in np.argsort(-best)[:3]
            if best[i] > 0
        )
        return HeadLook(layer, head, float(best.mean()), float(2 ** entropy.mean()), links)

    def _looks(self, mean: Array) -> tuple[tuple[str, tuple[tuple[str, float], ...]], ...]:
        """For every word the others that it looks at most, by the mean of all heads."""
        mean = self._links(mean, apart=1)
        names = [self.tokens[place] for place in self.words]
        return tuple(
            (name, tuple((names[j], float(row[j])) for j in np.argsort(-row)[:LOOKS] if row[j]))
            for name, row in zip(names, mean, strict=True)
        )

    def _link(self, source: int, target: int, weight: float, layer: int, head: int) -> Link:
        names = (self.tokens[self.words[source]], self.tokens[self.words[target]])
        return Link(*names, weight, layer, head)


def _checked(name: str, number: int, count: int) -> int:
    if not 1 <= number <= count:
        raise ArgumentError(f"{name} is {number}; there are {name}s 1 to {count}")
    return number
