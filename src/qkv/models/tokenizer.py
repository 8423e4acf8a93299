"""Text to token ids, by the `tokenizer.json` of a model."""

from dataclasses import dataclass
from pathlib import Path

import tokenizers

from qkv.errors import ArgumentError, FileError


@dataclass(frozen=True)
class Tokens:
    """A text in tokens.

    Attributes:
        ids: numbers of the tokens in the vocabulary.
        names: the tokens as the vocabulary writes them: "[CLS]", "draw", "##ing".
        offsets: from which character of the text to which; (0, 0) for what was put around it.
        special: whether a token was put around the text rather than found in it.
    """

    ids: tuple[int, ...]
    names: tuple[str, ...]
    offsets: tuple[tuple[int, int], ...]
    special: tuple[bool, ...]

    def __len__(self) -> int:
        return len(self.ids)


class Tokenizer:
    """Cuts text into the tokens that a model was trained on.

    Never cuts off and never pads, whatever its file says: a text that is too long for a model is
    for the model to refuse.
    """

    def __init__(self, rules: tokenizers.Tokenizer) -> None:
        """Take the rules of a tokenizer of Hugging Face's `tokenizers`."""
        self._rules = rules
        self._rules.no_truncation()
        self._rules.no_padding()

    @classmethod
    def read(cls, path: Path) -> "Tokenizer":
        """Read a tokenizer.json.

        Raises:
            FileError: it is not there, or holds no tokenizer.
        """
        if not path.is_file():
            raise FileError(f"{path} is not there; wanted a tokenizer.json")
        try:
            return cls(tokenizers.Tokenizer.from_file(str(path)))
        except Exception as error:  # `tokenizers` raises nothing more special
            raise FileError(f"{path} holds no tokenizer that can be read: {error}") from error

    @property
    def size(self) -> int:
        """Number of tokens in the vocabulary, special ones included."""
        return int(self._rules.get_vocab_size())

    @property
    def special(self) -> dict[str, int]:
        """The special tokens and their ids: {"[CLS]": 101, …}."""
        added = self._rules.get_added_tokens_decoder()
        return {token.content: number for number, token in added.items() if token.special}

    def __call__(self, text: str) -> Tokens:
        """Cut a text into tokens, and put around it what the model expects there.

        Raises:
            ArgumentError: no text, or one in which there is no token.
        """
        if not isinstance(text, str):
            raise ArgumentError(f"text is a {type(text).__name__}; wanted a str")
        try:
            found = self._rules.encode(text)
        except TypeError as error:  # half of a surrogate pair, which no UTF-8 can hold
            raise ArgumentError(f"text {text!r} holds characters that are no Unicode") from error
        special = tuple(bool(mark) for mark in found.special_tokens_mask)
        if all(special):
            raise ArgumentError(f"text is {_short(text)!r}: there is no token in it")
        return Tokens(tuple(found.ids), tuple(found.tokens), tuple(found.offsets), special)


def _short(text: str) -> str:
    return text if len(text) <= 40 else f"{text[:40]}…"
