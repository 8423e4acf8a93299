"""`Recording`: the attention of a model as it ran, call by call."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from fnmatch import fnmatchcase
from itertools import islice
from os import PathLike
from typing import TYPE_CHECKING, NoReturn

from qkv.errors import ArgumentError, NameNotFoundError, RecordingError
from qkv.recording.calls.call import Call
from qkv.recording.columns import MOST, columns, counted
from qkv.recording.memory.joining import Generation, Key, why_apart
from qkv.recording.memory.keeping import Facts, Keeping
from qkv.recording.memory.measuring import Measured
from qkv.recording.tokens import Given, Tokens

if TYPE_CHECKING:
    from qkv.recording.comparing import Comparison
    from qkv.recording.table import Table
    from qkv.weights.summary import HeadSummary


NUMBERED = re.compile(r"(.*)\[(\d+)\]")
"""A path, and which of its calls within a run."""

DOUBTFUL = 1000
"""Units of the last place from which on an output is another one, and not one rounded otherwise."""


@dataclass(frozen=True, eq=False, repr=False)
class Recording:
    """The calls of a model in order, each of them one attention.

        with qkv.watch(model) as seen:
            model(**inputs)
        print(seen)                                      a line a module
        seen["encoder.layer.3.attention.self"].weights.entropy()
        seen.table()                                     a line a head

    Whatever is asked of a recording in which no attention was found raises RecordingError, which
    says what came nearest; `len(seen)` is then 0.

    Attributes:
        model: name of the model's class.
        keeping: what was kept; a recording in progress grows.
        chosen: the calls that `select` or `runs` chose; None for all of them.
        missed: says what came near to an attention, where none was found.
        tokens: the tokens of what the model read, where they were given.
        whole_modules: whether of each module here all calls are.
        aliases: the other names of modules that have several, by which they can be asked for.
    """

    model: str
    keeping: Keeping
    chosen: tuple[Call, ...] | None = None
    missed: Callable[[], str] = field(default=lambda: "")
    tokens: Tokens | None = None
    whole_modules: bool = True
    aliases: Callable[[], Mapping[str, str]] = dict

    @property
    def gathered(self) -> Mapping[Key, Measured] | None:
        """Means over the calls of each module, older ones included, where only these are kept."""
        if self.keeping.keep == "inputs" or not self.whole_modules:
            return None
        keys = {Key(call.path, call.index) for call in self._found()}
        return {key: found for key, found in self.keeping.gathered.items() if key in keys}

    def __len__(self) -> int:
        return len(self._calls)

    def __iter__(self) -> Iterator[Call]:
        """Go through the calls in the order in which they ran; steps of a generation one by one.

        Raises:
            RecordingError: there is none.
        """
        return iter(self._found())

    def __contains__(self, asked: object) -> bool:
        """Whether a module of that path was recorded; or whether a call is one of these."""
        if not isinstance(asked, str):
            return asked in self._calls
        try:
            self._named(asked)
        except (NameNotFoundError, RecordingError):
            return False
        return True

    def __getitem__(self, path: str) -> Call:
        """Return the attention of a module, the steps of a generation joined into one matrix.

        Where a module is called several times in one run (shared layers), `seen["path[3]"]` is
        the fourth of its calls.

        Raises:
            NameNotFoundError: no module has that path (lists the nearest), or it has several
                matrices: says why, and how to choose one.
            RecordingError: there is no call at all; or the steps of a generation were computed in
                ways that make no single matrix.
        """
        path, index = self._named(path)
        ours = [g for g in self._generations() if (g.last.path or "") == path]
        found = [g for g in ours if index is None or g.last.index == index]
        if len(found) == 1:
            if found[0].apart:
                raise RecordingError(f"{path!r} has no single matrix: {found[0].apart}")
            return found[0].joined
        if found:
            raise NameNotFoundError(self._several(path, found))
        last = max(generation.last.index for generation in ours)
        raise NameNotFoundError(
            f"{path} has no call {index} within a run; wanted a number from 0 to {last}"
        )

    @property
    def paths(self) -> tuple[str, ...]:
        """The modules in the order of their first calls; "" for what ran outside of all."""
        there = dict.fromkeys(call.path or "" for call in self._found())
        ever = dict.fromkeys(key.path or "" for key in self.gathered or ())
        return tuple(path for path in ever or there if path in there)

    @property
    def runs(self) -> tuple["Recording", ...]:
        """A recording for each forward of the model; the forwards of one generation are one."""
        of_run = self.keeping.joining.runs()
        parts: dict[int, list[Call]] = {}
        for call in self._found():
            parts.setdefault(of_run.get(call.run, call.run), []).append(call)
        whole = self.whole_modules and len(parts) == 1
        return tuple(self._part(calls, whole) for calls in parts.values())

    @property
    def notes(self) -> tuple[str, ...]:
        """What has to be known about it: compiled modules, other threads, numbers that are off.

        A call is named here whose `error` was asked for and is more than rounding.
        """
        return (*self.keeping.notes, *self._doubts())

    def select(self, glob: str) -> "Recording":
        """Return the calls of the modules that match: "*.layer.3.*".

        Raises:
            NameNotFoundError: none does.
            RecordingError: there is no call at all.
        """
        if not isinstance(glob, str):
            raise ArgumentError(f"glob is {glob!r}; wanted a pattern for paths: '*.layer.3.*'")
        calls = [call for call in self._found() if (call.path or "") == glob]
        calls = calls or [c for c in self._found() if fnmatchcase(c.path or "", glob)]
        if not calls:
            raise NameNotFoundError(f"no module matches {glob!r}; {self._nearest(glob)}")
        return self._part(calls, self.whole_modules)

    def with_tokens(self, tokens: Given, tokenizer: object | None = None) -> "Recording":
        """Return the same recording with the tokens known, as after a generation.

        Args:
            tokens, tokenizer: as `watch` takes them.

        Raises:
            ArgumentError: they are none.
        """
        return replace(self, tokens=Tokens.read(tokens, tokenizer))

    def table(self) -> "Table":
        """Measure every head: how wide it looks, how far, and at what; a line a head.

        Raises:
            RecordingError: there is no call at all.
        """
        from qkv.recording.table import table

        return table(self)

    def find(self, kind: str) -> "list[HeadSummary]":
        """Return the heads of one kind, such as "induction", the clearest first.

        Raises:
            ArgumentError: there is no such kind, or it takes tokens, which were not given.
            RecordingError: there is no call at all.
        """
        return self.table().find(kind)

    def compare(self, other: "Recording", *, tolerance: float | None = None) -> "Comparison":
        """Put two runs, or two models, side by side: where do they depart, and in what?

        Args:
            other: another recording; its modules are paired by path, or by order where no path
                is shared.
            tolerance: largest difference of a tensor that counts as none, as a share of its
                largest number; by default 1e-4, or 16 eps of a half precision.

        Raises:
            ArgumentError: the other is no recording, or the tolerance no number from 0 on.
            RecordingError: one of them holds no call.
        """
        from qkv.recording.comparing import compare

        return compare(self, other, tolerance)

    def save(self, file: str | PathLike[str]) -> None:
        """Write it to one file: tensors as safetensors, the rest as JSON in its header.

        Raises:
            FileError: it cannot be written; nothing half-written is left.
            RecordingError: there is no call at all.
        """
        from qkv.recording.files.storing import save

        save(self, file)

    @staticmethod
    def load(file: str | PathLike[str]) -> "Recording":
        """Read what `save` wrote; the recording answers as it did.

        Raises:
            FileError: it is not there, or no recording.
        """
        from qkv.recording.files.storing import load

        return load(file)

    def joined(self) -> list[Call]:
        """Return every matrix: calls that stand alone, and generations as one call each.

        A generation whose steps make no single matrix stands as its calls, one by one.
        """
        self._found()
        return [call for generation in self._generations() for call in generation.matrices]

    def __repr__(self) -> str:
        calls = self._calls
        if not calls:
            return f"Recording of {self.model}, empty: {self._why_empty()}"
        paths = list(self.paths)
        title = (
            f"Recording of {self.model}: {counted(len(calls), 'call')} of "
            f"{counted(len(paths), 'module')} in {counted(len(self.runs), 'run')}"
        )
        headings = ("path", "calls", "kind", "heads", "queries × keys", "mask", "computed by")
        rows = [self._row(path) for path in paths[:MOST]]
        rows += [("",) * len(headings)] * (len(paths) - len(rows))
        table = columns(headings, rows, right=range(3, 5), most=MOST)
        lines = [title, table, *(f"  note: {note}" for note in self.notes)]
        return "\n".join(lines)

    def __reduce__(self) -> NoReturn:
        raise RecordingError(
            "a recording is neither pickled nor copied; wanted seen.save(file), and "
            "Recording.load(file) where it is to be read"
        )

    @property
    def _calls(self) -> Sequence[Call]:
        return tuple(self.keeping.calls) if self.chosen is None else self.chosen

    def _found(self) -> Sequence[Call]:
        calls = self._calls
        if not calls:
            raise RecordingError(self._why_empty())
        return calls

    def _why_empty(self) -> str:
        return self.missed() or f"no attention of {self.model} was recorded"

    def _generations(self) -> list[Generation]:
        """The matrices that the calls belong to, in order."""
        return self.keeping.joining.of(self._calls)

    def _part(self, calls: Sequence[Call], whole: bool) -> "Recording":
        return replace(self, chosen=tuple(calls), whole_modules=whole)

    def _named(self, name: str) -> tuple[str, int | None]:
        """Take "path[3]" apart."""
        if not isinstance(name, str):
            raise ArgumentError(
                f"a recording was asked for [{name!r}]; wanted the path of a module, "
                f"seen[{self.paths[0]!r}], or a call by its place: list(seen)[0]"
            )
        paths = self.paths
        if name in paths:
            return name, None
        numbered = NUMBERED.fullmatch(name)
        if numbered is not None and numbered[1] in paths:
            return numbered[1], int(numbered[2])
        other, number = (name, None) if numbered is None else (numbered[1], int(numbered[2]))
        alias = self.aliases().get(other)
        if alias in paths:
            return alias, number
        raise NameNotFoundError(f"no module is called {name!r}; {self._nearest(name)}")

    def _nearest(self, path: str) -> str:
        near = get_close_matches(path, self.paths, n=3, cutoff=0.4)
        if near:
            return f"nearest: {', '.join(near)}"
        few = self.paths[:10]
        more = f", … ({len(self.paths)} in all)" if len(self.paths) > len(few) else ""
        return f"there are: {', '.join(name or repr(name) for name in few)}{more}"

    def _several(self, path: str, found: Sequence[Generation]) -> str:
        indices = sorted({generation.last.index for generation in found})
        what = f"{path!r} has {len(found)} matrices and not one"
        if len(indices) > 1:
            return (
                f"{what}: it is called {len(indices)} times in a run; choose one of them, "
                f"seen['{path}[{indices[-1]}]'], or look at all, list(seen.select({path!r}))"
            )
        return (
            f"{what}: {why_apart(found)}; choose a run, seen.runs[0][{path!r}], or look at all, "
            f"list(seen.select({path!r}))"
        )

    def _doubts(self) -> Iterator[str]:
        """Name the calls whose error was asked for and is large; nothing is worked out here."""
        joined = [g.joined for g in self._generations() if len(g) > 1]
        for call in (*self._calls, *joined):
            if call.known_error_eps > DOUBTFUL:
                yield (
                    f"{call.path or _outside(call)} is NOT what ran: recomputed, its output is "
                    f"{call.known_error_eps:.0f} units of its last place away"
                )

    def _row(self, path: str) -> tuple[str, ...]:
        ours = [g for g in self._generations() if (g.last.path or "") == path]
        matrices = (call for generation in ours for call in generation.matrices)
        facts = list(dict.fromkeys(map(self.keeping.facts, islice(matrices, MOST))))
        calls = sum(len(generation) for generation in ours)
        return (path or _outside(ours[0].last), f"{calls:,}", *_said(facts))


def _outside(call: Call) -> str:
    """Name an attention that no module was called for: by its line."""
    return f"{call.file.rpartition('/')[2]}:{call.line}"


def _said(facts: Sequence[Facts]) -> tuple[str, ...]:
    """Kind, heads, sizes, mask and operation; several of them where calls differ."""
    columns_of = (
        [one.kind for one in facts],
        [one.heads for one in facts],
        [one.size for one in facts],
        [one.mask for one in facts],
        [one.how for one in facts],
    )
    return tuple(_alternatives(list(dict.fromkeys(texts))) for texts in columns_of)


def _alternatives(texts: Sequence[str]) -> str:
    return " or ".join(texts) if len(texts) < 3 else f"{texts[0]} … {texts[-1]}"
