"""What a real model has read: any layer, head and kind of attention, or a whole layer."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from torch import Tensor, nn

from qkv.core.calculation import Calculation
from qkv.core.recompute import Array
from qkv.errors import ArgumentError
from qkv.explaining.attended import CROSS, Attended, attended
from qkv.explaining.heads import HeadTable, Ranking
from qkv.explaining.inputs import Rows, read
from qkv.explaining.text import check_size

NAMES = {"encoder": "Encoder layer", "decoder": "Decoder layer", CROSS: "Decoder layer"}
"""What a layer is called where a model has two towers."""


@dataclass(frozen=True, eq=False)
class ModelText:
    """A text, a sound or a picture that a model has read.

    Attributes:
        model: the model.
        rows: the rows of each tower, by its name.
        kinds: the attentions of each kind, layer by layer.
    """

    model: nn.Module
    rows: Mapping[str, Rows]
    kinds: Mapping[str, tuple[Attended, ...]]

    @classmethod
    def read(
        cls, text: str, model: str, tokens: str | None = None, output: str | None = None
    ) -> "ModelText":
        """Let a model read; the arguments and errors are those of `inputs.read`."""
        taken = read(text, model, tokens, output)
        return cls.of(taken.model, *taken.given, rows=taken.rows)

    @classmethod
    def of(cls, model: nn.Module, *given: Tensor, rows: Mapping[str, Rows]) -> "ModelText":
        """Run a model on what its `forward` takes; `rows` names the rows of each tower."""
        return cls(model, rows, attended(model, *given))

    def explain(self, layer: int, head: int, kind: str | None = None) -> Calculation:
        """Write one head down, without the projection behind it; counted from 1.

        `kind` is "encoder", "decoder" or "cross", as far as the model has them; by default
        "cross", or else the only one.

        Raises:
            ArgumentError: there is no such kind, layer or head, or there are too many tokens.
        """
        kind, one = self._attended(layer, kind)
        head = _checked("head", head, one.attention.num_heads)
        queries, keys = self._rows(kind)
        check_size(len(queries.names), len(keys.names), 1)
        told = one.explain(head - 1, queries.names, keys.names)
        return self._titled(told, layer, kind)

    def explain_layer(self, layer: int, kind: str | None = None) -> Calculation:
        """Write a whole layer down: norms, attention, residuals, feed-forward; counted from 1.

        Raises:
            ArgumentError: there is no such kind or layer, or the layer is too large.
        """
        kind, one = self._attended(layer, kind)
        queries, keys = self._rows(CROSS if kind != "encoder" and CROSS in self.kinds else kind)
        return self._titled(one.explain_layer(queries.names, keys.names), layer, kind)

    def weights(self, layer: int, kind: str | None = None) -> Array:
        """softmax(Q Kᵀ / √d_k + M) of every head of a layer: (heads, queries, keys)."""
        return self._attended(layer, kind)[1].weights()

    def heads(self, layer: int | None = None, kind: str | None = None) -> HeadTable:
        """Rank the heads of a layer, or of all layers, by how much they link words.

        Raises:
            ArgumentError: there is no such kind or layer.
        """
        kind = self._kind(kind)
        chosen = range(1, len(self.kinds[kind]) + 1) if layer is None else [layer]
        where = "all layers" if layer is None else f"layer {layer}"
        several = len(self.kinds) > 1
        where = f"{kind}, {where}" if several else where
        found = ((at, self.weights(at, kind)) for at in chosen)
        return Ranking(kind, *self._rows(kind)).table(found, where, chosen=several)

    def _kind(self, kind: str | None) -> str:
        """The kind that is asked for: by default the bridge, where the model has one."""
        if kind is None:
            return CROSS if CROSS in self.kinds else next(iter(self.kinds))
        if kind not in self.kinds:
            raise ArgumentError(f"kind is {kind!r}; this model has {', '.join(self.kinds)}")
        return kind

    def _attended(self, layer: int, kind: str | None) -> tuple[str, Attended]:
        kind = self._kind(kind)
        at = _checked("layer", layer, len(self.kinds[kind]))
        return kind, self.kinds[kind][at - 1]

    def _rows(self, kind: str) -> tuple[Rows, Rows]:
        """The rows that look, and those that are looked at."""
        if kind == CROSS:
            return self.rows["decoder"], self.rows["encoder"]
        return self.rows[kind], self.rows[kind]

    def _titled(self, told: Calculation, layer: int, kind: str) -> Calculation:
        name = NAMES[kind] if len(self.kinds) > 1 else "Layer"
        return replace(told, title=f"{name} {layer}: {told.title}")


def _checked(name: str, number: int, count: int) -> int:
    if not 1 <= number <= count:
        raise ArgumentError(f"{name} is {number}; there are {name}s 1 to {count}")
    return number
