"""Tensors that lie in a file, not yet read: their shapes are known before memory is taken."""

import math
import mmap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from qkv.errors import FileError
from qkv.models.formats.files import Files

BLOCK = 1 << 17
"""Numbers read at once. They stay in the processor's cache on their way into the model."""

DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
}
"""Kinds that lie in a file as they lie in memory."""


@dataclass(frozen=True)
class Span:
    """Where the rows of a tensor lie in a file, one after the other.

    Attributes:
        path: the file.
        offset: bytes before them.
        rows: how many; 1 for a single number.
        shape: of one.
        dtype: of the numbers once read.
        group, size: so many numbers lie in so many bytes.
        decode: makes numbers of their bytes; without it, these are the numbers.
        columns: which numbers of a row are kept once it is read; all of them by default.
    """

    path: Path
    offset: int
    rows: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    group: int
    size: int
    decode: Callable[[bytearray], Tensor] | None = None
    columns: slice | None = None

    @property
    def width(self) -> int:
        """Numbers of a row."""
        return math.prod(self.shape)

    def bytes(self, rows: int) -> int:
        """Return how many bytes so many rows take."""
        return rows * self.width // self.group * self.size

    def blocks(self) -> Iterator[Tensor]:
        """Read a few rows at a time; what is read is a copy."""
        step = max(1, BLOCK // max(1, self.width))
        with self.path.open("rb") as file:
            file.seek(self.offset)
            for start in range(0, self.rows, step):
                rows = min(step, self.rows - start)
                raw = bytearray(self.bytes(rows))
                if file.readinto(raw) != len(raw):
                    raise self._cut_off()
                yield self._numbers(raw, rows)

    def lies_as(self, place: Tensor) -> bool:
        """Whether its bytes are those that a tensor has in memory."""
        whole = self.decode is None and self.columns is None
        plain = whole and place.dtype == self.dtype
        return plain and place.device.type == "cpu" and place.is_contiguous()

    def lies_whole(self, shape: torch.Size, dtype: torch.dtype) -> bool:
        """Whether its bytes are a tensor of that shape as they are."""
        here = (self.rows, *self.shape) if shape else self.shape
        plain = self.decode is None and self.columns is None and self.dtype == dtype
        return plain and here == shape and self.offset % dtype.itemsize == 0 and shape.numel() > 0

    def mapped(self, file: mmap.mmap) -> Tensor:
        """Return its numbers where they lie in a file that is mapped: read when they are used."""
        count = self.rows * self.width
        if self.offset + count * self.dtype.itemsize > len(file):
            raise self._cut_off()
        numbers = torch.frombuffer(file, dtype=self.dtype, count=count, offset=self.offset)
        return numbers.view(self.rows, *self.shape)

    def read_into(self, place: Tensor) -> None:
        """Read all bytes to where they belong, without a stop on the way."""
        raw = place.detach().flatten().view(torch.uint8).numpy().data
        with self.path.open("rb") as file:
            file.seek(self.offset)
            if file.readinto(raw) != len(raw):
                raise self._cut_off()

    def _cut_off(self) -> FileError:
        return FileError(f"{self.path} was cut off while it was being read")

    def _numbers(self, raw: bytearray, rows: int) -> Tensor:
        if not raw:
            plain = torch.empty(0, dtype=self.dtype)
        elif self.decode is None:
            plain = torch.frombuffer(raw, dtype=self.dtype)
        else:
            plain = self.decode(raw)
        found = plain.view(rows, *self.shape)
        return found if self.columns is None else found[..., self.columns]

    def part(self, start: int, stop: int) -> "Span":
        """Rows `start` to `stop`, that one not included."""
        return replace(self, offset=self.offset + self.bytes(start), rows=stop - start)


@dataclass(frozen=True)
class Stored:
    """A tensor in a file.

    Attributes:
        name: as the file spells it, for messages.
        shape: of the whole.
        kind: "F32", "Q4_1", …: how the file holds its numbers.
        read: reads all of it.
        span: where it lies, if it can be read a few rows at a time.
        floats: whether these are numbers with fractions, once read.
        turned: what this is the transpose of, if it is one.
    """

    name: str
    shape: tuple[int, ...]
    kind: str
    read: Callable[[], Tensor]
    span: Span | None = None
    floats: bool = True
    turned: "Stored | None" = None

    @classmethod
    def lying(cls, name: str, shape: tuple[int, ...], kind: str, span: Span) -> "Stored":
        """Return the tensor of that shape that lies in a span of a file."""

        def read() -> Tensor:
            whole = torch.empty(shape, dtype=span.dtype)
            stored.into(whole)
            return whole

        stored = cls(name, shape, kind, read, span)
        return stored

    @property
    def numbers(self) -> int:
        """How many numbers it holds."""
        return math.prod(self.shape)

    def into(self, place: Tensor) -> None:
        """Copy all of it into a tensor of its shape, of any float dtype, device and layout."""
        if self.turned is not None:
            self.turned.into(place.mT)
            return
        if self.span is None:
            place.copy_(self.read())
            return
        if self.span.lies_as(place):
            self.span.read_into(place)
            return
        place, start = place if self.shape else place[None], 0
        for block in self.span.blocks():
            place[start : start + len(block)].copy_(block)
            start += len(block)

    def transposed(self) -> "Stored":
        """Xᵀ, its last two axes exchanged."""
        if self.turned is not None:
            return self.turned
        *batch, rows, columns = self.shape
        shape = (*batch, columns, rows)
        return replace(self, shape=shape, read=lambda: self.read().mT, span=None, turned=self)

    def rows(self, start: int, stop: int) -> "Stored":
        """Rows `start` to `stop`, that one not included; only they are read.

        Of a transpose they are columns, and are read as these are.
        """
        if self.turned is not None and len(self.shape) == 2:
            return self.turned.columns(start, stop).transposed()
        shape = (stop - start, *self.shape[1:])
        if self.span is not None:
            return Stored.lying(self.name, shape, self.kind, self.span.part(start, stop))
        return replace(self, shape=shape, read=lambda: self.read()[start:stop], turned=None)

    def columns(self, start: int, stop: int) -> "Stored":
        """Columns `start` to `stop` of a table, that one not included.

        All rows are read, a few at a time, and no more of them is kept.
        """
        if self.turned is not None:
            return self.turned.rows(start, stop).transposed()
        shape = (self.shape[0], stop - start)
        if self.span is not None and self.span.columns is None:
            span = replace(self.span, columns=slice(start, stop))
            return Stored.lying(self.name, shape, self.kind, span)
        return replace(self, shape=shape, read=lambda: self.read()[:, start:stop], span=None)

    def reordered(self, order: Callable[[], Int[Tensor, "rows"]]) -> "Stored":
        """Its rows in another order: row i is what was row `order()[i]`, made when it is read."""
        return replace(self, read=lambda: self.read()[order()], span=None, turned=None)


Source = Mapping[str, Stored]
"""The tensors of a model by the names that Hugging Face gives them."""


@dataclass(frozen=True)
class Found:
    """A model on disk, in Hugging Face's terms whatever its format.

    Attributes:
        config: what config.json says, or would say.
        config_path: the file that says so.
        weights: the file, or the list of files, that holds the tensors.
        source: the tensors.
        files: what else there is.
    """

    config: Mapping[str, Any]
    config_path: Path
    weights: Path
    source: Source
    files: Files


def plain(name: str, shape: tuple[int, ...], kind: str, path: Path, offset: int) -> Stored:
    """Return a tensor whose numbers lie row by row, as those of PyTorch do.

    Args:
        name: as the file spells it.
        shape: of the whole.
        kind: one of DTYPES; of any other only the name and the shape are known.
        path: the file.
        offset: bytes before the first number.
    """
    if kind not in DTYPES:
        return unreadable(name, shape, kind)
    dtype = DTYPES[kind]
    first, *rest = shape or (1,)
    span = Span(path, offset, first, tuple(rest), dtype, 1, dtype.itemsize)
    return Stored.lying(name, shape, kind, span)


def unreadable(name: str, shape: tuple[int, ...], kind: str) -> Stored:
    """Return a tensor of which only the name, the shape and the kind are known."""

    def read() -> Tensor:
        raise FileError(f"{name} is {kind}, which is not read here")

    return Stored(name, shape, kind, read, floats=False)
