"""What is kept of the calls of a model: all that they were computed from, or a summary alone."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import fields
from functools import partial
from typing import Literal, NamedTuple, NoReturn

from torch import Tensor

from qkv.errors import RecordingError
from qkv.recording.calls.call import Call
from qkv.recording.calls.readings import Readings
from qkv.recording.calls.undisturbed import undisturbed
from qkv.recording.memory.joining import Joining, Key
from qkv.recording.memory.measuring import Gathered, summarise
from qkv.recording.tokens import Tokens
from qkv.weights.summary import Summary

Keep = Literal["inputs", "summary"]

BYTES = 1 << 26
"""Summaries that are kept at most, the newest of each module in any case: 64 MB."""

OWN = 1 << 14
"""Bytes that a call takes besides the tensors of its summary, as objects of Python."""

RUNS = 8
"""Runs whose calls are counted at the same time: those of threads may overlap."""


class Facts(NamedTuple):
    """What a line of a recording says about a call, in words."""

    kind: str
    heads: str
    size: str
    mask: str
    how: str


class Keeping:
    """Takes the calls as they come; a Recording reads what is there.

    Args:
        keep: "inputs" keeps queries, keys, values, masks and outputs by reference, and of a
            generation the new rows. "summary" computes what `Call.summary` holds and lets go of
            everything else; of older calls, beyond BYTES, only their part in the means is left.
        tokens: of what the model reads, for what is measured of words.
        on_call: is told of every call.

    Attributes:
        calls: in order, as keys.
        joining: generations among them.
        gathered: means of what was measured, where only summaries are kept.
        readings: what was read of the masks that the calls share.
        notes: what has to be known about how it was recorded.
        failure: what was raised while a call was kept; the model went on.
    """

    def __init__(
        self,
        keep: Keep = "inputs",
        tokens: Tokens | None = None,
        on_call: Callable[[Call], object] | None = None,
    ) -> None:
        """Nothing has come yet."""
        self.keep, self.tokens, self._on_call = keep, tokens, on_call
        self.calls: dict[Call, None] = {}
        self.joining = Joining()
        self.gathered = Gathered()
        self.readings = Readings()
        self.notes: list[str] = []
        self.failure: Exception | None = None
        self._facts: dict[Call, Facts] = {}
        self._counts: dict[int, dict[str | None, int]] = {}
        self._newest: dict[Key, Call] = {}
        self._bytes = 0

    def take(self, call: Call) -> None:
        """Keep a call; called by the recorder, in the middle of the model."""
        if self.failure is not None:
            return
        try:
            with undisturbed():
                self._take(call)
        except Exception as failure:  # raised again after the block: the model must not break
            self.failure = failure

    def facts(self, call: Call) -> Facts:
        """Say in words what a call was."""
        try:
            return self._facts.get(call) or facts_of(call)
        except RecordingError:  # which says more where the call itself is asked
            return Facts("unknown", "", "", "written into after the block", "")

    def put(self, call: Call, facts: Facts | None = None) -> None:
        """Put a call in whose index is known, as from a file."""
        call.readings = self.readings
        self.calls[call] = None
        if facts is not None:
            self._facts[call] = facts

    def close(self) -> None:
        """Have the calls know their tensors as they are now, at the end of the block."""
        if self.keep != "inputs":
            return
        with undisturbed():
            for generation in self.joining.of(self.calls):
                with suppress(Exception):  # what has no layout says so when it is asked for
                    generation.close()

    def _take(self, call: Call) -> None:
        call.index, call.readings = self._count(call), self.readings
        if self._on_call is not None:
            self._on_call(call)
        self.put(call)
        if self.keep == "inputs":
            self.joining.take(call)
        else:
            self._summarise(call)

    def _count(self, call: Call) -> int:
        counts = self._counts.setdefault(call.run, {})
        if len(self._counts) > RUNS:
            del self._counts[next(iter(self._counts))]
        number = counts.get(call.path, 0)
        counts[call.path] = number + 1
        return number

    def _summarise(self, call: Call) -> None:
        key = Key(call.path, call.index)
        self._facts[call] = facts_of(call)
        call.summary = summarise(call, self.tokens)
        self.gathered.add(key, call.summary)
        call.release(partial(let_go, call.path))
        self.joining.alone(call)
        self._newest[key] = call
        self._bytes += _size(call.summary)
        while self._bytes > BYTES and self._drop_oldest():
            pass

    def _drop_oldest(self) -> bool:
        for call in self.calls:
            if self._newest[Key(call.path, call.index)] is not call:
                self._bytes -= _size(call.summary)
                del self.calls[call], self._facts[call]
                self.joining.drop(call)
                return True
        return False


def facts_of(call: Call) -> Facts:
    """Say in words what a call was."""
    batch, heads, queries, _ = call.q.shape
    keys, kv_heads = call.k.shape[-2], call.k.shape[1]
    return Facts(
        call.kind,
        str(heads) if heads == kv_heads else f"{heads} ({kv_heads} of keys)",
        f"{queries} × {keys}" if batch == 1 else f"{queries} × {keys}, batch {batch}",
        "unknown: no numbers" if call.q.is_meta else str(call.blocking),
        call.operands.how,
    )


def let_go(path: str | None) -> NoReturn:
    """Raise RecordingError: a summary is all that is left of a call."""
    raise RecordingError(
        f"queries, keys and values of {path or 'this call'} were let go, as keep='summary' says; "
        f"what is left of it is call.summary, and its part in seen.table(). Record with "
        f"keep='inputs' to ask for more"
    )


def _size(summary: Summary | None) -> int:
    parts = [] if summary is None else [getattr(summary, part.name) for part in fields(summary)]
    return OWN + sum(part.nbytes for part in parts if isinstance(part, Tensor))
