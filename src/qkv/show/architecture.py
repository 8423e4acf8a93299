"""The record of a model's architecture: its towers from the bottom up, with all sizes.

It is plain numbers and words. Whatever makes it knows models; whatever draws it does not.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

Size = int | float | str | bool

BYTES = {"float32": 4, "bfloat16": 2}
"""What one value takes, by its dtype."""


class Kind(StrEnum):
    """What a part is; the three kinds of attention each have a colour of their own."""

    INPUT = "input"
    EMBEDDING = "embedding"
    POSITIONS = "positions"
    NORM = "norm"
    SELF = "self-attention"
    MASKED = "masked self-attention"
    CROSS = "cross-attention"
    FEED_FORWARD = "feed-forward"
    ADD = "add"
    ADD_NORM = "add & norm"
    OUTPUT = "output"


NOTE = "Read it from the bottom upwards. Numbers at the right are parameters."
"""How a map is read, in the terminal as in a picture."""

ATTENTION = {
    Kind.SELF: "every token looks at every token",
    Kind.MASKED: "a token looks at itself and at what stands before it",
    Kind.CROSS: "what is written looks at what the encoder has read",
}
"""The kinds of attention: who looks at whom."""


@dataclass(frozen=True)
class Part:
    """One box of the map.

    Attributes:
        kind: what it is.
        name: what it is called here.
        says: lines about it.
        sizes: the numbers and choices behind these lines, by the names of the arguments.
        parameters: that are counted here; those of a table that two parts share stand at the
            first of them.
    """

    kind: Kind
    name: str
    says: tuple[str, ...] = ()
    sizes: Mapping[str, Size] = field(default_factory=dict)
    parameters: int = 0


@dataclass(frozen=True)
class Tower:
    """An encoder or a decoder, from the bottom upwards.

    Attributes:
        name: "encoder" or "decoder".
        below: what comes before the layers: input, embedding, positions.
        layer: the parts of one layer; all layers are alike.
        layers: how many there are.
        above: what comes after them.
    """

    name: str
    below: tuple[Part, ...]
    layer: tuple[Part, ...]
    layers: int
    above: tuple[Part, ...]

    @property
    def layer_parameters(self) -> int:
        """Of one layer."""
        return sum(part.parameters for part in self.layer)

    @property
    def parameters(self) -> int:
        """Of the whole tower, with what stands below and above the layers."""
        ends = sum(part.parameters for part in (*self.below, *self.above))
        return ends + self.layers * self.layer_parameters


@dataclass(frozen=True)
class CacheSize:
    """What a decoder keeps while it writes: keys and values of all layers.

    Attributes:
        values: for each token that it has written or read.
        memory_values: for each row that the encoder has made, for cross-attention.
        most: tokens that the model has positions for; None where there is no such number.
    """

    values: int
    memory_values: int = 0
    most: int | None = None


@dataclass(frozen=True)
class Architecture:
    """A model as the article draws it.

    Attributes:
        name: of the model, as it was asked for.
        family: "llama", "bert", ….
        towers: the encoder, the decoder, or both in this order.
        cache: of its keys and values, where there is a decoder.
    """

    name: str
    family: str
    towers: tuple[Tower, ...]
    cache: CacheSize | None = None

    @property
    def parameters(self) -> int:
        """Of the whole model."""
        return sum(tower.parameters for tower in self.towers)

    @property
    def pattern(self) -> str:
        """Which of the three transformers it is."""
        if len(self.towers) == 2:
            return "encoder and decoder"
        return f"{self.towers[0].name} only"

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """The kinds of attention that it has."""
        here = {part.kind for tower in self.towers for part in tower.layer}
        return tuple(kind for kind in ATTENTION if kind in here)

    def plain(self) -> dict[str, object]:
        """Return it as JSON has it."""
        return {
            "name": self.name,
            "family": self.family,
            "pattern": self.pattern,
            "parameters": self.parameters,
            "towers": [_plain_tower(tower) for tower in self.towers],
            "cache": None if self.cache is None else _plain_cache(self.cache),
        }


def counted(number: int) -> str:
    """Return a whole number as it is read: 1,234,567."""
    return f"{number:,}"


def headline(architecture: Architecture) -> str:
    """Return what stands under the name."""
    family = f"{architecture.family}, " if architecture.family else ""
    return f"{family}{architecture.pattern}, {counted(architecture.parameters)} parameters"


def repeated(tower: Tower) -> str:
    """Return what stands at the frame of the layers."""
    alike = "layer" if tower.layers == 1 else "layers"
    return f"{counted(tower.layers)} {alike} × {counted(tower.layer_parameters)}"


def summed(tower: Tower) -> str:
    """Return what stands over a tower."""
    return f"{tower.name}: {counted(tower.parameters)}"


def kept(cache: CacheSize) -> list[str]:
    """Return lines about the cache of keys and values."""
    lines = [f"Cache of keys and values, for a token: {_taken(cache.values)}"]
    if cache.memory_values:
        lines.append(f"for a row that the encoder made: {_taken(cache.memory_values)}")
    if cache.most is not None:
        whole = cache.most * cache.values * BYTES["float32"]
        lines.append(f"for {counted(cache.most)} tokens, the most: {_size(whole)} in float32")
    return lines


def _taken(values: int) -> str:
    sizes = (f"{_size(values * size)} in {dtype}" for dtype, size in BYTES.items())
    return f"{counted(values)} values, {', '.join(sizes)}"


def _size(size: int) -> str:
    if size < 1024:
        return f"{size:,} B"
    unit, power = next(
        (u, p) for u, p in (("KiB", 1), ("MiB", 2), ("GiB", 3)) if size < 1024 ** (p + 1) or p == 3
    )
    return f"{size / 1024**power:,.1f} {unit}"


def _plain_tower(tower: Tower) -> dict[str, object]:
    return {
        "name": tower.name,
        "parameters": tower.parameters,
        "below": [_plain_part(part) for part in tower.below],
        "layers": tower.layers,
        "layer_parameters": tower.layer_parameters,
        "layer": [_plain_part(part) for part in tower.layer],
        "above": [_plain_part(part) for part in tower.above],
    }


def _plain_part(part: Part) -> dict[str, object]:
    return {
        "kind": part.kind.value,
        "name": part.name,
        "says": list(part.says),
        "sizes": dict(part.sizes),
        "parameters": part.parameters,
    }


def _plain_cache(cache: CacheSize) -> dict[str, object]:
    return {
        "values_per_token": cache.values,
        "bytes_per_token": {dtype: size * cache.values for dtype, size in BYTES.items()},
        "memory_values_per_row": cache.memory_values,
        "most_tokens": cache.most,
    }
