"""What a person wants of a recording, whatever was recorded."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from qkv.cli import printable
from qkv.errors import ArgumentError

if TYPE_CHECKING:
    from qkv.cli.attentions import Attention
    from qkv.cli.picture import Picture
    from qkv.recording.recording import Recording

LISTED = 12
"""Attentions that are listed where one is asked for that is not there."""


class Head(NamedTuple):
    """Which head is drawn; both are counted from 1."""

    attention: int
    head: int

    @classmethod
    def read(cls, said: str) -> "Head":
        """Read "3.5"; raises ArgumentError for anything else."""
        numbers = said.split(".")
        if len(numbers) != 2 or not all(n.isascii() and n.isdecimal() and int(n) for n in numbers):
            raise ArgumentError(
                f"head is {said!r}; wanted an attention and a head, both counted from 1: 3.5"
            )
        return cls(*map(int, numbers))

    def among(self, attentions: "Sequence[Attention]") -> "Attention":
        """Return the attention whose head it is; raises ArgumentError where there is none."""
        if self.attention > len(attentions):
            few = [f"{one.number} {printable(one.path)}" for one in attentions[:LISTED]]
            more = f", … ({len(attentions)} in all)" if len(attentions) > LISTED else ""
            raise ArgumentError(f"head is {self}; the attentions are {', '.join(few)}{more}")
        one = attentions[self.attention - 1]
        if self.head > one.facts.heads:
            raise ArgumentError(
                f"head is {self}; attention {self.attention} has heads 1 to {one.facts.heads}"
            )
        return one

    def __str__(self) -> str:
        return f"{self.attention}.{self.head}"


class Reading(NamedTuple):
    """What a model reads of a text, and writes.

    Attributes:
        tokens: "A:B", those of the text that it reads; all by default.
        max_tokens: how many a decoder writes.
        output: what a model of two towers has written.
    """

    tokens: str | None = None
    max_tokens: int | None = None
    output: str | None = None


class Asked(NamedTuple):
    """What a person wants.

    Attributes:
        head: that is drawn.
        excel: file for its workbook.
        save: file for the recording.
        only: which modules are recorded.
        everything: whether every head has a line.
        json: whether JSON is printed.
    """

    head: Head | None = None
    excel: Path | None = None
    save: Path | None = None
    only: str | None = None
    everything: bool = False
    json: bool = False

    def files(self) -> Iterator[str]:
        """Say what was written, a line a file."""
        if self.excel is not None:
            yield f"workbook of head {self.head}: {printable(str(self.excel))}"
        if self.save is not None:
            yield f"recording: {printable(str(self.save))}"

    def write_recording(self, seen: "Recording") -> None:
        """Write the recording, where that is wanted; raises FileError where it cannot be."""
        if self.save is not None:
            seen.save(self.save)

    def write_workbook(self, picture: "Picture | None") -> None:
        """Write the workbook, where that is wanted; raises FileError where it cannot be,
        ArgumentError for a head that is too large."""
        if self.excel is not None and picture is not None:
            picture.write_workbook(self.excel)

    def plain(self) -> dict[str, Any]:
        """Return the files as JSON has them."""
        return {
            "workbook": None if self.excel is None else str(self.excel),
            "saved": None if self.save is None else str(self.save),
        }
