"""SentencePiece models (Kudo and Richardson 2018): the pieces of text in a .spm file.

The file is a message of Protocol Buffers; the few fields that cut text are read by hand, and
checked, so that neither a generated module nor the library itself is needed.
"""

import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import tokenizers
from tokenizers import Regex, pre_tokenizers
from tokenizers.models import Unigram

from qkv.disk import cannot_read
from qkv.errors import FileError

SPACE = "▁"
"""How a piece writes a space."""
ALGORITHMS = {1: "unigram", 2: "BPE", 3: "words", 4: "characters"}


class Kind(IntEnum):
    """What a piece is for."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


class Piece(NamedTuple):
    """A piece of text, the logarithm of its probability, and what it is for."""

    text: str
    score: float
    kind: Kind


@dataclass(frozen=True)
class Table:
    """Characters and what to read instead, compiled into a tree of bytes (a double array).

    A unit of the tree holds the byte that leads to it, whether an entry ends there, and where
    its children lie (Yata et al. 2007, as the library Darts-clone stores it).
    """

    units: tuple[int, ...] = ()
    texts: bytes = b""

    @classmethod
    def read(cls, data: memoryview) -> "Table":
        """Read the size of the tree, the tree, and the texts, each ended by a zero byte."""
        if not data:
            return cls()
        (size,) = struct.unpack_from("<I", data)
        if size % 4 or size > len(data) - 4:
            raise ValueError(f"its table of characters says {size} of {len(data)} bytes")
        units = struct.unpack_from(f"<{size // 4}I", data, 4)
        return cls(units, bytes(data[4 + size :]))

    def longest(self, text: str, start: int) -> tuple[int, str] | None:
        """Return how many characters of the longest entry stand at `start`, and their reading."""
        found, node = None, 0
        if self.units:
            node = self._children(node)
        for length in range(1, len(text) - start + 1):
            for byte in text[start + length - 1].encode():
                unit = self._unit(node ^ byte)
                if unit & 0x800000FF != byte:
                    return found
                leaf, node = unit >> 8 & 1, self._children(node ^ byte)
            if leaf:
                found = length, self._text(self._unit(node) & 0x7FFFFFFF)
        return found

    def _unit(self, at: int) -> int:
        return self.units[at] if at < len(self.units) else 0x80000000  # no byte leads there

    def _children(self, at: int) -> int:
        unit = self._unit(at)
        return at ^ (unit >> 10 << ((unit & 512) >> 6))

    def _text(self, at: int) -> str:
        return self.texts[at : max(at, self.texts.find(b"\0", at))].decode(errors="replace")


@dataclass(frozen=True)
class SentencePiece:
    """What a .spm file says about cutting text.

    Attributes:
        pieces: the vocabulary, by number.
        table: characters and what to read instead.
        prefix: whether a text begins with a space that was not written.
        tidy: whether spaces are removed around a text, and doubled ones in it.
    """

    pieces: tuple[Piece, ...]
    table: Table
    prefix: bool
    tidy: bool

    @classmethod
    def read(cls, path: Path) -> "SentencePiece":
        """Read a .spm file of the unigram kind (Kudo 2018).

        Raises:
            FileError: it is not there, broken, or of another kind.
        """
        try:
            return _model(memoryview(path.read_bytes()))
        except OSError as error:
            raise cannot_read(path, error) from error
        except (ValueError, struct.error) as error:
            raise FileError(f"{path} is no SentencePiece model: {error}") from error

    def rules(self) -> tokenizers.Tokenizer:
        """Return what cuts a normalised text, for Hugging Face's `tokenizers`; ids as here."""
        # No space is left in a normalised text, so a name with a space in it is never found.
        hidden = {Kind.UNKNOWN, Kind.CONTROL, Kind.UNUSED}
        vocabulary = [
            (f" {number}" if piece.kind in hidden else piece.text, piece.score)
            for number, piece in enumerate(self.pieces)
        ]
        kinds = [piece.kind for piece in self.pieces]
        model = Unigram(vocabulary, kinds.index(Kind.UNKNOWN), Kind.BYTE in kinds)
        made = tokenizers.Tokenizer(model)
        if self.whole:
            pattern = Regex("|".join(map(_literal, self.whole)))
            made.pre_tokenizer = pre_tokenizers.Split(pattern, "isolated")
        return made

    @cached_property
    def whole(self) -> tuple[str, ...]:
        """The pieces that are never cut nor normalised, longest first."""
        texts = (piece.text for piece in self.pieces if piece.kind is Kind.USER_DEFINED)
        return tuple(sorted(texts, key=len, reverse=True))

    def normalised(self, text: str) -> tuple[str, list[int]]:
        """Return the text as the pieces write it, and which character each one came from."""
        out: list[tuple[str, int]] = []
        after_space = self.tidy
        for start, reading in self._readings(text):
            for character in reading:
                if not (after_space and character == " "):
                    out.append((character, start))
                    after_space = False
            after_space = after_space or (self.tidy and reading[-1:] == " ")
        if not out:
            return "", []
        joined = "".join(character for character, _ in out).replace(" ", SPACE)
        joined, origins = SPACE * self.prefix + joined, [0] * self.prefix + [at for _, at in out]
        joined = joined.rstrip(SPACE) if self.tidy else joined
        return joined, origins[: len(joined)]

    def _readings(self, text: str) -> Iterator[tuple[int, str]]:
        """Walk over the text: where the longest entry stands, and what is read there."""
        at = 0
        while at < len(text):
            word = next((word for word in self.whole if text.startswith(word, at)), None)
            size, reading = (
                (len(word), word) if word else self.table.longest(text, at) or (1, text[at])
            )
            yield at, reading
            at += size


def _literal(text: str) -> str:
    return "".join(f"\\x{{{ord(character):x}}}" for character in text)


def _model(data: memoryview) -> SentencePiece:
    """Read a ModelProto: 1 pieces, 2 how it was trained, 3 how text is normalised."""
    pieces, normaliser, trained = [], {}, {}
    for field, value in _fields(data):
        if field == 1:
            pieces.append(_piece(dict(_fields(_message(value)))))
        elif field == 2:
            trained = dict(_fields(_message(value)))
        elif field == 3:
            normaliser = dict(_fields(_message(value)))
    algorithm = _number(trained.get(3, 1))
    if algorithm != 1:
        raise ValueError(f"it cuts by {ALGORITHMS.get(algorithm, algorithm)}, wanted unigram")
    if trained.get(24, 0) or not normaliser.get(5, 1):
        raise ValueError("its pieces write spaces behind words or not at all; wanted ▁ before them")
    unknown = [piece for piece in pieces if piece.kind is Kind.UNKNOWN]
    if len(unknown) != 1 or len({piece.text for piece in pieces}) < len(pieces):
        raise ValueError(f"it has {len(pieces)} pieces, {len(unknown)} of them unknown, or doubles")
    table = Table.read(_message(normaliser.get(2, memoryview(b""))))
    return SentencePiece(
        tuple(pieces), table, bool(normaliser.get(3, 1)), bool(normaliser.get(4, 1))
    )


def _piece(fields: dict[int, int | memoryview]) -> Piece:
    """Read a SentencePiece: 1 text, 2 score, 3 kind."""
    text = str(bytes(_message(fields.get(1, memoryview(b"")))), "utf-8")
    score = struct.unpack("<f", _message(fields.get(2, memoryview(bytes(4)))))[0]
    if not text or not math.isfinite(score):
        raise ValueError(f"piece {text!r} has the score {score}")
    return Piece(text, score, Kind(_number(fields.get(3, 1))))


def _message(value: int | memoryview) -> memoryview:
    if isinstance(value, int):
        raise ValueError("a number stands where a text or a message should")
    return value


def _number(value: int | memoryview) -> int:
    if not isinstance(value, int):
        raise ValueError("a text or a message stands where a number should")
    return value


def _fields(data: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """Walk over a message: number of the field, its value (a whole number, or bytes)."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        wire = key & 7
        if wire == 0:
            value, at = _varint(data, at)
            yield key >> 3, value
            continue
        if wire not in (1, 2, 5):
            raise ValueError(f"a field of wire type {wire}")
        size, at = _varint(data, at) if wire == 2 else (8 if wire == 1 else 4, at)
        if size > len(data) - at:
            raise ValueError(f"it is cut off: a field of {size} bytes, {len(data) - at} are there")
        yield key >> 3, data[at : at + size]
        at += size


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    """Read a whole number, seven bits a byte, low ones first; return it and where it ends."""
    number = 0
    for place, byte in enumerate(data[at : at + 10]):
        number |= (byte & 127) << 7 * place
        if byte < 128:
            return number, at + place + 1
    raise ValueError("it is cut off in a number")
