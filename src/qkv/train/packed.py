"""Token ids of any amount, on the disk as in memory: a stream, and where its sequences begin."""

import tempfile
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from qkv.disk import reason
from qkv.errors import ArgumentError, FileError

Ids = npt.NDArray[np.unsignedinteger[Any]]
Whole = npt.NDArray[np.int64]


class Packed:
    """Sequences of token ids in temporary files that are mapped into memory.

    The files have no name: when they are let go of, or whatever happens to the process, the disk
    gets its room back. What is in memory is what was looked at lately, and the system takes it back
    when it needs room.

    Args:
        stream: all ids, one sequence after the other.
        offsets: where each sequence begins in it, and where the last one ends.
    """

    def __init__(self, stream: Ids, offsets: Whole) -> None:
        """Take what `of` has written."""
        self._stream, self.offsets = stream, offsets

    @classmethod
    def of(
        cls,
        sequences: Iterable[Sequence[int] | npt.NDArray[np.integer[Any]]],
        vocabulary: int,
        folder: str | Path | None = None,
    ) -> "Packed":
        """Write sequences, of which no more than one is held at a time.

        Args:
            sequences: ids of tokens; a sequence may be empty.
            vocabulary: how many ids there are; up to 65,536 an id takes 2 bytes, else 4.
            folder: where the files are; the system's temporary folder ($TMPDIR) unless said.

        Raises:
            ArgumentError: an id is outside the vocabulary, or there are no tokens at all.
            FileError: they cannot be written, as on a full disk.
        """
        place = str(folder or tempfile.gettempdir())
        kind = np.dtype(np.uint16 if vocabulary <= 2**16 else np.uint32)
        try:
            with ExitStack() as files:
                ids, starts = (files.enter_context(_unnamed(place)) for _ in range(2))
                _write(ids, starts, sequences, vocabulary, kind)
                return cls(_mapped(ids, kind), _mapped(starts, np.dtype(np.int64)))
        except (FileError, ArgumentError):
            raise
        except OSError as error:
            raise FileError(
                f"{place} cannot take the tokens: {reason(error)}; make room, or set TMPDIR to "
                "another folder"
            ) from error

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, number: int) -> Ids:
        """Return one sequence, without a copy."""
        if not 0 <= number < len(self):
            raise IndexError(f"sequence {number} of {len(self)}")
        return self._stream[self.offsets[number] : self.offsets[number + 1]]

    @property
    def tokens(self) -> int:
        """How many ids there are in all sequences."""
        return len(self._stream)

    @property
    def lengths(self) -> Whole:
        """How many ids each sequence has."""
        return np.diff(self.offsets)

    def window(self, start: int, length: int) -> Ids:
        """Return ids of the stream from a place on, across sequences, without a copy.

        Raises:
            ArgumentError: the stream has not so many.
        """
        self._check(start, start, length)
        return self._stream[start : start + length]

    def windows(self, starts: npt.ArrayLike, length: int) -> Whole:
        """Return windows of one length, each a row.

        Raises:
            ArgumentError: the stream has not so many.
        """
        first = np.asarray(starts, np.int64)
        if first.size:
            self._check(int(first.min()), int(first.max()), length)
        places: Whole = first[:, None] + np.arange(length)
        return self._stream[places].astype(np.int64)

    def padded(self, numbers: npt.ArrayLike, padding: int) -> Whole:
        """Return sequences, each a row, with padding behind the shorter ones."""
        rows = [self[int(number)] for number in np.asarray(numbers)]
        filled = np.full((len(rows), max(map(len, rows), default=0)), padding, np.int64)
        for place, row in zip(filled, rows, strict=True):
            place[: len(row)] = row
        return filled

    def _check(self, first: int, last: int, length: int) -> None:
        if first < 0 or length < 0 or last + length > self.tokens:
            raise ArgumentError(
                f"a window of {length} from {last if first >= 0 else first} is not within the "
                f"{self.tokens} tokens"
            )


def _unnamed(folder: str) -> IO[bytes]:
    return tempfile.TemporaryFile(dir=folder)


def _mapped(file: IO[bytes], kind: np.dtype[Any]) -> npt.NDArray[Any]:
    return np.asarray(np.memmap(file, dtype=kind, mode="r"))


def _write(
    ids: IO[bytes],
    starts: IO[bytes],
    sequences: Iterable[Sequence[int] | npt.NDArray[np.integer[Any]]],
    vocabulary: int,
    kind: np.dtype[Any],
) -> None:
    end = 0
    starts.write(np.int64(0).tobytes())
    for number, sequence in enumerate(sequences):
        array = np.asarray(sequence, dtype=np.int64)
        if array.size and not 0 <= array.min() <= array.max() < vocabulary:
            strange = array[(array < 0) | (array >= vocabulary)][0]
            raise ArgumentError(
                f"sequence {number} holds the id {strange}; wanted 0 to {vocabulary - 1}"
            )
        ids.write(array.astype(kind).tobytes())
        end += array.size
        starts.write(np.int64(end).tobytes())
    if not end:
        raise ArgumentError("there are no tokens; wanted 1 or more")
    ids.flush()
    starts.flush()
