"""Attention as a model writes it out: what it computes, and the operations a watch would see."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from qkv.recording.calls.call import Call
from qkv.recording.calls.operands import Operands, Operation
from qkv.recording.calls.place import Place

LEAST = torch.finfo(torch.float32).min
INF = torch.inf
BATCH, HEADS, KV_HEADS, QUERIES, KEYS, D_K, D_V = 2, 6, 3, 7, 11, 5, 4


class Scores:
    """Similarities on their way to the softmax; each step is done and noted."""

    def __init__(self, x: Tensor) -> None:
        self.x = x
        self.operations: list[Operation] = []

    def multiply(self, by: Tensor | float) -> None:
        self.x = self.x * by
        if isinstance(by, Tensor):
            self._note(Operation("multiply", lambda: by))
        else:
            self._note(Operation("multiply", number=by))

    def add(self, other: Tensor, factor: float = 1.0) -> None:
        self.x = self.x + factor * other.to(self.x)
        self._note(Operation("add", lambda: other, number=None if factor == 1 else factor))

    def fill(self, hidden: Tensor, number: float) -> None:
        self.x = self.x.masked_fill(hidden, number)
        self._note(Operation("fill", lambda: hidden, number=number))

    def where(self, visible: Tensor, other: Tensor) -> None:
        self.x = torch.where(visible, self.x, other.to(self.x))
        self._note(Operation("where", lambda: visible, other=lambda: other))

    def maximum(self, other: Tensor) -> None:
        self.x = torch.max(self.x, other.to(self.x))
        self._note(Operation("maximum", lambda: other))

    def tanh(self) -> None:
        self.x = torch.tanh(self.x)
        self._note(Operation("tanh"))

    def negate(self) -> None:
        self.x = -self.x
        self._note(Operation("negate"))

    def clamp(self, low: float | None, high: float | None) -> None:
        self.x = self.x.clamp(low, high)
        self._note(Operation("clamp", limits=(low, high)))

    def _note(self, operation: Operation) -> None:
        self.operations.append(operation)


Program = Callable[[Scores], None]


def random_qkv(
    batch: int = BATCH, queries: int = QUERIES, keys: int = KEYS, peak: float = 1.0
) -> tuple[Tensor, Tensor, Tensor]:
    q = torch.randn(batch, HEADS, queries, D_K) * peak
    return q, torch.randn(batch, KV_HEADS, keys, D_K), torch.randn(batch, KV_HEADS, keys, D_V)


def repeated(x: Tensor) -> Tensor:
    return x.repeat_interleave(HEADS // x.shape[1], 1)


def softmax_of(program: Program, q: Tensor, k: Tensor, dtype: torch.dtype) -> Tensor:
    scores = Scores(q.to(dtype) @ repeated(k).to(dtype).mT)
    program(scores)
    return scores.x.softmax(-1)


def call_of(program: Program, qkv: tuple[Tensor, Tensor, Tensor], **more: object) -> Call:
    """A call as a watch would make it of the program that a model ran in its own precision."""
    q, k, v = qkv
    scores = Scores(q @ repeated(k).mT)
    program(scores)
    output = scores.x.softmax(-1) @ repeated(v)
    operands = Operands(q, k, v, output, tuple(scores.operations))
    return call(replace(operands, **more))


def call(operands: Operands) -> Call:
    return Call(Place("layer.attention", "model.py", 7), 0, lambda: operands)


def triangle(queries: int = QUERIES, keys: int = KEYS, offset: int | None = None) -> Tensor:
    """True where query i may look at key j; (1, 1, queries, keys)."""
    offset = keys - queries if offset is None else offset
    return torch.ones(1, 1, queries, keys).tril(offset).bool()


def real(lengths: list[int], keys: int = KEYS, side: str = "right") -> Tensor:
    """True for the keys of each example that are no padding; (batch, 1, 1, keys)."""
    position = torch.arange(keys) if side == "right" else torch.arange(keys).flip(0)
    return (position < torch.tensor(lengths)[:, None])[:, None, None, :]


def added(visible: Tensor, number: float) -> Tensor:
    """0 where visible, the number where not, as models add it."""
    return torch.zeros(visible.shape).masked_fill(~visible, number)


class Largest(TorchDispatchMode):
    """Notes the most numbers in any tensor that is made, views of what is given left out."""

    def __init__(self, *given: Tensor) -> None:
        super().__init__()
        self.numbers, self.own = 0, {x.untyped_storage().data_ptr() for x in given}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # or the compiler is imported, for seconds

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        out = func(*args, **(kwargs or {}))
        if isinstance(out, Tensor) and out.untyped_storage().data_ptr() not in self.own:
            self.numbers = max(self.numbers, out.untyped_storage().nbytes() // out.element_size())
        return out
