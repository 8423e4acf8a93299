"""A recording as JSON, in which tensors are numbers: the n-th of the pieces' views."""

from dataclasses import fields
from typing import TYPE_CHECKING, Any

from qkv.errors import RecordingError
from qkv.recording.calls.operands import Lazy, Operands, Operation
from qkv.recording.files.pieces import Pieces
from qkv.recording.memory.joining import Generation, Kept, Key
from qkv.recording.memory.measuring import Measured
from qkv.weights.summary import Summary

if TYPE_CHECKING:
    from qkv.recording.recording import Recording

Json = dict[str, Any]
"""An object of JSON."""

TENSORS = ("q", "k", "v", "output")
LAZY = ("sinks", "noise", "projection")
PLAIN = ("empty_is_zero", "how", "same_source")
"""Fields of Operands, by what they hold."""


class Writer:
    """Writes a recording.

    Attributes:
        pieces: the tensors met.
    """

    def __init__(self) -> None:
        """No tensor yet."""
        self.pieces = Pieces()

    def recording(self, recording: "Recording") -> Json:
        """Write everything; of a generation all calls, though only some were chosen."""
        keeping, chosen = recording.keeping, list(recording)
        generations = keeping.joining.of(chosen)
        calls = [call for generation in generations for call in generation.calls]
        numbers = {call: number for number, call in enumerate(calls)}
        brief = keeping.keep == "summary"
        header = {
            "model": recording.model,
            "keep": keeping.keep,
            "notes": keeping.notes,
            "tokens": None if recording.tokens is None else recording.tokens.texts,
            "calls": [
                {"place": call.place, "run": call.run, "index": call.index} for call in calls
            ],
            "order": [numbers[call] for call in chosen],
            "generations": [
                {"calls": [numbers[call] for call in generation.calls]}
                | (self._brief(recording, generation) if brief else self._generation(generation))
                for generation in generations
            ],
            "measured": [self._measured(*item) for item in (recording.gathered or {}).items()],
        }
        return header | {"views": self.pieces.views()}

    def _brief(self, recording: "Recording", generation: Generation) -> Json:
        facts = recording.keeping.facts(generation.last)
        return {"facts": facts, "summary": self._summary(generation.last.summary)}

    def _generation(self, generation: Generation) -> Json:
        return {
            "steps": [self._step(step) for step in generation.steps],
            "last": self._operands(generation.last.operands),
            "first": generation.first,
            "dropped": [[self.pieces.add(x) for x in two] for two in generation.dropped],
            "used": generation.used,
            "refused": generation.refused,
        }

    def _step(self, kept: Kept) -> Json:
        step = kept.step()
        operands = self._operands(step.operands)
        return {"operands": operands, "first": step.first, "keys": step.keys}

    def _operands(self, operands: Operands) -> Json:
        written: Json = {name: self.pieces.add(getattr(operands, name)) for name in TENSORS}
        written |= {name: self._lazy(getattr(operands, name)) for name in LAZY}
        written |= {name: getattr(operands, name) for name in PLAIN}
        written["dropout"] = number(operands.dropout)
        for name in ("scores", "after"):
            written[name] = [self._operation(one) for one in getattr(operands, name)]
        return written

    def _operation(self, operation: Operation) -> Json:
        if operation.function is not None:
            raise RecordingError(
                "a call changed its scores by a function (FlexAttention's score_mod), and a file "
                "holds no code; save the others, seen.select(path), or record with keep='summary'"
            )
        limits = operation.limits
        written = {
            "kind": operation.kind,
            "operand": self._lazy(operation.operand),
            "number": number(operation.number),
            "other": self._lazy(operation.other),
            "limits": None if limits is None else [number(limit) for limit in limits],
            "dtype": None if operation.dtype is None else str(operation.dtype)[len("torch.") :],
        }
        return {name: value for name, value in written.items() if value is not None}

    def _lazy(self, lazy: Lazy | None) -> int | None:
        tensor = None if lazy is None else lazy()
        return None if tensor is None else self.pieces.add(tensor)

    def _summary(self, summary: Summary | None) -> Json:
        assert summary is not None
        tensors = {part.name: getattr(summary, part.name) for part in fields(summary)}
        return {n: None if t is None else self.pieces.add(t) for n, t in tensors.items()}

    def _measured(self, key: Key, measured: Measured) -> Json:
        means = {
            name: [self.pieces.add(part) for part in mean] for name, mean in measured.means.items()
        }
        return {"key": key, "calls": measured.calls, "means": means}


def number(value: float | None) -> float | str | None:
    """Write a number as JSON has it, which knows no −∞: as a text."""
    if value is None or abs(value) < float("inf"):
        return value
    return str(value)
