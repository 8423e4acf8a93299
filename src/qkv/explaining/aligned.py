"""Which words of a text its translation looked at, word by word."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from qkv.core.recompute import Array
from qkv.explaining.attended import CROSS, attended
from qkv.models.marian import Marian
from qkv.models.text.sentencepiece import SPACE


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


def aligned(model: Marian, text: str, ids: Sequence[int]) -> list[Look]:
    """Return what each word of a translation looked at.

    The weights of cross-attention, averaged over the heads of the last layer but one, where they
    follow the words most closely (Garg et al. 2019, section 4.1).

    Args:
        model: wrote the translation.
        text: what it read.
        ids: the tokens of the translation, the one that ended it included or not.

    Raises:
        ArgumentError: a text without a token, or too long.
    """
    read = model.tokenizer(text)
    written = [number for number in ids if number not in model.rules.ends]
    if not written:
        return []
    before = [*model.rules.starts, *written][:-1]  # row i is the query that wrote token i
    crossed = attended(model, torch.tensor([read.ids]), torch.tensor([before]))[CROSS]
    weights = crossed[max(0, len(crossed) - 2)].weights().mean(axis=0)
    weights = weights[len(model.rules.starts) - 1 :]
    sources = _words([name for name, special in zip(read.names, read.special, strict=True)
                      if not special])  # fmt: skip
    words = _words([model.tokenizer.piece(number) for number in written])
    return [_look(word, rows, sources, weights) for word, rows in words]


Word = tuple[str, range]
"""A word and its tokens."""


def _look(word: str, rows: range, sources: Sequence[Word], weights: Array) -> Look:
    of_word = weights[rows.start : rows.stop].mean(axis=0)
    shares = [float(of_word[part.start : part.stop].sum()) for _, part in sources]
    best = int(np.argmax(shares))
    return Look(word, sources[best][0], shares[best])


def _words(pieces: Sequence[str]) -> list[Word]:
    """Put pieces together to words: each begins with the mark of a space."""
    words: list[Word] = []
    for i, piece in enumerate(pieces):
        if words and not piece.startswith(SPACE):
            word, part = words.pop()
            words.append((word + piece, range(part.start, i + 1)))
        else:
            words.append((piece.removeprefix(SPACE), range(i, i + 1)))
    return words
