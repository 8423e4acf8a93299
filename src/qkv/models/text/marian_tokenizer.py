"""Marian's tokenizer: SentencePiece cuts the text, a vocabulary of its own numbers the pieces."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from qkv.errors import ArgumentError, FileError
from qkv.models.formats.files import read_json
from qkv.models.text.sentencepiece import SPACE, SentencePiece
from qkv.models.text.tokenizer import Tokenizer, Tokens

END, UNKNOWN, PAD = "</s>", "<unk>", "<pad>"
LANGUAGE = re.compile(r">>[^<>\s]+<<")
"""What a multilingual model wants before the text: the language to translate into."""


class MarianTokenizer(Tokenizer):
    """Cuts text by source.spm, numbers the pieces by vocab.json, and puts </s> at the end.

    A special token that is written in a text is text: "</s>" ends nothing there.

    Args:
        model: what cuts text.
        numbers: the id of each piece; a piece that has none is <unk>.

    Raises:
        FileError: `numbers` lacks a special token, or gives the same id twice.
    """

    def __init__(self, model: SentencePiece, numbers: Mapping[str, int]) -> None:
        """Take the model and its numbers."""
        super().__init__(model.rules())
        self._model, self._numbers = model, dict(numbers)
        self._pieces = {number: piece for piece, number in self._numbers.items()}
        lacking = [name for name in (END, UNKNOWN, PAD) if name not in self._numbers]
        if lacking or len(self._pieces) < len(self._numbers):
            reason = f"lacks {', '.join(lacking)}" if lacking else "gives the same number twice"
            raise FileError(f"the vocabulary {reason}; wanted one number a piece")

    @classmethod
    def read(cls, path: Path, spm: str = "source.spm") -> "MarianTokenizer":
        """Read a folder's vocab.json and source.spm (or target.spm, for what is translated into).

        Raises:
            FileError: one of them is not there or broken, or the folder has two vocabularies.
        """
        if (path / "target_vocab.json").exists():
            raise FileError(f"{path} has a target_vocab.json; wanted one vocabulary for both sides")
        numbers = read_json(path / "vocab.json")
        wrong = [name for name, n in numbers.items() if type(n) is not int or n < 0]
        if wrong:
            raise FileError(f"{path / 'vocab.json'} gives {wrong[0]!r} no whole number from 0 on")
        return cls(SentencePiece.read(path / spm), numbers)

    @property
    def size(self) -> int:
        """Number of tokens in the vocabulary, special ones included."""
        return max(self._pieces) + 1

    @property
    def special(self) -> dict[str, int]:
        """The special tokens and their ids."""
        return {name: self._numbers[name] for name in (END, UNKNOWN, PAD)}

    def __call__(self, text: str, around: bool = True) -> Tokens:
        """Cut a text into tokens; ">>fr<<" before it is one.

        Args:
            text: any text.
            around: whether to put </s> behind it.

        Raises:
            ArgumentError: no text, or one in which there is no token.
        """
        if not isinstance(text, str):
            raise ArgumentError(f"text is a {type(text).__name__}; wanted a str")
        try:
            names, offsets = self._cut(text)
        except UnicodeEncodeError as error:
            raise ArgumentError(f"text {text!r} holds characters that are no Unicode") from error
        if not names:
            raise ArgumentError(f"text is {text[:40]!r}: there is no token in it")
        ids = [self._numbers.get(name, self._numbers[UNKNOWN]) for name in names]
        special = [False for _ in ids]
        if around:
            names, offsets = [*names, END], [*offsets, (0, 0)]
            ids, special = [*ids, self._numbers[END]], [*special, True]
        return Tokens(tuple(ids), tuple(names), tuple(offsets), tuple(special))

    def _cut(self, text: str) -> tuple[list[str], list[tuple[int, int]]]:
        """Return the pieces of a text, and from which of its characters to which they reach."""
        language = LANGUAGE.match(text)
        start = language.end() if language else 0
        normal, origins = self._model.normalised(text[start:])
        found = self._rules.encode(normal, add_special_tokens=False).offsets
        names = [normal[a:b] for a, b in found]
        offsets = [(start + origins[a], start + origins[b - 1] + 1) for a, b in found]
        return ([language[0], *names], [(0, start), *offsets]) if language else (names, offsets)

    def piece(self, number: int) -> str:
        """Return a token as the vocabulary writes it: "▁map".

        Raises:
            ArgumentError: there is no such token.
        """
        if number not in self._pieces:
            raise ArgumentError(f"there is no token {number}; the vocabulary has {self.size}")
        return self._pieces[number]

    def decode(self, ids: Sequence[int], special: bool = False) -> str:
        """Return the text of some tokens; the arguments and errors are those of `Tokenizer`."""
        if any(number < 0 for number in ids):
            raise ArgumentError(f"ids reach down to {min(ids)}; wanted numbers from 0")
        pieces = (self._pieces.get(number, "") for number in ids)
        left_out = () if special else self.special
        text = "".join(piece for piece in pieces if piece not in left_out)
        return text.replace(SPACE, " ").strip(" ")
