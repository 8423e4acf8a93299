"""What the tokens of a recorded run were: labels, separators, words that came before."""

import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from qkv.errors import ArgumentError

NEW_WORD = "Ġ▁ "
"""How vocabularies mark a token that begins a word; the word is the same without."""

WANTED = (
    'wanted a list of texts, one a token (["a", "map"]), a list of such lists, one an example '
    "of the batch, or, with a tokenizer, the text or the ids"
)

Given = str | Tensor | Sequence[str] | Sequence[int] | Sequence[Sequence[str] | Sequence[int]]
"""What tokens may be given as."""


@dataclass(frozen=True)
class Tokens:
    """The tokens of each example of a batch, padding included.

    Attributes:
        texts: one tuple an example, all equally long; one example stands for every one.
    """

    texts: tuple[tuple[str, ...], ...]

    @classmethod
    def read(cls, tokens: Given, tokenizer: object | None = None) -> "Tokens":
        """Take tokens as they are given.

        Args:
            tokens: texts of the tokens, one list or one an example; with a tokenizer also a text,
                or ids (a tensor or lists).
            tokenizer: of `transformers` (`convert_ids_to_tokens`), of `tokenizers`
                (`id_to_token`), or of a model of ours (`piece`).

        Raises:
            ArgumentError: neither; examples of unequal lengths; ids without a tokenizer.
        """
        if isinstance(tokens, str):
            tokens = _cut(tokens, tokenizer)
        if not isinstance(tokens, Tensor | Iterable):
            raise ArgumentError(f"tokens is {_short(tokens)}; {WANTED}")
        listed: list[Any] = tokens.tolist() if isinstance(tokens, Tensor) else list(tokens)
        rows = [listed] if listed and isinstance(listed[0], str | int) else listed
        if not rows or not all(isinstance(row, list | tuple) and row for row in rows):
            raise ArgumentError(f"tokens is {_short(tokens)}; {WANTED}")
        lengths = [len(row) for row in rows]
        if len(set(lengths)) > 1:
            raise ArgumentError(
                f"tokens has examples of {', '.join(map(str, lengths))} tokens; wanted the same "
                f"number in each, padding included"
            )
        return cls(tuple(tuple(_names(row, tokenizer)) for row in rows))

    def __len__(self) -> int:
        return len(self.texts[0])

    def fit(self, batch: int, keys: int) -> bool:
        """Whether they can be those of a call."""
        return len(self) == keys and len(self.texts) in (1, batch)

    def of(self, batch: int) -> tuple[str, ...]:
        """Return those of one example."""
        return self.texts[0] if len(self.texts) == 1 else self.texts[batch]

    def separators(self, batch: int) -> Bool[Tensor, "batch keys"]:
        """Which of them separate: special tokens, and punctuation."""
        found = [[is_separator(token) for token in row] for row in self.texts]
        return torch.tensor(found).expand(batch, -1)

    def words(self, batch: int) -> Int[Tensor, "batch keys"]:
        """Number the words: the same number is the same word, however it is written."""
        numbers: dict[str, int] = {}
        found = [[numbers.setdefault(word(token), len(numbers)) for token in r] for r in self.texts]
        return torch.tensor(found).expand(batch, -1)


def word(token: str) -> str:
    """Return a token without its mark of a new word, in small letters."""
    return token.strip(NEW_WORD).casefold() or token


def is_separator(token: str) -> bool:
    """Whether a token is a special one ([SEP], <s>, <|im_end|>) or a mark of punctuation."""
    bare = token.strip(NEW_WORD + "Ċ\n\t")
    if len(bare) > 2 and (bare[0] + bare[-1]) in ("[]", "<>"):
        return True
    return all(unicodedata.category(character)[0] in "PZC" for character in bare)


def _cut(text: str, tokenizer: object | None) -> list[int]:
    if tokenizer is None:
        raise ArgumentError(
            f"tokens is the text {_short(text)}; wanted also tokenizer=, which cuts it, or "
            f"a list of texts, one a token"
        )
    if hasattr(tokenizer, "encode") and hasattr(tokenizer, "id_to_token"):
        return list(tokenizer.encode(text).ids)
    if callable(tokenizer):
        found = tokenizer(text)
        ids = found["input_ids"] if hasattr(tokenizer, "convert_ids_to_tokens") else found.ids
        return list(ids)
    raise _no_tokenizer(tokenizer)


def _names(row: Sequence[str] | Sequence[int], tokenizer: object | None) -> list[str]:
    if all(isinstance(token, str) for token in row):
        return [str(token) for token in row]
    if not all(isinstance(token, int) and not isinstance(token, bool) for token in row):
        raise ArgumentError(f"tokens holds {_short(row)}; {WANTED}")
    ids = [int(token) for token in row]
    if tokenizer is None:
        raise ArgumentError(f"tokens is ids, {_short(ids)}; wanted also tokenizer=, to name them")
    if hasattr(tokenizer, "convert_ids_to_tokens"):
        return [str(name) for name in tokenizer.convert_ids_to_tokens(ids)]
    for method in ("id_to_token", "piece"):
        if hasattr(tokenizer, method):
            return [str(getattr(tokenizer, method)(number)) for number in ids]
    raise _no_tokenizer(tokenizer)


def _no_tokenizer(tokenizer: object) -> ArgumentError:
    return ArgumentError(
        f"tokenizer is a {type(tokenizer).__name__}; wanted one of transformers "
        f"(convert_ids_to_tokens), of tokenizers (id_to_token), or of a model of ours (piece)"
    )


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"
