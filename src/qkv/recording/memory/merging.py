"""What was done to the similarities of each step, as one program for the whole matrix."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from functools import partial
from itertools import accumulate
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from qkv.errors import RecordingError
from qkv.recording.calls.operands import Lazy, Operands, Operation

NEUTRAL = {"multiply": 1.0, "add": 0.0, "fill": 0.0, "where": 1.0, "maximum": -math.inf}
"""What an operand has where a step did no such thing."""


@dataclass(frozen=True, eq=False)
class Step:
    """What is kept of a call whose keys are rows of a later one's.

    Attributes:
        operands: of the call; what it is joined with gives the keys and the values.
        first: of all keys, the first that it had.
        keys: how many it had.
    """

    operands: Operands
    first: int
    keys: int


class Shape(NamedTuple):
    """An operation without its tensors; equal ones of two steps are the same thing done."""

    kind: str
    number: float | None
    limits: tuple[float | None, float | None] | None
    has_operand: bool


Found = list[Operation | None]
"""One operation as each part has it; None where it has none."""


def merged(
    parts: Sequence[Step], k: Float[Tensor, "b h keys d_k"], v: Float[Tensor, "b h keys d_v"]
) -> Operands:
    """Return the operands of all rows over all keys.

    Raises:
        RecordingError: the parts were computed in ways that make no single program.
    """
    all_ = [part.operands for part in parts]
    layout = Layout(parts, k.shape[-2])
    ways = dict.fromkeys(operands.how for operands in all_)
    return replace(
        all_[0],
        q=torch.cat([operands.q for operands in all_], -2),
        k=k,
        v=v,
        output=torch.cat([operands.output for operands in all_], -2),
        scores=layout.scores([operands.scores for operands in all_]),
        after=tuple(layout.operations([operands.after for operands in all_])),
        sinks=_sinks(parts),
        noise=layout.noise(),
        empty_is_zero=all(operands.empty_is_zero for operands in all_),
        how=" and ".join(ways),
        projection=all_[-1].projection,
    )


def _sinks(parts: Sequence[Step]) -> Lazy | None:
    given = [part.operands.sinks for part in parts]
    if all(sinks is None for sinks in given):
        return None

    def lazy() -> Tensor:
        rows = [part.operands.q.shape[-2] for part in parts]
        tensors = [sinks() for sinks in given if sinks is not None]
        return torch.cat(
            [t.expand(*t.shape[:-2], n, -1) for t, n in zip(tensors, rows, strict=True)], -2
        )

    return lazy


class Layout:
    """Where the rows and the keys of each part stand in the whole.

    Args:
        parts: in order.
        keys: of the whole.
    """

    def __init__(self, parts: Sequence[Step], keys: int) -> None:
        """Queries follow one another."""
        self.parts, self.keys = parts, keys
        counts = [part.operands.q.shape[-2] for part in parts]
        stops = list(accumulate(counts))
        self.rows = [range(stop - n, stop) for stop, n in zip(stops, counts, strict=True)]
        self.queries = stops[-1]

    def scores(self, programs: Sequence[Sequence[Operation]]) -> tuple[Operation, ...]:
        """Return one program for all rows; what a step had no keys for is blocked."""
        found = _aligned(programs)
        triangles = [step for step in found if _is_causal(step)]
        corner = self._corner(triangles)
        program = self._all(found)
        if corner is not None:
            return (*program, Operation("causal", number=float(corner)))
        if not triangles and all(p.first == 0 and p.keys >= self.keys for p in self.parts):
            return tuple(program)
        closed = partial(self._closed, triangles)
        carrier = _carrier(program)
        if carrier is None:
            return (*program, Operation("fill", closed, -math.inf))
        program[carrier] = _also_closed(program[carrier], closed)
        return tuple(program)

    def operations(self, programs: Sequence[Sequence[Operation]]) -> list[Operation]:
        """Return one program for all rows."""
        return self._all(_aligned(programs))

    def noise(self) -> Lazy | None:
        """What dropout multiplied the weights with; 1 where that is not known."""
        given = [part.operands.noise for part in self.parts]
        return None if all(n is None for n in given) else partial(self.spread, given, 1.0)

    def spread(self, lazies: Sequence[Lazy | None], neutral: float) -> Tensor:
        """Put the tensors of the parts where their rows and keys stand."""
        tensors = [None if lazy is None else lazy() for lazy in lazies]
        known = next(tensor for tensor in tensors if tensor is not None)
        if all(t is not None and t.shape[-2:] == (1, 1) and torch.equal(t, known) for t in tensors):
            return known  # one number for each head
        lead = torch.broadcast_shapes(*(t.shape[:-2] for t in tensors if t is not None))
        whole = known.new_full((*lead, self.queries, self.keys), neutral)
        for tensor, rows, part in zip(tensors, self.rows, self.parts, strict=True):
            if tensor is not None:
                stop = min(part.first + part.keys, self.keys)
                piece = tensor[..., : stop - part.first] if tensor.shape[-1] > 1 else tensor
                whole[..., rows.start : rows.stop, part.first : stop] = piece
        return whole

    def _all(self, found: Sequence[Found]) -> list[Operation]:
        return [self._one(step) for step in found if not _is_causal(step)]

    def _one(self, step: Found) -> Operation:
        some = next(operation for operation in step if operation is not None)
        if some.function is not None:
            raise RecordingError(
                "the steps changed their scores by functions, whose rows are counted in each step "
                "anew; look at them one by one, list(seen.select(path))"
            )
        if some.operand is None:
            if None in step:
                raise RecordingError(
                    f"not every step did the same: {some.kind} is missing in some; look at them "
                    f"one by one, list(seen.select(path))"
                )
            return some
        operand = self._lazily([None if o is None else o.operand for o in step], some.kind)
        if some.kind != "where":
            return replace(some, operand=operand)
        others = [None if o is None else o.other for o in step]
        if some.other is None:  # a number stands there
            return replace(some, operand=operand)
        return replace(some, operand=operand, other=self._lazily(others, "add"))

    def _lazily(self, operands: Sequence[Lazy | None], kind: str) -> Callable[[], Tensor]:
        return partial(self.spread, operands, NEUTRAL[kind])

    def _corner(self, triangles: Sequence[Found]) -> int | None:
        """The offset of one triangle that is all that blocks, if there is one.

        A call with its own triangle brings its offset; a single query, the number of its keys.
        """
        if len(triangles) > 1:
            return None
        corners = set()
        own_ones = triangles[0] if triangles else [None] * len(self.parts)
        for triangle, rows, part in zip(own_ones, self.rows, self.parts, strict=True):
            last = part.first + part.keys - rows.stop
            own = None if triangle is None else int(triangle.number or 0) + part.first - rows.start
            if part.first or (own is None and len(rows) > 1) or (own is not None and own > last):
                return None
            corners.add(last if own is None else own)
        return corners.pop() if len(corners) == 1 else None

    def _closed(self, triangles: Sequence[Found]) -> Tensor:
        closed = torch.ones(
            1, 1, self.queries, self.keys, dtype=torch.bool, device=self.parts[0].operands.q.device
        )
        for number, (rows, part) in enumerate(zip(self.rows, self.parts, strict=True)):
            stop = min(part.first + part.keys, self.keys)
            block = closed[..., rows.start : rows.stop, part.first : stop]
            block[...] = False
            for triangle in triangles:
                own = triangle[number]
                if own is not None:
                    block |= torch.ones_like(block).triu(1 + int(own.number or 0))
        return closed


def _is_causal(step: Found) -> bool:
    return any(operation is not None and operation.kind == "causal" for operation in step)


def _carrier(program: Sequence[Operation]) -> int | None:
    """The last operation that may hide by −∞ as well, where nothing after it bends what it hid."""
    for number in reversed(range(len(program))):
        kind, factor = program[number].kind, program[number].number
        by_infinity = kind == "add" and (factor is None or factor > 0)
        by_infinity |= kind in ("fill", "where") and factor == -math.inf
        if by_infinity and program[number].operand is not None:
            return number
        if kind not in ("add", "fill", "where"):
            return None
    return None


def _also_closed(operation: Operation, closed: Lazy) -> Operation:
    """Let one operation hide these pairs besides, so that its tensor tells the whole mask."""
    operand = operation.operand
    assert operand is not None

    def both() -> Tensor:
        if operation.kind == "add":
            return operand().masked_fill(closed(), -math.inf)
        if operation.kind == "where":
            return operand().bool() & ~closed()
        return operand().bool() | closed()

    return replace(operation, operand=both)


def _shape(operation: Operation) -> Shape:
    number = None if operation.kind == "causal" else operation.number
    return Shape(operation.kind, number, operation.limits, operation.operand is not None)


def _aligned(programs: Sequence[Sequence[Operation]]) -> list[Found]:
    """Put the same operation of every program side by side, in an order that fits all."""
    spelled = [tuple(_shape(operation) for operation in program) for program in programs]
    order: tuple[Shape, ...] = ()
    for program in dict.fromkeys(spelled):
        order = _together(order, program)
    return _columns(order, programs, spelled)


def _columns(
    order: Sequence[Shape],
    programs: Sequence[Sequence[Operation]],
    spelled: Sequence[Sequence[Shape]],
) -> list[Found]:
    found: list[Found] = [[None] * len(programs) for _ in order]
    for number, (program, shapes) in enumerate(zip(programs, spelled, strict=True)):
        place = 0
        for operation, shape in zip(program, shapes, strict=True):
            while order[place] != shape:
                place += 1
            found[place][number] = operation
            place += 1
    return found


def _together(a: Sequence[Shape], b: Sequence[Shape]) -> tuple[Shape, ...]:
    """Return the shortest order that holds both."""
    together: list[Shape] = []
    for how, i, j, m, n in SequenceMatcher(None, a, b, autojunk=False).get_opcodes():
        together += a[i:j]
        if how != "equal":
            together += b[m:n]
    return tuple(together)
