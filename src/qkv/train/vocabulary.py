"""Vocabularies of bytes and byte pairs: what cuts text into tokens, trained on the text itself.

A token is one byte or several (GPT-2's alphabet of bytes), so no text is unknown and the text of
its tokens is the text. Special tokens have the first ids, in their order; then come the 256 bytes,
then what was joined.
"""

from collections.abc import Iterable, Iterator, Sequence

import tokenizers
from tokenizers import decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.processors import TemplateProcessing
from tokenizers.trainers import BpeTrainer

from qkv.errors import ArgumentError
from qkv.models.text.tokenizer import Tokenizer

END = "<|endoftext|>"
"""Ends a text."""

BYTES = 256

RARE = 2
"""A pair that is seen less often is not joined."""


def trained_bpe(
    texts: Iterable[str],
    size: int,
    *,
    special: Sequence[str] = (END,),
    before: Sequence[str] = (),
    after: Sequence[str] = (),
    space: bool = False,
    compose: bool = False,
    lower: bool = False,
) -> Tokenizer:
    """Join the pair of tokens that is most frequent, again and again        Sennrich et al. 2016

    Words are joined within themselves, not with each other. The same texts give the same tokens.

    Args:
        texts: any number of them; they are read once.
        size: tokens of the vocabulary at most, special ones included; there are fewer where no
            pair is left that is seen twice.
        special: tokens that stand for something else than their letters; the first has id 0.
        before, after: those of them that are put around a text.
        space: whether a text begins as if a space stood before it, so that a word is the same
            token there as anywhere; what is decoded has no such space.
        compose: whether letters and accents are first made one character (Unicode's NFC).
        lower: whether letters are made small.

    Raises:
        ArgumentError: a size that cannot hold the bytes, special tokens that are twice there or
            not at all, no text, or text that is no Unicode.
    """
    least = len(special) + BYTES
    if isinstance(size, bool) or not isinstance(size, int) or size < least:
        raise ArgumentError(
            f"the vocabulary's size is {size!r}; wanted {least} or more: {BYTES} bytes and "
            f"{len(special)} special tokens"
        )
    _check_around(special, before, after)
    rules = _rules(tokenizers.Tokenizer(BPE()), space=space, compose=compose, lower=lower)
    trainer = BpeTrainer(
        vocab_size=size, min_frequency=RARE, special_tokens=_distinct(special),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False,
    )  # fmt: skip
    rules.train_from_iterator(_some(texts), trainer)
    return _around(rules, special, before, after)


def of_bytes(
    *, special: Sequence[str] = (END,), before: Sequence[str] = (), after: Sequence[str] = ()
) -> Tokenizer:
    """Every byte is a token: nothing to train, the longest texts.

    The arguments and errors are those of `trained_bpe`.
    """
    _check_around(special, before, after)
    pieces = [*_distinct(special), *sorted(pre_tokenizers.ByteLevel.alphabet())]
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    rules = _rules(tokenizers.Tokenizer(BPE(vocabulary, [])))
    rules.add_special_tokens(list(special))
    return _around(rules, special, before, after)


def _rules(
    rules: tokenizers.Tokenizer, *, space: bool = False, compose: bool = False, lower: bool = False
) -> tokenizers.Tokenizer:
    """Say how text becomes bytes, and bytes text."""
    steps = [normalizers.NFC()] * compose + [normalizers.Lowercase()] * lower
    if steps:
        rules.normalizer = normalizers.Sequence(steps)
    rules.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=space)
    plain = decoders.ByteLevel()
    rules.decoder = decoders.Sequence([plain, decoders.Strip(" ", 1, 0)]) if space else plain
    return rules


def _around(
    rules: tokenizers.Tokenizer,
    special: Sequence[str],
    before: Sequence[str],
    after: Sequence[str],
) -> Tokenizer:
    if before or after:
        rules.post_processor = TemplateProcessing(
            single=[*before, "$A", *after],
            special_tokens=[(token, special.index(token)) for token in (*before, *after)],
        )
    return Tokenizer(rules)


def _check_around(special: Sequence[str], before: Sequence[str], after: Sequence[str]) -> None:
    unknown = [token for token in (*before, *after) if token not in special]
    if unknown:
        raise ArgumentError(
            f"{', '.join(unknown)} cannot stand around a text; wanted one of {', '.join(special)}"
        )


def _distinct(special: Sequence[str]) -> list[str]:
    if len(set(special)) != len(special) or not all(special):
        raise ArgumentError(f"special tokens are {list(special)}; wanted each once, none empty")
    return list(special)


def _some(texts: Iterable[str]) -> Iterator[str]:
    """Pass texts on, and raise where there is nothing in them."""
    seen = False
    for text in texts:
        try:
            text.encode()
        except UnicodeEncodeError as error:  # half of a surrogate pair
            at = repr(text[max(0, error.start - 20) : error.end])
            raise ArgumentError(f"text holds characters that are no Unicode: {at}") from error
        seen = seen or bool(text)
        yield text
    if not seen:
        raise ArgumentError("there is no text to train a vocabulary on")
