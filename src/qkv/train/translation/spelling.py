"""How the translators spell: one vocabulary for both languages, of words in small letters.

"The sky is blue." is read as "the sky is blue": capital letters and marks between words say little
that a small translator could learn, and whoever types leaves them out.
"""

import re
from collections.abc import Iterable

import tokenizers
from tokenizers import Regex, normalizers

from qkv.models.text.tokenizer import Tokenizer
from qkv.train.vocabulary import trained_bpe

PAD, END = 0, 1
"""Tokens: the first fills rows and begins what is written, the second ends a text."""

SPECIAL = ("<pad>", "</s>")
"""How the vocabulary writes the two."""

MARKS = r"[^\p{L}\p{M}\p{N}' ]+"
"""All but letters, digits, apostrophes and spaces."""

PLAIN = normalizers.Sequence([
    normalizers.NFC(),
    normalizers.Lowercase(),
    normalizers.Replace("’", "'"),
    normalizers.Replace(Regex(MARKS), " "),
    normalizers.Replace(Regex(" +"), " "),
    normalizers.Strip(),
])  # fmt: skip


LETTERS = "[a-z0-9áéíñóúü']+"
IS_PLAIN = re.compile(f"{LETTERS}(?: {LETTERS})*")
"""Most of what is plain already; to find this out is ten times faster than to make it so."""


def plain(text: str) -> str:
    """Return a text as the translators read and write it."""
    return text if IS_PLAIN.fullmatch(text) else str(PLAIN.normalize_str(text))


def spelling(texts: Iterable[str], size: int) -> Tokenizer:
    """Make a vocabulary of words and pieces of words; <pad> is 0, </s> is 1.

    Args:
        texts: of both languages.
        size: tokens at most.

    Raises:
        ArgumentError: a size that cannot hold every byte, or no text.
    """
    made = trained_bpe(map(plain, texts), size, special=SPECIAL, after=SPECIAL[END:], space=True)
    rules = tokenizers.Tokenizer.from_str(made.json())
    rules.normalizer = PLAIN
    return Tokenizer(rules)
