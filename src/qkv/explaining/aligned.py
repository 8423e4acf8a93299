"""What the words of a translation looked at: as a matrix of words, and the most of each."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from qkv.core.recompute import Array
from qkv.explaining.attended import CROSS, attended
from qkv.explaining.inputs import NEW_WORD
from qkv.models.recurrent import Recurrent
from qkv.models.text.marian_tokenizer import MarianTokenizer
from qkv.models.text.tokenizer import Tokenizer
from qkv.models.translating import Translator

END = "(end)"
"""Stands for what ends a text, and whatever else is put around it."""


@dataclass(frozen=True)
class Look:
    """A word that was written, and the word of the source that it looked at most.

    Attributes:
        word, source: the two.
        weight: how much of its attention went there, 0 to 1.
    """

    word: str
    source: str
    weight: float


@dataclass(frozen=True, eq=False)
class WordAlignment:
    """How much each word of a translation looked at each word of its source.

    Attributes:
        source: its words, and what stands around them as one: "(end)".
        written: the words of the translation; none where nothing was written.
        weights: a row for each of these; it sums to 1.
    """

    source: tuple[str, ...]
    written: tuple[str, ...]
    weights: Array

    def looks(self) -> list[Look]:
        """Return the word of the source that each word looked at most; what ends it is none."""
        most = self.weights[:, :-1].argmax(axis=1)
        return [
            Look(word, self.source[best], float(row[best]))
            for word, row, best in zip(self.written, self.weights, most.tolist(), strict=True)
        ]


def word_alignment(model: Translator, text: str, ids: Sequence[int]) -> WordAlignment:
    """Return what each word of a translation looked at.

    Of a transformer these are the weights of cross-attention, averaged over the heads of the last
    layer but one, where they follow the words most closely (Garg et al. 2019, section 4.1).

    Args:
        model: wrote the translation.
        text: what it read.
        ids: the tokens of the translation, the one that ended it included or not.

    Raises:
        ArgumentError: a text without a token, or too long; or a model without attention.
    """
    read, tokenizer = model.tokenizer(text), model.tokenizer
    told = written(model, ids)
    own = [i for i, special in enumerate(read.special) if not special]
    around = [i for i, special in enumerate(read.special) if special]
    sources = words_of(tokenizer, [read.ids[i] for i in own], [read.names[i] for i in own])
    words = words_of(tokenizer, told, [tokenizer.piece(number) for number in told])
    names = (*(word for word, _ in sources), END)
    if not told:
        return WordAlignment(names, (), np.zeros((0, len(names))))
    weights = weighed(model, read.ids, before(model, told))[-len(told) :]
    columns = [weights[:, [own[i] for i in part]].sum(axis=1) for _, part in sources]
    columns.append(weights[:, around].sum(axis=1))
    whole = np.stack(columns, axis=1)
    rows = [whole[part.start : part.stop].mean(axis=0) for _, part in words]
    return WordAlignment(names, tuple(word for word, _ in words), np.stack(rows))


def aligned(model: Translator, text: str, ids: Sequence[int]) -> list[Look]:
    """Return which word of its source each word of a translation looked at most.

    Arguments and errors are those of `word_alignment`.
    """
    return word_alignment(model, text, ids).looks()


def written(model: Translator, ids: Sequence[int]) -> list[int]:
    """Return the tokens of a translation without the one that ended it."""
    return [number for number in ids if number not in model.rules.ends]


def before(model: Translator, told: Sequence[int]) -> list[int]:
    """Return the tokens that stood before each of a translation: the last row told the last."""
    return [*model.rules.starts, *told][:-1]


def weighed(model: Translator, source: Sequence[int], ids: Sequence[int]) -> Array:
    """Return how much each token of a translation looked at each of its source.

    Args:
        model: reads both; of a transformer these are the weights that `word_alignment` takes.
        source: tokens of the text.
        ids: tokens of the translation so far; a row is that with which the next one was told.

    Raises:
        ArgumentError: a model without attention.
    """
    given = torch.tensor([list(source)]), torch.tensor([list(ids)])
    if isinstance(model, Recurrent):
        weights: Array = model.weights(*given)[0].to("cpu", torch.float64).numpy()
        return weights
    crossed = attended(model, *given)[CROSS]
    averaged: Array = crossed[max(0, len(crossed) - 2)].weights().mean(axis=0)
    return averaged


Word = tuple[str, range]
"""A word and its tokens."""


def words_of(tokenizer: Tokenizer, ids: Sequence[int], names: Sequence[str]) -> list[Word]:
    """Put tokens together to words; those of bytes as the letters that they stand for."""
    words = _words(names)
    if isinstance(tokenizer, MarianTokenizer):
        return words
    return [
        (tokenizer.decode([ids[i] for i in part]).strip() or word, part) for word, part in words
    ]


def _words(pieces: Sequence[str]) -> list[Word]:
    """Put pieces together to words: each begins with the mark of a space."""
    words: list[Word] = []
    for i, piece in enumerate(pieces):
        if words and piece[:1] not in NEW_WORD:
            word, part = words.pop()
            words.append((word + piece, range(part.start, i + 1)))
        else:
            words.append((piece.lstrip(NEW_WORD), range(i, i + 1)))
    return words
