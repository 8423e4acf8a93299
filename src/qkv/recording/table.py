"""A line a head: how wide it looks, how far, at what, and what that makes it in a word."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import nan
from typing import TYPE_CHECKING

from qkv.errors import ArgumentError
from qkv.recording.columns import columns, counted
from qkv.recording.memory.joining import Key
from qkv.recording.memory.measuring import Measured, summarise
from qkv.weights.summary import NAMES, HeadSummary, Measures

if TYPE_CHECKING:
    from qkv.recording.recording import Recording

NO_NUMBER = "not a number"
"""Kind of a head whose weights are NaN: the model's own numbers are."""

KINDS = (*NAMES.values(), "broad", "focused", NO_NUMBER)

WITH_TOKENS = {"separator": "separators", "same word": "same", "induction": "induction"}
"""Kinds of heads that are told by the tokens, and their measures."""

NO_TOKENS = (
    "what a head does with words and separators takes the tokens, which were not given or are not "
    "as many as the keys: qkv.watch(model, tokens=...), or seen.with_tokens(...).table()"
)


@dataclass(frozen=True, eq=False, repr=False)
class Table:
    """What was measured of every head, in the order in which the modules ran.

    Attributes:
        model: name of the model's class.
        heads: one record a head.
        says: what has to be known about the measures.
    """

    model: str
    heads: tuple[HeadSummary, ...]
    says: str = ""

    def __iter__(self) -> Iterator[HeadSummary]:
        return iter(self.heads)

    def __getitem__(self, line: int) -> HeadSummary:
        return self.heads[line]

    def __len__(self) -> int:
        return len(self.heads)

    def find(self, kind: str) -> list[HeadSummary]:
        """Return the heads of one kind, the clearest first.

        Raises:
            ArgumentError: there is no such kind, or it takes tokens, which were not given.
        """
        if kind not in KINDS:
            raise ArgumentError(f"kind is {kind!r}; wanted one of {', '.join(KINDS)}")
        told = WITH_TOKENS.get(kind)
        if told and all(getattr(head, told) is None for head in self.heads):
            raise ArgumentError(f"kind is {kind!r}, but {NO_TOKENS}")
        return sorted((h for h in self.heads if h.kind == kind), key=lambda h: -h.measure)

    def __repr__(self) -> str:
        measures = [
            name for name in Measures._fields if any(getattr(h, name) is not None for h in self)
        ]
        headings = ("path", "head", "kind", "measure", *measures)
        rows = [_row(head, measures) for head in self.heads]
        table = columns(headings, rows, right={1, *range(3, len(headings))})
        title = f"{counted(len(self.heads), 'head')} of {self.model}"
        return "\n".join([title, table, *([f"  ({self.says})"] if self.says else [])])


def table(recording: "Recording") -> Table:
    """Measure every head; see `Recording.table`."""
    measured = measured_of(recording)
    several = {key.path for key in measured if key.number}
    heads = [
        head if head.entropy == head.entropy else replace(head, kind=NO_NUMBER, measure=nan)
        for key, found in measured.items()
        for head in found.summaries(_named(key, several), layer_of(key, key.path in several))
    ]
    known = any(head.separators is not None for head in heads)
    return Table(recording.model, tuple(heads), "" if known else _untold(recording))


def _untold(recording: "Recording") -> str:
    """Say why nothing is known of words."""
    tokens = recording.tokens
    if tokens is None:
        return NO_TOKENS
    keys = {
        call.k.shape[-2] if call.summary is None else call.summary.received.shape[-1]
        for call in recording.joined()
    }
    return f"{NO_TOKENS}; there are {len(tokens)} tokens, and {_listed(keys)} keys"


def _listed(numbers: Iterable[int]) -> str:
    few = sorted(numbers)
    return " or ".join(map(str, few)) if len(few) < 4 else f"{few[0]} to {few[-1]}"


def measured_of(recording: "Recording") -> dict[Key, Measured]:
    """Return the means over the calls of each module, those of generations joined."""
    if recording.gathered is not None:
        return dict(recording.gathered)
    measured: dict[Key, Measured] = {}
    for call in recording.joined():
        found = measured.setdefault(Key(call.path, call.index), Measured({}))
        found.add(call.summary or summarise(call, recording.tokens))
    return measured


def layer_of(key: Key, several: bool) -> int | None:
    """Number the layer: by the first number in the path, or by the pass where layers are shared."""
    if several:
        return key.number
    found = re.search(r"(?:^|\.)(\d+)(?:\.|$)", key.path or "")
    return int(found[1]) if found else None


def _named(key: Key, several: set[str | None]) -> str:
    """Return the path; of a module that is called several times in a run, also which call."""
    path = key.path or ""
    return f"{path}[{key.number}]" if key.path in several else path


def _row(head: HeadSummary, measures: Sequence[str]) -> tuple[str, ...]:
    numbers = (getattr(head, name) for name in measures)
    cells = ("–" if number is None else f"{number:.2f}" for number in numbers)
    return (head.path or "(no module)", str(head.head), head.kind, f"{head.measure:.2f}", *cells)
