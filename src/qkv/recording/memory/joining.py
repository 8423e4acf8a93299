"""A generation as one matrix: the prompt's queries, then those of every step over a cache.

Each step has all keys so far. Kept are each step's queries and outputs, and the keys and values
of the last one: those of the steps before are its first rows, which is checked as they come.

Where beams change places the keys of a call are no rows of the next one's, so every piece between
two changes keeps the keys of its own last call, all of them: if most steps change places, memory
grows with the square of the length. Record with keep="summary" then.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from qkv.errors import RecordingError
from qkv.recording.calls.call import Call
from qkv.recording.calls.operands import Lazy, Operands, Operation
from qkv.recording.calls.undisturbed import undisturbed
from qkv.recording.memory.folding import is_folded, unfolded
from qkv.recording.memory.merging import Step, merged
from qkv.recording.memory.rows import Rows


class Key(NamedTuple):
    """Calls that may continue each other: of one path, and equally late in their runs."""

    path: str | None
    number: int


class Continued(NamedTuple):
    """How the keys of a step follow from those of the call before it.

    Attributes:
        dropped: so many of the oldest are gone, as in a cache of a window.
        used: rows of a cache of constant size that are written; None where keys are appended.
    """

    dropped: int = 0
    used: int | None = None


@dataclass(frozen=True, eq=False)
class Kept:
    """What is kept of a call whose keys are rows of a later one's.

    Attributes:
        operands: all but queries, keys, values and output.
        q, output: give those rows.
        first: of all keys, the first that it had.
        keys: how many it had.
    """

    operands: Operands
    q: Lazy
    output: Lazy
    first: int
    keys: int

    def step(self) -> Step:
        """Return it with its rows."""
        operands = replace(self.operands, q=self.q(), output=self.output())
        return Step(operands, self.first, self.keys)


class Generation:
    """Calls that are one sequence's attention: a prompt, then one or a few queries at a time.

    Attributes:
        calls: in order; one alone where nothing continued it.
        steps: what is kept of all but the last of them.
        first: of all keys, the first that the last call had.
        dropped: keys and values before those, as a cache of a window dropped them.
        used: rows of a cache of constant size that are written; None where keys are appended.
        refused: why the call that came next does not continue it, where it looked like a step.
    """

    def __init__(self, call: Call) -> None:
        """Begin with a prompt, or with a call that stands alone."""
        self.calls = [call]
        self.steps: list[Kept] = []
        self.first = 0
        self.dropped: list[tuple[Tensor, Tensor]] = []
        self.used: int | None = None
        self.refused: str | None = None
        self._whole: tuple[Tensor, Tensor] | None = None
        self._joined: Call | None = None
        self._rows = Rows(), Rows()

    def __len__(self) -> int:
        return len(self.calls)

    @property
    def last(self) -> Call:
        """The newest call, which has its own keys and values."""
        return self.calls[-1]

    @property
    def joined(self) -> Call:
        """All of it as one call: a matrix (batch, heads, queries of all calls, keys)."""
        if len(self.calls) == 1:
            return self.calls[0]
        if self._joined is None:
            first = self.calls[0]
            self._joined = Call(first.place, first.run, self._operands)
            self._joined.index, self._joined.readings = first.index, first.readings
            self._joined.close(self.last)
        return self._joined

    def close(self) -> None:
        """Have its calls know their tensors as they are now, at the end of the block."""
        self.last.close()
        for call in self.calls[:-1]:
            call.close(self.last)
        self._joined = None

    @property
    def apart(self) -> str | None:
        """Why its calls make no single matrix, though they continue each other; else None."""
        if len(self.calls) == 1:
            return None
        try:
            self.joined.operands  # noqa: B018  laid out once, and kept
        except RecordingError as error:
            return str(error)
        return None

    @property
    def matrices(self) -> Sequence[Call]:
        """All of it as one call, or its calls one by one where they make no single matrix."""
        return self.calls if self.apart else [self.joined]

    def add(self, call: Call, continued: Continued, settle: "Settling") -> None:
        """Take up a step; the call before it reads its keys as rows of this one's from now on."""
        before = self.last
        q, output = (
            rows.add(x) for rows, x in zip(self._rows, (before.q, before.output), strict=True)
        )
        settled = settle(before.operands, before.run)
        step = Kept(settled, q, output, self.first, before.k.shape[-2])
        if continued.dropped:
            rows = slice(0, continued.dropped)
            self.dropped.append((before.k[..., rows, :].clone(), before.v[..., rows, :].clone()))
        self.used = continued.used
        self.first += continued.dropped
        self.calls.append(call)
        self.put(before, step)

    def put(self, call: Call, step: Kept) -> None:
        """Let a call read what was kept of it."""
        self.steps.append(step)
        self._whole = self._joined = None
        call.release(partial(self._read, step))

    def continues(self, call: Call) -> Continued | str | None:
        """Say how a call continues this generation, or why not; None where it is no step."""
        before = self.last.operands
        if is_folded(call.operands, before.q.shape[1]):
            part = before.projection and before.projection()
            projection = None if part is None else partial(_itself, part)
            call.revise(partial(unfolded, projection=projection))
        return continuation(before, call.operands, self.used, not self.steps)

    def whole(self) -> tuple[Float[Tensor, "b h keys d_k"], Float[Tensor, "b h keys d_v"]]:
        """Return the keys and the values of the whole sequence."""
        if not self.dropped:
            return self.last.k, self.last.v
        if self._whole is None:
            chunks = [*self.dropped, (self.last.k, self.last.v)]
            k, v = (torch.cat(parts, -2) for parts in zip(*chunks, strict=True))
            self._whole = k, v
        return self._whole

    def _read(self, kept: Kept) -> Operands:
        step, rows = kept.step(), slice(kept.first, kept.first + kept.keys)
        k, v = self.whole()
        projection = self.last.operands.projection  # the same for all, and would hold old keys
        return replace(step.operands, k=k[..., rows, :], v=v[..., rows, :], projection=projection)

    @undisturbed()
    def _operands(self) -> Operands:
        k, v = self.whole()
        used = k.shape[-2] if self.used is None else self.used
        last = Step(self.last.operands, self.first, self.last.k.shape[-2])
        steps = [kept.step() for kept in self.steps]
        return merged([*steps, last], k[..., :used, :], v[..., :used, :])


class Joining:
    """Takes up calls as they come, and tells generations from calls that stand alone."""

    def __init__(self) -> None:
        """Nothing yet."""
        self._of: dict[Call, Generation] = {}
        self._newest: dict[Key, Generation] = {}
        self._settle = Settling()

    def take(self, call: Call) -> None:
        """Put a call into the generation that it continues, or begin one with it."""
        key = Key(call.path, call.index)
        last = self._newest.get(key)
        if last is not None and last.last.run != call.run:
            continued = last.continues(call)
            if isinstance(continued, Continued):
                last.add(call, continued, self._settle)
                self._of[call] = last
                return
            if continued is not None:
                last.refused = f"in run {call.run}, {continued}"
        self._newest[key] = self._of[call] = Generation(call)

    def alone(self, call: Call) -> None:
        """Take a call that is joined with none."""
        self._of[call] = Generation(call)

    def put(self, generation: Generation) -> None:
        """Put a whole generation in, as from a file."""
        self._of.update(dict.fromkeys(generation.calls, generation))

    def drop(self, call: Call) -> None:
        """Forget a call."""
        del self._of[call]

    def of(self, calls: Iterable[Call]) -> list[Generation]:
        """Return the generations that calls belong to, in the order of their first calls."""
        return list(dict.fromkeys(self._of[call] for call in calls))

    def runs(self) -> dict[int, int]:
        """Return the first of the runs that are one generation, for each run."""
        first: dict[int, int] = {}
        for generation in dict.fromkeys(self._of.values()):
            runs = [call.run for call in generation.calls]
            start = min(first.get(run, run) for run in runs)
            first.update(dict.fromkeys(runs, start))
        return first


def continuation(
    before: Operands, now: Operands, used: int | None, fresh: bool
) -> Continued | str | None:
    """Say how the keys of a step follow from those before, why not, or None: it is no step.

    Compared is one column of the keys and one of the values, in every row of every head: a cache
    copies rows, so they are equal bit for bit, and other rows differ in every column.

    Args:
        before, now: two calls of one module, one after the other.
        used: rows of a cache of constant size that were written, where that is known.
        fresh: whether `before` is the first call of its generation.
    """
    if now.q.is_meta:
        return None  # there are no numbers to compare
    if not _alike(before.q, now.q) or not _alike(before.k, now.k) or not _alike(before.v, now.v):
        return None
    new, had, has = now.q.shape[-2], before.k.shape[-2], now.k.shape[-2]
    if _same_memory(before.k, now.k) and _same_memory(before.v, now.v):
        return Continued()  # the encoder's keys, kept between the steps
    dropped = had + new - has
    appended = used is None or used == had  # a full cache of a window goes on as one that grows
    if appended and 0 <= dropped < had and _equal(before, now, dropped, has - new):
        return Continued(dropped)
    if fresh and dropped < 0 and _equal(before, now, 0, had):
        return Continued(used=had + new)  # a prompt saw the written rows alone, a step all of them
    if had == has and new < has:
        rows = _rewritten(before, now)
        start, least = rows.start, before.q.shape[-2] if fresh else used or has
        follows = start == least or (fresh and start > least)
        if follows and len(rows) == new:
            return Continued(used=rows.stop)
    looks_like_a_step = new < has and dropped == 0
    return _refusal(before, now) if looks_like_a_step else None


def _alike(a: Tensor, b: Tensor) -> bool:
    """Whether they differ in their rows at most."""
    same = a.dtype == b.dtype and a.device == b.device and a.shape[-1] == b.shape[-1]
    return same and a.shape[:-2] == b.shape[:-2]


def _same_memory(a: Tensor, b: Tensor) -> bool:
    return a.data_ptr() == b.data_ptr() and a.shape == b.shape and a.stride() == b.stride()


def _columns(operands: Operands) -> Float[Tensor, "two batch heads keys"]:
    """One column of the keys and one of the values."""
    return torch.stack((operands.k[..., 0], operands.v[..., -1]))


def _equal(before: Operands, now: Operands, dropped: int, rows: int) -> bool:
    k = torch.equal(before.k[..., dropped:, 0], now.k[..., :rows, 0])
    return k and torch.equal(before.v[..., dropped:, -1], now.v[..., :rows, -1])


def _rewritten(before: Operands, now: Operands) -> range:
    """Which rows of a cache of constant size were overwritten; none if they are no run."""
    differ = _columns(before) != _columns(now)
    rows = differ.flatten(0, 2).any(0).nonzero().flatten().tolist()
    if not rows or rows[-1] - rows[0] + 1 != len(rows):
        return range(0)
    return range(rows[0], rows[-1] + 1)


def _refusal(before: Operands, now: Operands) -> str:
    """Why a call that has the shapes of a step is none: beams in another order, or other keys."""
    keys = before.k.shape[-2]
    old, new = _columns(before), _columns(now)[..., :keys]
    came = []
    for beam in range(new.shape[1]):
        same = (old == new[:, beam : beam + 1]).all(dim=(0, 2, 3)).nonzero().flatten().tolist()
        if not same:
            return "its keys are not those of the run before with new ones at their end"
        came.append(beam if beam in same else same[0])
    moved = [f"{beam} goes on from {parent}" for beam, parent in enumerate(came) if beam != parent]
    return f"beams were reordered ({', '.join(moved)})"


@dataclass(eq=False)
class Settling:
    """Makes what a step keeps its own: small, and changed by nothing that the model does later.

    Masks that layers share stay shared.

    Attributes:
        run: the run whose masks are remembered.
        seen: the mask as it was, and what is kept of it, by where it lies.
    """

    run: int | None = None

    def __post_init__(self) -> None:
        """Nothing is remembered yet."""
        self.seen: dict[tuple[object, ...], tuple[Tensor, Tensor]] = {}
        self._empty: dict[tuple[object, ...], Tensor] = {}

    def __call__(self, operands: Operands, run: int) -> Operands:
        """Return operands without rows and keys, whose other tensors are copies."""
        if run != self.run:
            self.run, self.seen = run, {}
        return replace(
            operands,
            q=self._emptied(operands.q),
            output=self._emptied(operands.output),
            scores=self._settled(operands.scores),
            after=self._settled(operands.after),
            sinks=self._kept(operands.sinks),
            noise=self._kept(operands.noise),
            projection=None,
            k=self._emptied(operands.k),
            v=self._emptied(operands.v),
        )

    def _settled(self, operations: Sequence[Operation]) -> tuple[Operation, ...]:
        settled = (
            replace(step, operand=self._kept(step.operand), other=self._kept(step.other))
            for step in operations
        )
        return tuple(step for step in settled if not _does_nothing(step))

    def _emptied(self, x: Tensor) -> Tensor:
        """Return a tensor without rows, the same one each time."""
        key = (*x.shape[:-2], x.shape[-1], x.dtype, x.device)
        if key not in self._empty:
            self._empty[key] = x.new_empty((*x.shape[:-2], 0, x.shape[-1]))
        return self._empty[key]

    def _kept(self, lazy: Lazy | None) -> Callable[[], Tensor] | None:
        if lazy is None:
            return None
        tensor = lazy()
        key = (tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
        if key not in self.seen:
            self.seen[key] = tensor, tensor.clone()
        return partial(_itself, self.seen[key][1])


def _itself(tensor: Tensor) -> Tensor:
    return tensor


def _does_nothing(operation: Operation) -> bool:
    """Whether it hides nothing and adds 0: the mask of a step that may look at every key."""
    if operation.operand is None:
        return False
    if operation.kind in ("fill", "add"):
        return not operation.operand().any()
    return operation.kind == "where" and bool(operation.operand().all())


def why_apart(generations: Sequence[Generation]) -> str:
    """Say why the calls of one path are several matrices."""
    refused = next((g.refused for g in generations if g.refused), None)
    return refused or "its calls do not continue each other over a cache"
