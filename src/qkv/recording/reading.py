"""A recording out of its JSON and its tensors; whatever cannot be meant is an error."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import partial
from typing import TYPE_CHECKING, Any, get_args

from torch import Tensor

from qkv.errors import FileError
from qkv.recording.call import Call
from qkv.recording.joining import Generation, Kept, Key
from qkv.recording.keeping import Facts, Keep, Keeping, let_go
from qkv.recording.measuring import Mean, Measured
from qkv.recording.operands import Kind, Operands, Operation
from qkv.recording.places import Place
from qkv.recording.tokens import Tokens
from qkv.recording.writing import LAZY, PLAIN, TENSORS, Json
from qkv.weights.summary import Summary

if TYPE_CHECKING:
    from qkv.recording.recording import Recording


class Reader:
    """Reads a recording.

    Args:
        tensors: by their number.
    """

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        """Nothing has been read yet."""
        self._tensors = tensors

    def recording(self, header: Json) -> "Recording":
        """Read everything."""
        from qkv.recording.recording import Recording

        if header["keep"] not in get_args(Keep):
            raise FileError(f"keep is {header['keep']!r}")
        texts = header["tokens"]
        tokens = None if texts is None else Tokens(tuple(tuple(map(str, row)) for row in texts))
        keeping = Keeping(header["keep"], tokens)
        keeping.notes = [str(note) for note in header["notes"]]
        calls = [self._call(about) for about in header["calls"]]
        facts: dict[Call, Facts] = {}
        for about in header["generations"]:
            ours = [calls[self._index(number, calls)] for number in about["calls"]]
            if keeping.keep == "summary":
                facts[ours[0]] = self._brief(ours[0], about)
                keeping.joining.alone(ours[0])
            else:
                keeping.joining.put(self._generation(ours, about))
        for number in header["order"]:
            call = calls[self._index(number, calls)]
            keeping.put(call, facts.get(call))
        for about in header["measured"]:
            keeping.gathered[Key(*about["key"])] = self._measured(about)
        return Recording(str(header["model"]), keeping, tokens=tokens)

    def _call(self, about: Json) -> Call:
        path, file, line = about["place"]
        call = Call(Place(path, str(file), int(line)), int(about["run"]), partial(let_go, path))
        call.index = int(about["index"])
        return call

    def _brief(self, call: Call, about: Json) -> Facts:
        numbers = {part.name: about["summary"][part.name] for part in fields(Summary)}
        parts: dict[str, Any] = {
            n: None if i is None else self._tensor(i) for n, i in numbers.items()
        }
        call.summary = Summary(**parts)
        return Facts(*map(str, about["facts"]))

    def _generation(self, calls: Sequence[Call], about: Json) -> Generation:
        generation = Generation(calls[0])
        generation.calls = list(calls)
        last = self._operands(about["last"])
        calls[-1].release(partial(_itself, last))
        generation.first, generation.used = about["first"], about["used"]
        generation.refused = about["refused"]
        generation.dropped = [(self._tensor(k), self._tensor(v)) for k, v in about["dropped"]]
        for call, step in zip(calls[:-1], about["steps"], strict=True):
            operands = self._operands(step["operands"])
            q, output = partial(_same, operands.q), partial(_same, operands.output)
            kept = Kept(operands, q, output, int(step["first"]), int(step["keys"]))
            generation.put(call, kept)
        return generation

    def _operands(self, about: Json) -> Operands:
        tensors: dict[str, Any] = {name: self._tensor(about[name]) for name in TENSORS}
        others: dict[str, Any] = {name: self._lazy(about[name]) for name in LAZY}
        others |= {name: about[name] for name in PLAIN}
        for name, tensor in tensors.items():
            if tensor.dim() != 4 or not tensor.is_floating_point():
                raise FileError(f"{name} is {tensor.dtype} with axes {tuple(tensor.shape)}")
        return Operands(
            **tensors,
            **others,
            dropout=float(about["dropout"]),
            scores=tuple(self._operation(one) for one in about["scores"]),
            after=tuple(self._operation(one) for one in about["after"]),
        )

    def _operation(self, about: Json) -> Operation:
        if about["kind"] not in get_args(Kind):
            raise FileError(f"an operation is called {about['kind']!r}")
        limits = about.get("limits")
        return Operation(
            about["kind"],
            self._lazy(about.get("operand")),
            _number(about.get("number")),
            self._lazy(about.get("other")),
            None if limits is None else (_number(limits[0]), _number(limits[1])),
        )

    def _measured(self, about: Json) -> Measured:
        means: Mapping[str, Any] = about["means"]
        read = {name: Mean(self._tensor(total), float(n)) for name, (total, n) in means.items()}
        return Measured(read, int(about["calls"]), int(about["keys"]))

    def _lazy(self, number: int | None) -> Callable[[], Tensor] | None:
        return None if number is None else partial(_same, self._tensor(number))

    def _tensor(self, number: int) -> Tensor:
        return self._tensors[self._index(number, self._tensors)]

    def _index(self, number: int, among: Sequence[object]) -> int:
        if not 0 <= number < len(among):
            raise FileError(f"there is no number {number} among {len(among)}")
        return number


def _number(value: float | str | None) -> float | None:
    return None if value is None else float(value)


def _itself(operands: Operands) -> Operands:
    return operands


def _same(tensor: Tensor) -> Tensor:
    return tensor
