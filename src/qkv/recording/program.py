"""`Program`: what a model did to Q Kᵀ before its softmax, run again tile by tile."""

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor

from qkv.core.blocks import runs
from qkv.recording.operands import Lazy, Operands, Operation

PAIRS = 1 << 22
"""Pairs of query and key, over all heads, that are looked at in one go: 16 MB in float32."""

LEAST = -1000.0
"""A row whose largest logit is below this holds nothing but what a finite least value hides."""


@dataclass(frozen=True, eq=False)
class Program:
    """The logits of any program: an implementation of `Logits` that knows no shortcut.

    Rows in which a finite least value hides everything (−10000, the least of a dtype) are what
    the model's own softmax makes of them, mostly uniform: they are shifted by their largest
    logit, which changes no weight, and keeps ln Σ exp from losing the number of keys in it.

    Attributes:
        q: queries, float32 or float64.
        k: keys; each of the kv_heads serves a run of heads.
        operations: done to Q Kᵀ in order.
        later: done after the rows were shifted.
    """

    q: Float[Tensor, "batch heads queries d_k"]
    k: Float[Tensor, "batch kv_heads keys d_k"]
    operations: tuple[Operation, ...]
    later: tuple[Operation, ...] = ()
    requires_grad = False

    @staticmethod
    def of(operands: Operands) -> "Program":
        """Return the program of an attention, half precision as float32."""
        wide = torch.promote_types(operands.q.dtype, torch.float32)
        return Program(operands.q.to(wide), operands.k.to(wide), operands.scores)

    @property
    def shape(self) -> torch.Size:
        """(batch, heads, queries, keys)."""
        return torch.Size((*self.q.shape[:-1], self.k.shape[-2]))

    @property
    def dtype(self) -> torch.dtype:
        """That of the tiles."""
        return self.q.dtype

    @property
    def device(self) -> torch.device:
        """That of the queries."""
        return self.q.device

    def reach(self, rows: range) -> range:
        """Return all columns: any of them may be open."""
        return range(self.shape[-1])

    def tile(self, rows: range, columns: range) -> Float[Tensor, "batch heads rows columns"]:
        """Return the logits there, shifted where the whole row is hidden by a finite value."""
        x = self._raw(rows, columns) - self.shift[..., rows.start : rows.stop, None]
        for operation in self.later:
            x = apply(operation, x, rows, columns)
        return x

    @cached_property
    def shift(self) -> Float[Tensor, "batch heads queries"]:
        """What is taken from each row: its largest logit where that is a least value, else 0."""
        size = self.shape[0] * self.shape[1] * max(1, self.shape[-1])
        largest = [
            self._raw(rows, range(self.shape[-1])).amax(-1)
            for rows in runs(self.shape[-2], max(1, PAIRS // size))
        ]
        empty = not largest or not self.shape[-1]
        top: Tensor = self.q[..., 0] * 0 if empty else torch.cat(largest, -1)
        seeing: Tensor = (top >= LEAST) | top.isneginf() | top.isnan()
        return top.where(~seeing, torch.zeros_like(top))

    def then(self, *more: Operation) -> "Program":
        """Return the program with more at its end, its rows shifted as they are here."""
        longer = replace(self, later=(*self.later, *more))
        longer.__dict__["shift"] = self.shift  # worked out once
        return longer

    def _raw(self, rows: range, columns: range) -> Tensor:
        q, kv_heads = self.q[:, :, rows.start : rows.stop], self.k.shape[1]
        grouped = q.unflatten(1, (kv_heads, q.shape[1] // kv_heads)).flatten(2, 3)
        x: Tensor = grouped @ self.k[:, :, columns.start : columns.stop].mT  # Q Kᵀ
        x = x.reshape(*q.shape[:-1], len(columns))
        for operation in self.operations:
            x = apply(operation, x, rows, columns)
        return x


def apply(operation: Operation, x: Tensor, rows: range, columns: range) -> Tensor:
    """Do one operation of a program to some rows and columns of x."""
    if operation.kind in ("fill", "where", "causal"):
        return _hidden(operation, x, rows, columns)
    y = _operand(operation.operand, operation.number, x, rows, columns)
    match operation.kind:
        case "multiply":
            return x * y
        case "add":
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
    condition = part_of(operation.operand(), rows, columns).to(x.device).bool()
    put = _operand(operation.other, operation.number, x, rows, columns)
    return put.where(condition, x) if operation.kind == "fill" else x.where(condition, put)


def _operand(
    lazy: Lazy | None, number: float | None, x: Tensor, rows: range, columns: range
) -> Tensor:
    """The operand over some rows and columns, or the number where there is none."""
    if lazy is not None:
        return part_of(lazy(), rows, columns).to(x)
    return torch.tensor(0.0 if number is None else number, dtype=x.dtype, device=x.device)


def causal(operation: Operation, rows: range, columns: range, device: torch.device) -> Tensor:
    """Return where key j ≤ query i + offset."""
    i = torch.arange(rows.start, rows.stop, device=device)[:, None]
    j = torch.arange(columns.start, columns.stop, device=device)
    return j <= i + int(operation.number or 0)


def part_of(values: Tensor, rows: range, columns: range) -> Tensor:
    """Cut a tensor over pairs; an axis of 1 serves every row or column."""
    if values.shape[-2] > 1:
        values = values[..., rows.start : rows.stop, :]
    return values[..., columns.start : columns.stop] if values.shape[-1] > 1 else values


def narrow(operands: Operands, batch: slice, heads: slice) -> Operands:
    """Return some examples and heads (of one group, where keys are shared) of an attention."""
    q = operands.q[batch, heads]

    def shared(tensor: Tensor) -> Tensor:
        group = operands.q.shape[1] // tensor.shape[1]
        first = heads.start // group
        last = (heads.stop - 1) // group
        return tensor[batch, first : last + 1]

    def cut(lazy: Lazy) -> Lazy:
        def part() -> Tensor:
            tensor = lazy()
            tensor = tensor[batch] if tensor.shape[0] > 1 else tensor
            return tensor[:, heads] if tensor.shape[1] > 1 else tensor

        return part

    def each(operations: tuple[Operation, ...]) -> tuple[Operation, ...]:
        return tuple(
            replace(o, operand=o.operand and cut(o.operand), other=o.other and cut(o.other))
            for o in operations
        )

    return replace(
        operands,
        q=q,
        k=shared(operands.k),
        v=shared(operands.v),
        output=operands.output[batch, heads],
        scores=each(operands.scores),
        after=each(operands.after),
        sinks=operands.sinks and cut(operands.sinks),
        noise=operands.noise and cut(operands.noise),
        projection=None,
    )
