"""What a person wants of a recording, whatever was recorded."""

from collections.abc import Iterator, Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from qkv.cli import printable
from qkv.errors import ArgumentError

if TYPE_CHECKING:
    from qkv.cli.attentions import Attention
    from qkv.cli.picture import Picture
    from qkv.recording.recording import Recording


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
            raise ArgumentError(f"head is {self}; there are attentions 1 to {len(attentions)}")
        one = attentions[self.attention - 1]
        if self.head > one.facts.heads:
            raise ArgumentError(
                f"head is {self}; attention {self.attention} has heads 1 to {one.facts.heads}"
            )
        return one

    def __str__(self) -> str:
        return f"{self.attention}.{self.head}"


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

    def write_files(self, seen: "Recording", picture: "Picture | None") -> None:
        """Write the files; raises FileError where that cannot be, ArgumentError for a head that
        is too large."""
        if self.excel is not None and picture is not None:
            picture.write_workbook(self.excel)
        if self.save is not None:
            seen.save(self.save)

    def plain(self) -> dict[str, Any]:
        """Return the files as JSON has them."""
        return {
            "workbook": None if self.excel is None else str(self.excel),
            "saved": None if self.save is None else str(self.save),
        }


def json_ready(value: Any) -> Any:
    """Return dicts, lists and numbers as JSON can have them: what is no finite number is null."""
    if isinstance(value, Mapping):
        return {name: json_ready(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [json_ready(one) for one in value]
    return None if isinstance(value, float) and not isfinite(value) else value
