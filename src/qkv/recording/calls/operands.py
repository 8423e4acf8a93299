"""`Operands`: what went into one attention, and every operation between its two products."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

Kind = Literal[
    "multiply", "add", "fill", "where", "maximum", "tanh", "negate", "clamp", "causal", "share",
    "function",
]  # fmt: skip
"""What a program does to the similarities, or to the weights."""

Lazy = Callable[[], Tensor]
"""A tensor laid out when it is asked for: (batch, heads, queries, keys), any axis 1.

It may have a method `part(rows, columns)` that works out a tile alone, and then one
`narrow(batch, heads)`.
"""


@runtime_checkable
class Function(Protocol):
    """Whatever else a model does to the similarities, tile by tile."""

    def __call__(
        self, x: Float[Tensor, "batch heads rows columns"], rows: range, columns: range
    ) -> Float[Tensor, "batch heads rows columns"]:
        """Return what it makes of x."""

    def narrow(self, batch: slice, heads: slice) -> "Function":
        """Return the same for some examples and heads."""


@dataclass(frozen=True, eq=False)
class Operation:
    """One thing that was done to the similarities x, or after the softmax to the weights.

        multiply   x · operand, or x · number        maximum   max(x, operand)
        add        x + number · operand, or x + number
        fill       number where the operand is True  where     x where the operand is True, else
        tanh       tanh(x)                                     what `other` gives, or `number`
        negate     −x                                clamp     min(max(x, lower), upper)
        causal     −∞ where key j > query i + number (0 where there is none: the upper left)
        share      x + ln operand: what the softmax is then multiplied by, from 0 to 1
        function   function(x)

    Attributes:
        kind: which of them.
        operand: its tensor, laid out when asked for; axes that broadcast to (batch, heads,
            queries, keys).
        number: its number: multiply, fill, where: the value; add: the factor of the operand
            (None is 1) or, without an operand, what is added; causal: the offset (None is 0).
        other: where: what stands in the place of x.
        limits: clamp: lower and upper, either may be None.
        function: function: of tiles of x.
        dtype: that the result was rounded to; None inside a fused operation, which does not.
    """

    kind: Kind
    operand: Lazy | None = None
    number: float | None = None
    other: Lazy | None = None
    limits: tuple[float | None, float | None] | None = None
    function: Function | None = None
    dtype: torch.dtype | None = None


@dataclass(frozen=True, eq=False)
class Operands:
    """What one attention was computed from, by reference, with its axes restored.

    Attributes:
        q, k, v: queries, keys and values of the first and the second product, any floating dtype.
        output: what the model went on with.
        scores: done to Q Kᵀ, in order; the scale is the first multiply.
        after: done to the weights between the softmax and the second product.
        sinks: logits appended before the softmax, whose weights were dropped: (…, heads,
            queries, number).
        noise: what dropout multiplied the weights with, where that is known.
        dropout: its probability.
        empty_is_zero: whether a row that may look at nothing gives 0, as in fused operations; a
            softmax written out makes it uniform or NaN.
        how: "written out", or the name of the fused operation.
        same_source: whether queries and keys were made of one tensor; None where unknown.
        projection: the heads' parts of the output projection, (heads, d_v, n_out), once known.
    """

    q: Float[Tensor, "batch heads queries d_k"]
    k: Float[Tensor, "batch kv_heads keys d_k"]
    v: Float[Tensor, "batch kv_heads keys d_v"]
    output: Float[Tensor, "batch heads queries d_v"]
    scores: tuple[Operation, ...]
    after: tuple[Operation, ...] = ()
    sinks: Lazy | None = None
    noise: Lazy | None = None
    dropout: float = 0.0
    empty_is_zero: bool = False
    how: str = "written out"
    same_source: bool | None = None
    projection: Callable[[], Tensor | None] | None = None
