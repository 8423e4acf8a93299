"""What stands before the weights in a GGUF file: settings, and where each tensor lies.

The file begins with GGUF, its version, and how many tensors and settings it has; then come the
settings (a name, the number of a type, a value), the tensors (a name, axes from the last to the
first, the number of a kind, an offset), and, aligned, their bytes. Whole numbers are
little-endian; a text is its length (eight bytes) and itself.

Every size is checked before it is used. The reader of the package `gguf` takes seconds for a list
of tokens, and counts that are not true send it on its way for ever.
"""

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from qkv.errors import FileError

VERSIONS = (2, 3)
ALIGNMENT = 32
MOST_AXES = 4
LENGTH = struct.Struct("<Q")
TEXT, LIST = 8, 9
SCALARS = dict(enumerate("BbHhIif?", start=0)) | {10: "Q", 11: "q", 12: "d"}
"""Numbers of the types of settings, and how `struct` writes them."""


class Place(NamedTuple):
    """Where a tensor lies: its bytes begin at `offset` after the start of all weights."""

    name: str
    shape: tuple[int, ...]
    kind: int
    offset: int


@dataclass(frozen=True)
class Header:
    """What stands before the weights.

    Attributes:
        settings: by name: numbers, texts and lists of them.
        tensors: what there is, and where.
        start: where the weights begin.
        size: of the file, in bytes.
    """

    settings: dict[str, Any]
    tensors: list[Place]
    start: int
    size: int


def read_header(path: Path) -> Header:
    """Read what stands before the weights.

    Raises:
        FileError: it is no whole GGUF file.
    """
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as raw:
            return _header(_Bytes(raw))
    except (OSError, ValueError, struct.error) as error:
        raise FileError(
            f"{path} is no whole GGUF file ({error}); it may have been cut off: copy it again"
        ) from error


class _Bytes:
    """Bytes of a file, read one thing after the other and never beyond the end."""

    def __init__(self, raw: mmap.mmap) -> None:
        self.raw, self.at = raw, 0

    def numbers(self, kind: str, count: int = 1) -> tuple[Any, ...]:
        """Read numbers of one type of `struct`."""
        self.check(count, struct.calcsize(kind))
        values = struct.unpack_from(f"<{count}{kind}", self.raw, self.at)
        self.at += struct.calcsize(kind) * count
        return values

    def number(self, kind: str) -> Any:
        """Read one number."""
        return self.numbers(kind)[0]

    def text(self) -> str:
        """Read a text."""
        return self.texts(1)[0]

    def texts(self, count: int) -> list[str]:
        """Read so many texts: tens of thousands, so all in one loop."""
        raw, at, found = self.raw, self.at, []
        for _ in range(count):
            start = at + LENGTH.size
            at = start + LENGTH.unpack_from(raw, at)[0]
            if at > len(raw):
                raise ValueError(f"a text ends at {at}, the file at {len(raw)}")
            found.append(raw[start:at].decode("utf-8"))
        self.at = at
        return found

    def value(self, kind: int) -> Any:
        """Read a setting."""
        if kind in SCALARS:
            return self.number(SCALARS[kind])
        if kind == TEXT:
            return self.text()
        if kind != LIST:
            raise ValueError(f"there is no type {kind} of a setting")
        of, count = self.number("I"), self.number("Q")
        if of in SCALARS:
            return list(self.numbers(SCALARS[of], count))
        if of != TEXT:
            raise ValueError(f"a list is of type {of}")
        self.check(count, LENGTH.size)
        return self.texts(count)

    def check(self, count: int, size: int = 1) -> None:
        """Raise ValueError where so much is not left."""
        left = len(self.raw) - self.at
        if count * size > left:
            raise ValueError(f"{count * size} bytes wanted at {self.at}, {left} are left")


def _header(file: _Bytes) -> Header:
    if file.raw[:4] != b"GGUF":
        raise ValueError(f"it begins with {file.raw[:4]!r}, not with b'GGUF'")
    file.at = 4
    version = file.number("I")
    if version not in VERSIONS:
        raise ValueError(f"it is of version {version}; known are {VERSIONS}")
    count, settings_count = file.numbers("Q", 2)
    settings: dict[str, Any] = {}
    for _ in range(settings_count):
        name = file.text()
        if name in settings:
            raise ValueError(f"{name} is there twice")
        settings[name] = file.value(file.number("I"))
    file.check(count, 24)
    tensors = [_tensor(file) for _ in range(count)]
    if len({place.name for place in tensors}) != count:
        raise ValueError("a tensor is there twice")
    alignment = settings.get("general.alignment", ALIGNMENT)
    if not isinstance(alignment, int) or alignment < 1:
        raise ValueError(f"general.alignment is {alignment!r}")
    start = -(-file.at // alignment) * alignment
    return Header(settings, tensors, start, len(file.raw))


def _tensor(file: _Bytes) -> Place:
    name, axes = file.text(), file.number("I")
    if not 1 <= axes <= MOST_AXES:
        raise ValueError(f"{name} has {axes} axes")
    shape = tuple(reversed(file.numbers("Q", axes)))
    if 0 in shape:
        raise ValueError(f"{name} is {shape}: it holds no number")
    return Place(name, shape, file.number("I"), file.number("Q"))
