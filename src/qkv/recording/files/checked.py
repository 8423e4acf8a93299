"""Values out of a file, each of which must be what it claims to be."""

from collections.abc import Sequence

import torch
from torch import Tensor

from qkv.errors import FileError
from qkv.recording.calls.operands import Lazy, Operands, Operation
from qkv.weights.summary import MEASURES, Summary

BROAD = 1 << 12
"""Rows or numbers a row that may be one and the same in memory; more of them are claimed alone."""


def whole(value: object, what: str, least: int = 0, most: int | None = None) -> int:
    """Return a whole number within limits."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise FileError(f"{what} is {value!r}; wanted a whole number")
    if value < least or (most is not None and value > most):
        raise FileError(f"{what} is {value}; wanted {least} to {'any' if most is None else most}")
    return value


def text(value: object, what: str) -> str:
    """Return a text."""
    if not isinstance(value, str):
        raise FileError(f"{what} is {value!r}; wanted a text")
    return value


def flag(value: object, what: str) -> bool:
    """Return true or false."""
    if not isinstance(value, bool):
        raise FileError(f"{what} is {value!r}; wanted true or false")
    return value


def items(value: object, what: str, count: int | None = None) -> Sequence[object]:
    """Return a list, of so many where that is known."""
    if not isinstance(value, list) or (count is not None and len(value) != count):
        raise FileError(
            f"{what} is {value!r}; wanted a list{'' if count is None else f' of {count}'}"
        )
    return value


def same_sizes(operands: Operands, keys: int | None = None) -> Operands:
    """Return operands whose axes fit each other.

    Args:
        operands: as they were read.
        keys: how many there are, where k and v are kept elsewhere and have no rows here.
    """
    q, k, v, output = operands.q, operands.k, operands.v, operands.output
    for name, tensor in (("q", q), ("k", k), ("v", v), ("output", output)):
        if tensor.dim() != 4 or not tensor.is_floating_point():
            raise FileError(f"{name} is {tensor.dtype} with axes {tuple(tensor.shape)}")
    rows = 0 if keys is not None else k.shape[2]
    wanted = {
        "q": (q, (*output.shape[:3], k.shape[3])),
        "k": (k, (len(q), k.shape[1], rows, q.shape[3])),
        "v": (v, (len(q), v.shape[1], rows, output.shape[3])),
    }
    for name, (tensor, sizes) in wanted.items():
        if tuple(tensor.shape) != sizes:
            raise FileError(
                f"{name} is {tuple(tensor.shape)} beside an output {tuple(output.shape)}"
            )
    for name, tensor in (("k", k), ("v", v)):
        if not tensor.shape[1] or q.shape[1] % tensor.shape[1]:
            raise FileError(
                f"{name} has {tensor.shape[1]} heads beside {q.shape[1]} of the queries"
            )
    _is_held("output", output, (0, 1, 2, 3))
    _is_held("k and v", v if k.stride(2) == 0 else k, (2,))
    _is_held("q and k", k if q.stride(3) == 0 else q, (3,))
    pairs = (*output.shape[:3], rows if keys is None else keys)
    for operation in (*operands.scores, *operands.after):
        _fits("an operation", operation.operand, pairs)
        _fits("an operation", operation.other, pairs)
    _fits("noise", operands.noise, pairs)
    _fits("sinks", operands.sinks, (*pairs[:3], None))
    _has("projection", operands.projection, (q.shape[1], output.shape[3], None))
    return operands


def complete(operation: Operation) -> Operation:
    """Return an operation that has what its kind needs."""
    operand, number = operation.operand is not None, operation.number is not None
    needs = {
        "multiply": operand or number,
        "add": operand or number,
        "maximum": operand or number,
        "fill": operand and number,
        "where": operand and (number or operation.other is not None),
        "share": operand,
        "clamp": operation.limits is not None,
        "tanh": True,
        "negate": True,
        "causal": True,
    }
    if not needs.get(operation.kind, False):
        raise FileError(f"an operation {operation.kind!r} lacks what it works with, or is code")
    return operation


def like_its_measures(summary: Summary) -> Summary:
    """Return a summary whose parts are of the same batch and heads."""
    batch = summary.entropy.shape
    if len(batch) != 2:
        raise FileError(f"entropy has axes {tuple(batch)}; wanted (batch, heads)")
    for name in MEASURES:
        found: Tensor | None = getattr(summary, name)
        if found is not None and (found.shape != batch or not found.is_floating_point()):
            raise FileError(f"{name} is {found.dtype} with axes {tuple(found.shape)}")
    if summary.counts.shape != (len(MEASURES), *batch):
        raise FileError(f"counts has axes {tuple(summary.counts.shape)}")
    for name, axes in (("entropies", 3), ("received", 3), ("weights", 4), ("keys", 4), ("map", 4)):
        part: Tensor = getattr(summary, name)
        if part.dim() != axes or part.shape[:2] != batch:
            raise FileError(f"{name} has axes {tuple(part.shape)} beside {tuple(batch)}")
    if summary.weights.shape != summary.keys.shape:
        raise FileError("weights and keys of the strongest links are not as many")
    return summary


def _is_held(what: str, tensor: Tensor, axes: Sequence[int]) -> None:
    """Refuse a large axis of which the file holds one number alone: it would fill the memory."""
    for axis in axes:
        if tensor.shape[axis] > BROAD and tensor.stride(axis) == 0:
            raise FileError(f"{what} claims {tensor.shape[axis]} rows, and the file has one")


def _fits(what: str, lazy: Lazy | None, pairs: Sequence[int | None]) -> None:
    if lazy is None:
        return
    sizes = tuple(lazy().shape)
    fits = len(sizes) == len(pairs) and all(
        size in (1, wanted) or wanted is None for size, wanted in zip(sizes, pairs, strict=True)
    )
    if not fits:
        raise FileError(f"{what} has axes {sizes} beside (batch, heads, queries, keys) {pairs}")


def _has(what: str, lazy: object, sizes: Sequence[int | None]) -> None:
    if not callable(lazy):
        return
    tensor = lazy()
    if isinstance(tensor, torch.Tensor) and tuple(tensor.shape[:2]) != tuple(sizes[:2]):
        raise FileError(f"{what} has axes {tuple(tensor.shape)}; wanted {sizes}")
