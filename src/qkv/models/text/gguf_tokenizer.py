"""The tokenizer of a GGUF file, from the tables of tokens and merges in it.

Byte-pair encoding (Sennrich et al. 2016) of bytes (Radford et al. 2019): text is cut into words
by the model's own pattern, then the pairs of each word are merged, the first merges first.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.processors import TemplateProcessing

from qkv.errors import FileError, ModelError
from qkv.models.text.tokenizer import Tokenizer

CONTROL, USER_DEFINED = 3, 4
"""Types of tokens that are found in a text before it is cut into words."""

WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|DIGITS| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""Contractions, letters, digits, signs, ends of lines, spaces."""


def _gpt2() -> Any:
    return pre_tokenizers.ByteLevel(add_prefix_space=False)


def _digits_apart() -> Any:
    apart = pre_tokenizers.Digits(individual_digits=True)
    return pre_tokenizers.Sequence([apart, _gpt2()])


def _words(digits: str) -> Callable[[], Any]:
    def make() -> Any:
        split = pre_tokenizers.Split(Regex(WORDS.replace("DIGITS", digits)), "isolated")
        plain = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        return pre_tokenizers.Sequence([split, plain])

    return make


PATTERNS = {
    "gpt-2": _gpt2,
    "default": _gpt2,
    "smollm": _digits_apart,
    "llama-bpe": _words(r"\p{N}{1,3}"),
    "qwen2": _words(r"\p{N}"),
}
"""How text is cut into words, by the name in `tokenizer.ggml.pre`."""

BEGUN = ("llama-bpe",)
"""Where a text begins with a token of its own unless the file says no, as in llama.cpp."""


def make_tokenizer(settings: Mapping[str, Any], path: Path) -> Tokenizer:
    """Make the tokenizer of a GGUF file.

    Args:
        settings: of the file's header.
        path: of the file, for messages.

    Raises:
        ModelError: a kind of tokenizer, or a way to cut words, that is not known here.
        FileError: tables that do not fit each other.
    """
    given = {key.removeprefix("tokenizer.ggml."): value for key, value in settings.items()}
    if given.get("model") != "gpt2":
        raise ModelError(f"{path} has a tokenizer of kind {given.get('model')!r}; known: 'gpt2'")
    name = given.get("pre", "default")
    if not isinstance(name, str) or name not in PATTERNS:
        raise ModelError(
            f"{path} cuts text into words as {name!r} does; known: {', '.join(PATTERNS)}"
        )
    tokens, merges = _tables(given, path)
    rules = tokenizers.Tokenizer(_model(tokens, merges, name, path))
    rules.pre_tokenizer = PATTERNS[name]()
    rules.decoder = decoders.ByteLevel()
    if name == "qwen2":
        rules.normalizer = normalizers.NFC()
    _add_special(rules, tokens, given, path)
    _put_around(rules, tokens, given, path)
    return Tokenizer(rules)


def _tables(given: Mapping[str, Any], path: Path) -> tuple[list[str], list[tuple[str, str]]]:
    tokens, merges = given.get("tokens"), given.get("merges")
    for key, table in (("tokens", tokens), ("merges", merges)):
        if not isinstance(table, list) or not all(isinstance(text, str) for text in table):
            raise FileError(f"{path} has no list of texts as tokenizer.ggml.{key}")
    assert isinstance(tokens, list)
    assert isinstance(merges, list)
    pairs = [tuple(merge.split(" ")) for merge in merges]
    wrong = next((merge for merge, pair in zip(merges, pairs, strict=True) if len(pair) != 2), None)
    if wrong is not None:
        raise FileError(f"{path} has the merge {wrong!r}; wanted two tokens with a space between")
    return tokens, pairs


def _model(tokens: list[str], merges: list[tuple[str, str]], name: str, path: Path) -> Any:
    vocabulary = {token: number for number, token in enumerate(tokens)}
    if len(vocabulary) != len(tokens):
        raise FileError(f"{path} lists a token twice in tokenizer.ggml.tokens")
    try:
        return BPE(vocab=vocabulary, merges=merges, ignore_merges=name == "llama-bpe")
    except Exception as error:  # `tokenizers` raises nothing more special
        raise FileError(f"{path} has tokens and merges that do not fit: {error}") from error


def _add_special(
    rules: tokenizers.Tokenizer, tokens: list[str], given: Mapping[str, Any], path: Path
) -> None:
    """Find control tokens in a text before anything else, and those a user defined."""
    types = given.get("token_type", [1] * len(tokens))
    if not isinstance(types, list) or len(types) != len(tokens):
        raise FileError(f"{path} has {len(tokens)} tokens and another number of token types")
    named = list(zip(tokens, types, strict=True))
    control = [AddedToken(token, normalized=False) for token, kind in named if kind == CONTROL]
    others = [AddedToken(token, normalized=False) for token, kind in named if kind == USER_DEFINED]
    rules.add_special_tokens(control)
    rules.add_tokens(others)


def _put_around(
    rules: tokenizers.Tokenizer, tokens: list[str], given: Mapping[str, Any], path: Path
) -> None:
    """Put the tokens that begin and end a text around it, where the file asks for them."""
    by_default = given.get("pre") in BEGUN and given.get("bos_token_id") is not None
    template, used = ["$A"], []
    for side, default in (("bos", by_default), ("eos", False)):
        if not given.get(f"add_{side}_token", default):
            continue
        number = given.get(f"{side}_token_id")
        if type(number) is not int or not 0 <= number < len(tokens):
            raise FileError(f"{path} asks for {side}_token_id {number!r} of {len(tokens)} tokens")
        template = [side, *template] if side == "bos" else [*template, side]
        # by its number: a spelling may mean something to a template, such as "$A" and "a:1"
        used.append({"id": side, "ids": [number], "tokens": [tokens[number]]})
    if used:
        rules.post_processor = TemplateProcessing(single=template, special_tokens=used)
