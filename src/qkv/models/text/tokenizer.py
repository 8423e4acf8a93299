"""Text to token ids and back, by the `tokenizer.json` or the vocabulary of a model."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import tokenizers

from qkv.errors import ArgumentError, FileError, ModelError
from qkv.models.text.vocabulary import find_rules


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

    @classmethod
    def find(cls, folder: Path) -> "Tokenizer | None":
        """Read the tokenizer.json of a folder, or what older folders have in its place.

        That is vocab.txt (BERT), or vocab.json with merges.txt (GPT-2). None where there is
        nothing of all this.

        Raises:
            FileError: what is there cannot be read.
        """
        path = folder / "tokenizer.json"
        if path.exists():
            return cls.read(path)
        rules = find_rules(folder)
        return None if rules is None else cls(rules)

    def json(self) -> str:
        """Return the rules as a tokenizer.json holds them."""
        return str(self._rules.to_str(pretty=True))

    @property
    def size(self) -> int:
        """Number of tokens in the vocabulary, special ones included."""
        return int(self._rules.get_vocab_size())

    @property
    def special(self) -> dict[str, int]:
        """The special tokens and their ids: {"[CLS]": 101, …}."""
        added = self._rules.get_added_tokens_decoder()
        return {token.content: number for number, token in added.items() if token.special}

    def __call__(self, text: str, around: bool = True) -> Tokens:
        """Cut a text into tokens.

        Args:
            text: any text; a special token written in it is found as such.
            around: whether to put around it what the model expects there, such as [CLS] and [SEP].

        Raises:
            ArgumentError: no text, or one in which there is no token.
            ModelError: the tokenizer's own rules fail on it.
        """
        if not isinstance(text, str):
            raise ArgumentError(f"text is a {type(text).__name__}; wanted a str")
        found = self._encoded(text, around)
        special = tuple(bool(mark) for mark in found.special_tokens_mask)
        if all(special):
            raise ArgumentError(f"text is {_short(text)!r}: there is no token in it")
        return Tokens(tuple(found.ids), tuple(found.tokens), tuple(found.offsets), special)

    def plain(self, text: str) -> tuple[int, ...]:
        """Cut a text in which special tokens stand for nothing but their letters.

        Raises:
            ArgumentError: it holds characters that are no Unicode.
            ModelError: the tokenizer's own rules fail on it.
        """
        before = self._rules.encode_special_tokens
        self._rules.encode_special_tokens = True
        try:
            return tuple(self._encoded(text, around=False).ids)
        finally:
            self._rules.encode_special_tokens = before

    def _encoded(self, text: str, around: bool) -> tokenizers.Encoding:
        try:
            return self._rules.encode(text, add_special_tokens=around)
        except TypeError as error:  # half of a surrogate pair, which no UTF-8 can hold
            raise ArgumentError(f"text {text!r} holds characters that are no Unicode") from error
        except Exception as error:  # a vocabulary without its own unknown token
            raise ModelError(f"the tokenizer cannot cut {_short(text)!r}: {error}") from error

    def decode(self, ids: Sequence[int], special: bool = False) -> str:
        """Return the text of some tokens.

        Args:
            ids: numbers of tokens; those that the vocabulary does not know stand for nothing,
                as rows of a model's table do that only fill it up.
            special: whether special tokens are written too.

        Raises:
            ArgumentError: an id below 0.
        """
        if any(number < 0 for number in ids):
            raise ArgumentError(f"ids reach down to {min(ids)}; wanted numbers from 0")
        return str(self._rules.decode(list(ids), skip_special_tokens=not special))

    def piece(self, number: int) -> str:
        """Return a token as the vocabulary writes it: "##ing", "Ġmap".

        Raises:
            ArgumentError: there is no such token.
        """
        found = self._rules.id_to_token(number) if number >= 0 else None
        if found is None:
            raise ArgumentError(f"there is no token {number}; the vocabulary has {self.size}")
        return str(found)


def _short(text: str) -> str:
    return text if len(text) <= 40 else f"{text[:40]}…"
