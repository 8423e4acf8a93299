"""A recording out of its JSON and its tensors; whatever cannot be meant is an error."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import partial
from typing import TYPE_CHECKING, Any, get_args

import torch
from torch import Tensor

from qkv.errors import FileError
from qkv.recording.calls.call import Call
from qkv.recording.calls.operands import Kind, Operands, Operation
from qkv.recording.calls.place import Place
from qkv.recording.files import checked
from qkv.recording.files.writing import LAZY, TENSORS, Json
from qkv.recording.memory.joining import Generation, Kept, Key
from qkv.recording.memory.keeping import Facts, Keep, Keeping, let_go
from qkv.recording.memory.measuring import Mean, Measured
from qkv.recording.tokens import Tokens
from qkv.weights.summary import MEASURES, Summary

if TYPE_CHECKING:
    from qkv.recording.recording import Recording


DTYPES = {
    str(dtype)[len("torch.") :]: dtype
    for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16)
}
"""Precisions that an operation may have been rounded to, by name."""


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
        tokens = None if header["tokens"] is None else Tokens.read(header["tokens"])
        keeping = Keeping(header["keep"], tokens)
        keeping.notes = [checked.text(note, "a note") for note in header["notes"]]
        calls = [self._call(about) for about in header["calls"]]
        parts = [self._chosen(about["calls"], calls) for about in header["generations"]]
        if sum(map(len, parts)) != len(calls) or len({c for part in parts for c in part}) < len(
            calls
        ):
            raise FileError("a call is of no generation, or of two")
        facts: dict[Call, Facts] = {}
        for about, ours in zip(header["generations"], parts, strict=True):
            if keeping.keep == "summary":
                facts[ours[0]] = self._brief(ours[0], about)
                keeping.joining.alone(ours[0])
            else:
                keeping.joining.put(self._generation(ours, about))
        for call in self._chosen(header["order"], calls):
            keeping.put(call, facts.get(call))
        for about in header["measured"]:
            path, number = about["key"]
            keeping.gathered[Key(_path(path), checked.whole(number, "a key"))] = self._measured(
                about
            )
        return Recording(checked.text(header["model"], "model"), keeping, tokens=tokens)

    def _chosen(self, numbers: object, calls: Sequence[Call]) -> list[Call]:
        """Return some of the calls, each of them once."""
        found = [calls[self._index(n, calls)] for n in checked.items(numbers, "calls")]
        if not found or len(set(found)) < len(found):
            raise FileError(f"calls are {numbers}; wanted each of them once")
        return found

    def _call(self, about: Json) -> Call:
        path, file, line = about["place"]
        place = Place(_path(path), checked.text(file, "file"), checked.whole(line, "line"))
        call = Call(place, checked.whole(about["run"], "run", -1), partial(let_go, path))
        call.index = checked.whole(about["index"], "index")
        return call

    def _brief(self, call: Call, about: Json) -> Facts:
        numbers = {part.name: about["summary"][part.name] for part in fields(Summary)}
        parts: dict[str, Any] = {
            n: None if i is None else self._tensor(i) for n, i in numbers.items()
        }
        call.summary = checked.like_its_measures(Summary(**parts))
        said = checked.items(about["facts"], "facts", len(Facts._fields))
        return Facts(*(checked.text(one, "a fact") for one in said))

    def _generation(self, calls: Sequence[Call], about: Json) -> Generation:
        generation = Generation(calls[0])
        generation.calls = list(calls)
        last = checked.same_sizes(self._operands(about["last"]))
        calls[-1].release(partial(_itself, last))
        generation.dropped = [(self._tensor(k), self._tensor(v)) for k, v in about["dropped"]]
        for part in generation.dropped:
            for rows, kept in zip(part, (last.k, last.v), strict=True):
                if rows[:, :, :0].shape != kept[:, :, :0].shape or rows.dtype != kept.dtype:
                    raise FileError(f"keys {tuple(rows.shape)} beside {tuple(kept.shape)}")
        gone = sum(k.shape[2] for k, _ in generation.dropped)
        keys = gone + last.k.shape[2]
        generation.first = checked.whole(about["first"], "first", gone, gone)
        if about["used"] is not None:
            generation.used = checked.whole(about["used"], "used", 0, keys)
        if about["refused"] is not None:
            generation.refused = checked.text(about["refused"], "refused")
        for call, step in zip(calls[:-1], about["steps"], strict=True):
            first = checked.whole(step["first"], "first", 0, keys)
            own = checked.whole(step["keys"], "keys", 0, keys - first)
            operands = checked.same_sizes(self._operands(step["operands"]), own)
            q, output = partial(_same, operands.q), partial(_same, operands.output)
            generation.put(call, Kept(operands, q, output, first, own))
        return generation

    def _operands(self, about: Json) -> Operands:
        tensors: dict[str, Any] = {name: self._tensor(about[name]) for name in TENSORS}
        others: dict[str, Any] = {name: self._lazy(about[name]) for name in LAZY}
        others["empty_is_zero"] = checked.flag(about["empty_is_zero"], "empty_is_zero")
        others["how"] = checked.text(about["how"], "how")
        if about["same_source"] is not None:
            others["same_source"] = checked.flag(about["same_source"], "same_source")
        dropout = float(about["dropout"])
        if not 0 <= dropout <= 1:
            raise FileError(f"dropout is {dropout}; wanted 0 to 1")
        return Operands(
            **tensors,
            **others,
            dropout=dropout,
            scores=tuple(self._operation(one) for one in about["scores"]),
            after=tuple(self._operation(one) for one in about["after"]),
        )

    def _operation(self, about: Json) -> Operation:
        if about["kind"] not in get_args(Kind):
            raise FileError(f"an operation is called {about['kind']!r}")
        limits = about.get("limits")
        return checked.complete(
            Operation(
                about["kind"],
                self._lazy(about.get("operand")),
                _number(about.get("number")),
                self._lazy(about.get("other")),
                None if limits is None else (_number(limits[0]), _number(limits[1])),
                dtype=None if "dtype" not in about else DTYPES[about["dtype"]],
            )
        )

    def _measured(self, about: Json) -> Measured:
        means: Mapping[str, Any] = about["means"]
        read = {name: Mean(*map(self._tensor, parts)) for name, parts in means.items()}
        wanted = {"entropy", "first", "spread"}
        sizes = {tuple(part.shape) for mean in read.values() for part in mean}
        if not wanted <= read.keys() <= {*MEASURES} or len(sizes) != 1 or len(min(sizes)) != 1:
            raise FileError(f"means {', '.join(read)} with axes {sizes}")
        return Measured(read, checked.whole(about["calls"], "calls", 1))

    def _lazy(self, number: object) -> Callable[[], Tensor] | None:
        return None if number is None else partial(_same, self._tensor(number))

    def _tensor(self, number: object) -> Tensor:
        return self._tensors[self._index(number, self._tensors)]

    def _index(self, number: object, among: Sequence[object]) -> int:
        return checked.whole(number, "a number", 0, len(among) - 1)


def _path(value: object) -> str | None:
    return None if value is None else checked.text(value, "a path")


def _number(value: float | str | None) -> float | None:
    return None if value is None else float(value)


def _itself(operands: Operands) -> Operands:
    return operands


def _same(tensor: Tensor) -> Tensor:
    return tensor
