"""`Program`: what a model did to Q Kᵀ before its softmax, run again tile by tile."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor

from qkv.core.blocks import runs
from qkv.recording.calls.masks import PAIRS, part_of
from qkv.recording.calls.operands import Lazy, Operands, Operation
from qkv.weights.logits import OfQueriesAndKeys, Similarities

LOW = -1000.0
"""A row whose largest logit is below this holds nothing but what a finite least value hides."""


@dataclass(frozen=True, eq=False)
class Program(OfQueriesAndKeys):
    """The logits of any program: an implementation of `Logits` that knows no shortcut.

    Rows in which a finite least value hides everything (−10000, the least of a dtype) are what
    the model's own softmax makes of them, mostly uniform: they are shifted by their largest
    logit, which changes no weight, and keeps ln Σ exp from losing the number of keys in it. What
    is left of similarities beside such a value is a matter of rounding: in these rows, and in no
    other, every step is rounded as the model rounded it.

    Attributes:
        q: queries, float32 or float64.
        k: keys; each of the kv_heads serves a run of heads.
        operations: done to Q Kᵀ in order.
        later: done after the rows were shifted.
        coarse: the precision that Q Kᵀ was rounded to.
    """

    q: Float[Tensor, "batch heads queries d_k"]
    k: Float[Tensor, "batch kv_heads keys d_k"]
    operations: tuple[Operation, ...]
    later: tuple[Operation, ...] = ()
    coarse: torch.dtype | None = None
    requires_grad = False

    @staticmethod
    def of(operands: Operands) -> "Program":
        """Return the program of an attention, half precision as float32."""
        wide = torch.promote_types(operands.q.dtype, torch.float32)
        rounded = any(operation.dtype not in (None, wide) for operation in operands.scores)
        coarse = operands.q.dtype if rounded else None
        return Program(operands.q.to(wide), operands.k.to(wide), operands.scores, coarse=coarse)

    def reach(self, rows: range) -> range:
        """Return all columns: any of them may be open."""
        return range(self.shape[-1])

    def tile(self, rows: range, columns: range) -> Float[Tensor, "batch heads rows columns"]:
        """Return the logits there, shifted where the whole row is hidden by a finite value."""
        shift = self.shift[..., rows.start : rows.stop, None]
        x = self._raw(rows, columns)
        if self.coarse is not None and bool((shift != 0).any()):
            x = torch.where(shift != 0, self._raw(rows, columns, rounded=True), x)
        x = x - shift
        for operation in self.later:
            x = apply(operation, x, rows, columns)
        return x

    def head(self, example: int, head: int) -> "Program":
        """Return one head of one example, with axes of 1."""
        batch, heads = slice(example, example + 1), slice(head, head + 1)
        served = head // (self.q.shape[1] // self.k.shape[1])
        q, k = self.q[batch, heads], self.k[batch, served : served + 1]
        operations, later = (_narrow(o, batch, heads) for o in (self.operations, self.later))
        one = replace(self, q=q, k=k, operations=operations, later=later)
        if "shift" in self.__dict__:
            one.__dict__["shift"] = self.shift[batch, heads]
        return one

    @cached_property
    def shift(self) -> Float[Tensor, "batch heads queries"]:
        """What is taken from each row: its largest logit where that is a least value, else 0."""
        queries, keys = self.shape[-2:]
        if not queries or not keys:
            return self.q.new_zeros(self.shape[:-1])
        across = self.shape[0] * self.shape[1] * keys
        return torch.cat([self._low(rows) for rows in runs(queries, PAIRS // across or 1)], -1)

    def _low(self, rows: range) -> Float[Tensor, "batch heads rows"]:
        keys = range(self.shape[-1])
        top: Tensor = self._raw(rows, keys).amax(-1)
        low = (top < LOW) & ~top.isneginf()
        if self.coarse is not None and bool(low.any()):
            top = self._raw(rows, keys, rounded=True).amax(-1)
        return torch.where(low, top.clamp(min=torch.finfo(top.dtype).min), 0.0)

    def then(self, *more: Operation) -> "Program":
        """Return the program with more at its end, its rows shifted as they are here."""
        longer = replace(self, later=(*self.later, *more))
        longer.__dict__["shift"] = self.shift  # worked out once
        return longer

    def _raw(self, rows: range, columns: range, *, rounded: bool = False) -> Tensor:
        """Return the program's own logits, in its wide precision or as the model rounded them."""
        x = Similarities(self.q, self.k, 1.0, None, None, self.q.shape[:1]).tile(rows, columns)
        if rounded:
            x = x.to(self.coarse).to(x)
        for operation in self.operations:
            x = apply(operation, x, rows, columns)
            if rounded and operation.dtype is not None:
                x = x.to(operation.dtype).to(self.dtype)
        return x


def apply(operation: Operation, x: Tensor, rows: range, columns: range) -> Tensor:
    """Do one operation of a program to some rows and columns of x."""
    if operation.kind in ("fill", "where", "causal"):
        return _hidden(operation, x, rows, columns)
    if operation.function is not None:
        return operation.function(x, rows, columns)
    y = _operand(operation.operand, operation.number, x, rows, columns)
    match operation.kind:
        case "multiply":
            return x * y
        case "add" | "share":
            y = y.log() if operation.kind == "share" else y
            factor = 1.0 if operation.operand is None else operation.number
            return x + (y if factor is None or factor == 1 else y * factor)
        case "maximum":
            return torch.maximum(x, y)
        case "clamp":
            return x.clamp(*(operation.limits or (None, None)))
        case "tanh":
            return torch.tanh(x)
    return -x


def _hidden(operation: Operation, x: Tensor, rows: range, columns: range) -> Tensor:
    """Put other numbers in the place of some of x."""
    if operation.kind == "causal":
        return x.masked_fill(~causal(operation, rows, columns, x.device), -torch.inf)
    assert operation.operand is not None
    condition = tile_of(operation.operand, rows, columns).to(x.device).bool()
    put = _operand(operation.other, operation.number, x, rows, columns)
    return put.where(condition, x) if operation.kind == "fill" else x.where(condition, put)


def _operand(
    lazy: Lazy | None, number: float | None, x: Tensor, rows: range, columns: range
) -> Tensor:
    """The operand over some rows and columns, or the number where there is none."""
    if lazy is not None:
        return tile_of(lazy, rows, columns).to(x)
    return torch.tensor(0.0 if number is None else number, dtype=x.dtype, device=x.device)


def causal(operation: Operation, rows: range, columns: range, device: torch.device) -> Tensor:
    """Return where key j ≤ query i + offset."""
    i = torch.arange(rows.start, rows.stop, device=device)[:, None]
    j = torch.arange(columns.start, columns.stop, device=device)
    return j <= i + int(operation.number or 0)


def tile_of(lazy: Lazy, rows: range, columns: range) -> Tensor:
    """Return a tile of an operand, worked out alone where that can be."""
    part: Callable[[range, range], Tensor] | None = getattr(lazy, "part", None)
    return part_of(lazy(), rows, columns) if part is None else part(rows, columns)


def narrow(operands: Operands, batch: slice, heads: slice) -> Operands:
    """Return some examples and heads (of one group, where keys are shared) of an attention."""
    q = operands.q[batch, heads]

    def shared(tensor: Tensor) -> Tensor:
        group = operands.q.shape[1] // tensor.shape[1]
        first = heads.start // group
        last = (heads.stop - 1) // group
        return tensor[batch, first : last + 1]

    return replace(
        operands,
        q=q,
        k=shared(operands.k),
        v=shared(operands.v),
        output=operands.output[batch, heads],
        scores=_narrow(operands.scores, batch, heads),
        after=_narrow(operands.after, batch, heads),
        sinks=_part(operands.sinks, batch, heads),
        noise=_part(operands.noise, batch, heads),
        projection=None,
    )


def _narrow(operations: tuple[Operation, ...], batch: slice, heads: slice) -> tuple[Operation, ...]:
    return tuple(
        replace(
            o,
            operand=_part(o.operand, batch, heads),
            other=_part(o.other, batch, heads),
            function=o.function and o.function.narrow(batch, heads),
        )
        for o in operations
    )


def _part(lazy: Lazy | None, batch: slice, heads: slice) -> Lazy | None:
    if lazy is None:
        return None
    narrower: Callable[[slice, slice], Lazy] | None = getattr(lazy, "narrow", None)
    if narrower is not None:
        return narrower(batch, heads)

    def part() -> Tensor:
        tensor = lazy()
        tensor = tensor[batch] if tensor.shape[0] > 1 else tensor
        return tensor[:, heads] if tensor.shape[1] > 1 else tensor

    return part
