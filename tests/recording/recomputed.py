"""An attention computed again from what was recorded, in float64 and in plain operations."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from qkv.recording.calls.call import Call
from qkv.recording.calls.operands import Operands, Operation
from qkv.recording.observing.misses import Misses
from qkv.recording.observing.mode import Observer


@dataclass
class Observed:
    """What a function gave with and without an observer, and what the observer told of."""

    plain: Any
    watched: Any
    calls: list[Call]
    misses: Misses

    @property
    def only(self) -> Operands:
        """The operands of the one call."""
        assert len(self.calls) == 1, self.misses.text()
        return self.calls[0].operands


def observe(
    run: Callable[[], Any],
    model: nn.Module | None = None,
    context: Callable[[], AbstractContextManager[Any]] = nullcontext,
    only: Callable[[str | None], bool] | None = None,
) -> Observed:
    """Run twice from the same random numbers, the second time observed."""
    calls: list[Call] = []
    with context():
        torch.manual_seed(1)
        plain = run()
        torch.manual_seed(1)
        with Observer(model, calls.append, only) as observer:
            watched = run()
    return Observed(plain, watched, calls, observer.misses)


def applied(operation: Operation, x: Tensor) -> Tensor:
    operand = None if operation.operand is None else operation.operand()
    number = operation.number
    made: dict[str, Callable[[], Tensor]] = {
        "multiply": lambda: x * (number if operand is None else operand.double()),
        "add": lambda: x + (number if operand is None else (number or 1) * operand.double()),
        "fill": lambda: x.masked_fill(operand, number),
        "where": lambda: torch.where(
            operand, x, operation.other().double() if operation.other else number
        ),
        "maximum": lambda: torch.maximum(x, operand.double()),
        "tanh": x.tanh,
        "negate": x.neg,
        "clamp": lambda: x.clamp(*operation.limits),
        "causal": lambda: x.masked_fill(
            torch.ones(x.shape[-2:], dtype=torch.bool).triu(1), -torch.inf
        ),
    }
    return made[operation.kind]()


def weights(operands: Operands) -> Tensor:
    """The dense weights, (batch, heads, queries, keys)."""
    group = operands.q.shape[1] // operands.k.shape[1]
    x = operands.q.double() @ operands.k.double().repeat_interleave(group, 1).mT
    for operation in operands.scores:
        x = applied(operation, x)
    if operands.sinks is not None:
        sinks = operands.sinks().double().expand(*x.shape[:-1], -1)
        w = torch.cat([x, sinks], -1).softmax(-1)[..., : x.shape[-1]]
    else:
        w = x.softmax(-1)
    if operands.empty_is_zero:
        w = w.nan_to_num(0.0)
    for operation in operands.after:
        w = applied(operation, w)
    return w


def assert_explains_its_output(operands: Operands, eps: float = 16) -> None:
    """softmax(program) V is the output, to `eps` units of its precision at its scale."""
    w = weights(operands)
    if operands.noise is not None:
        w = w * operands.noise().double()
    else:
        assert not operands.dropout
    group = operands.q.shape[1] // operands.v.shape[1]
    again = w @ operands.v.double().repeat_interleave(group, 1)
    output = operands.output
    assert again.shape == output.shape
    tolerance = eps * torch.finfo(output.dtype).eps * output.abs().max().item()
    torch.testing.assert_close(again, output.double(), atol=tolerance, rtol=0, equal_nan=True)


def flat(x: Any) -> list[Tensor]:
    """Every tensor of a result."""
    if isinstance(x, Tensor):
        return [x]
    if isinstance(x, dict):
        return [t for value in x.values() for t in flat(value)]
    if isinstance(x, list | tuple):
        return [t for value in x for t in flat(value)]
    return []


def assert_nothing_changed(observed: Observed) -> None:
    """Bit for bit, padded rows included."""
    plain, watched = flat(observed.plain), flat(observed.watched)
    assert len(plain) == len(watched) > 0
    for x, y in zip(plain, watched, strict=True):
        if x.is_nested:
            x, y = x.to_padded_tensor(0), y.to_padded_tensor(0)  # noqa: PLW2901
        torch.testing.assert_close(y, x, atol=0, rtol=0, equal_nan=True)
