"""Words of texts, numbered as they are met; and the frequent ones as a vocabulary."""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import tokenizers
from tokenizers import Regex, normalizers, pre_tokenizers
from tokenizers.models import WordLevel

from qkv.errors import ArgumentError
from qkv.models.text.tokenizer import Tokenizer

UNKNOWN = "<unk>"
"""Stands for every word that is too rare for the vocabulary."""

WORD = r"[\p{L}\p{M}\p{N}]+(?:'\p{L}+)*"
"""Letters and digits, and what an apostrophe joins: "don't"; signs are no words."""

SMALL = normalizers.Sequence(
    [normalizers.NFC(), normalizers.Lowercase(), normalizers.Replace("’", "'")]
)
WORDS = pre_tokenizers.Split(Regex(WORD), "removed", invert=True)

Numbers = npt.NDArray[np.int32]


class Met(NamedTuple):
    """The words of texts.

    Attributes:
        numbers: of each word in turn.
        words: what each number stands for.
    """

    numbers: Numbers
    words: tuple[str, ...]

    @classmethod
    def of(cls, texts: Iterable[str]) -> "Met":
        """Read texts; each word gets a number when it is met first."""
        known: dict[str, int] = {}
        every = (word for text in texts for word in words_of(text))
        numbers = np.fromiter((known.setdefault(word, len(known)) for word in every), np.int32)
        return cls(numbers, tuple(known))

    def frequent(self, some: Numbers, most: int) -> tuple[str, ...]:
        """Return words by how often their numbers are among `some`, alike ones by the alphabet.

        Raises:
            ArgumentError: fewer than two different words.
        """
        counts = np.bincount(some.ravel(), minlength=len(self.words))
        met = [(-count, word) for word, count in zip(self.words, counts.tolist(), strict=True)
               if count]  # fmt: skip
        if len(met) < 2:
            raise ArgumentError(
                f"the text has {len(met)} different words; wanted 2 or more to tell apart"
            )
        return tuple(word for _, word in sorted(met)[:most])

    def among(self, vocabulary: Sequence[str]) -> Numbers:
        """Return the words as `word_tokenizer(vocabulary)` numbers them."""
        known = {word: number for number, word in enumerate(vocabulary, start=1)}
        table = np.array([known.get(word, 0) for word in self.words], np.int32)
        return table[self.numbers]


def words_of(text: str) -> Iterator[str]:
    """Yield the words of a text, in small letters."""
    return (word for word, _ in WORDS.pre_tokenize_str(SMALL.normalize_str(text)))


def word_tokenizer(vocabulary: Sequence[str]) -> Tokenizer:
    """Make what cuts text into words; those of the vocabulary are numbered from 1, others are 0."""
    numbers = {word: number for number, word in enumerate((UNKNOWN, *vocabulary))}
    rules = tokenizers.Tokenizer(WordLevel(numbers, unk_token=UNKNOWN))
    rules.normalizer, rules.pre_tokenizer = SMALL, WORDS
    return Tokenizer(rules)
