"""The tokenizer of a GGUF file against Hugging Face's, and patterns against another engine's."""

from pathlib import Path
from typing import Any

import pytest
import regex
import tokenizers

from qkv.errors import FileError, ModelError
from qkv.models import look
from qkv.models.text.gguf_tokenizer import PATTERNS, WORDS, make_tokenizer
from qkv.models.text.tokenizer import Tokenizer

TEXTS = [
    "The capital of France is",
    "  two spaces, \t a tab\n\nand lines \n ",
    "été 🙂 日本語 naïve Ünïcödé ①½",
    "In 1984 it cost 3.14159€, or 12,345.67?",
    "def f(x):\n    return x**2  # it's\n\n\tprint('don't')",
    "<|im_start|>user\nHello<|im_end|>",
    "WE'RE shouting, they'Ll see; I'd've",
    "\u202e\u0000 zero\r\n\r\n end   ",
    "ا لعربية עברית हिन्दी ไทย 한국어 ٣٤٥",
]
FILE = Path("x.gguf")


@pytest.fixture(scope="module")
def ours(smollm2_file: Path) -> Tokenizer:
    found = look(smollm2_file).files.tokenizer()
    assert found is not None
    return found


@pytest.fixture(scope="module")
def theirs(smollm2_file: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(smollm2_file.parent, gguf_file=smollm2_file.name)


@pytest.mark.slow
@pytest.mark.parametrize("text", TEXTS)
def test_ids_offsets_and_text_are_hugging_faces(ours: Tokenizer, theirs: Any, text: str) -> None:
    tokens = ours(text)
    if not regex.search(r"[^\P{N}0-9]|\s\s[0-9]", text):  # see the next test
        other = theirs(text, return_offsets_mapping=True)
        assert list(tokens.ids) == other["input_ids"]
        assert list(tokens.offsets) == other["offset_mapping"]
    rules = tokenizers.Tokenizer.from_str(theirs.backend_tokenizer.to_str())
    digits = tokenizers.pre_tokenizers.Digits(individual_digits=True)
    rules.pre_tokenizer = tokenizers.pre_tokenizers.Sequence([digits, rules.pre_tokenizer])
    assert list(tokens.ids) == rules.encode(text).ids
    assert ours.decode(tokens.ids, special=True) == text
    assert ours.decode(tokens.ids) == rules.decode(list(tokens.ids))
    assert ours.special == theirs.get_added_vocab()


def test_each_digit_is_a_token_and_spaces_before_it_stay_together(ours: Tokenizer) -> None:
    """SmolLM2's own rule, which Hugging Face's reading of the GGUF file leaves out."""
    assert ours("a   12").names == ("a", "ĠĠĠ", "1", "2")


def test_a_token_is_written_as_the_vocabulary_has_it(ours: Tokenizer) -> None:
    assert [ours.piece(i) for i in ours("Paris map").ids] == ["Paris", "Ġmap"]
    assert ours.piece(2) == "<|im_end|>"


# --- patterns -------------------------------------------------------------------------------------

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
"""Radford et al. 2019, as published with the model."""
EXPECTED = {
    "gpt-2": lambda text: regex.findall(GPT2, text),
    "default": lambda text: regex.findall(GPT2, text),
    "smollm": lambda text: [
        word for part in regex.split(r"(\p{N})", text) for word in regex.findall(GPT2, part)
    ],
    "llama-bpe": lambda text: regex.findall(WORDS.replace("DIGITS", r"\p{N}{1,3}"), text),
    "qwen2": lambda text: regex.findall(WORDS.replace("DIGITS", r"\p{N}"), text),
}


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("name", PATTERNS)
def test_text_is_cut_into_the_patterns_words(name: str, text: str) -> None:
    cut = PATTERNS[name]().pre_tokenize_str(text)
    assert [text[a:b] for _, (a, b) in cut] == EXPECTED[name](text)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("gpt-2", ["it", "'s", " 12345", "  ", " OK", "'", "LL"]),
        ("smollm", ["it", "'s", " ", "1", "2", "3", "4", "5", "  ", " OK", "'", "LL"]),
        ("llama-bpe", ["it", "'s", " ", "123", "45", "  ", " OK", "'LL"]),
        ("qwen2", ["it", "'s", " ", "1", "2", "3", "4", "5", "  ", " OK", "'LL"]),
    ],
)
def test_each_name_has_its_own_rule(name: str, words: list[str]) -> None:
    text = "it's 12345   OK'LL"
    assert [text[a:b] for _, (a, b) in PATTERNS[name]().pre_tokenize_str(text)] == words


# --- small tables ---------------------------------------------------------------------------------


def tables(**changes: Any) -> dict[str, Any]:
    """Settings of all 256 bytes, one merge and three tokens of their own."""
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    settings = {
        "model": "gpt2", "pre": "gpt-2", "tokens": ["<s>", "</s>", "<u>", *alphabet, "ab"],
        "merges": ["a b"], "token_type": [3, 3, 4, *[1] * 257],
        "bos_token_id": 0, "eos_token_id": 1,
    } | changes  # fmt: skip
    return {f"tokenizer.ggml.{key}": value for key, value in settings.items()}


def test_merges_control_tokens_and_those_of_users_are_found() -> None:
    tokenizer = make_tokenizer(tables(), FILE)
    tokens = tokenizer("ab<u>a<s>")
    assert tokens.names == ("ab", "<u>", "a", "<s>")
    assert tokenizer.special == {"<s>": 0, "</s>": 1}
    assert tokenizer.decode(tokens.ids) == "ab<u>a"


@pytest.mark.parametrize(
    ("asked", "names"),
    [
        ({"add_bos_token": True}, ("<s>", "a")),
        ({"add_eos_token": True}, ("a", "</s>")),
        ({"add_bos_token": True, "add_eos_token": True}, ("<s>", "a", "</s>")),
        ({"add_bos_token": False}, ("a",)),
        ({}, ("a",)),
        ({"pre": "llama-bpe"}, ("<s>", "a")),
        ({"pre": "llama-bpe", "add_bos_token": False}, ("a",)),
        ({"pre": "llama-bpe", "bos_token_id": None}, ("a",)),
        ({"pre": "qwen2"}, ("a",)),
    ],
)
def test_what_stands_around_a_text_is_as_the_file_says(
    asked: dict[str, bool], names: tuple[str, ...]
) -> None:
    tokenizer = make_tokenizer(tables(**asked), FILE)
    assert tokenizer("a").names == names
    assert tokenizer("a", around=False).names == ("a",)


@pytest.mark.parametrize("begin", ["$A", "$B:1", "<a:b>", "a:1", "eos"])
def test_a_token_that_means_something_to_a_template_is_only_a_token(begin: str) -> None:
    settings = tables(add_bos_token=True, add_eos_token=True)
    tokens = [begin, "</s>", "<u>", *settings["tokenizer.ggml.tokens"][3:]]
    tokenizer = make_tokenizer(settings | {"tokenizer.ggml.tokens": tokens}, FILE)
    assert tokenizer("b").ids == (0, tokens.index("b"), 1)
    assert tokenizer("b").names == (begin, "b", "</s>")


@pytest.mark.parametrize(
    ("changes", "kind", "message"),
    [
        ({"model": "llama"}, ModelError, "x.gguf has a tokenizer of kind 'llama'; known: 'gpt2'"),
        ({"pre": "viking"}, ModelError, "x.gguf cuts text into words as 'viking' does; known: gpt"),
        ({"pre": ["gpt-2"]}, ModelError, "x.gguf cuts text into words as ['gpt-2'] does; known: "),
        ({"tokens": 7}, FileError, "x.gguf has no list of texts as tokenizer.ggml.tokens"),
        ({"tokens": [1]}, FileError, "x.gguf has no list of texts as tokenizer.ggml.tokens"),
        ({"merges": None}, FileError, "x.gguf has no list of texts as tokenizer.ggml.merges"),
        ({"merges": ["ab"]}, FileError, "x.gguf has the merge 'ab'; wanted two tokens"),
        ({"merges": ["a q q"]}, FileError, "x.gguf has the merge 'a q q'; wanted two tokens"),
        ({"merges": ["a zz"]}, FileError, "x.gguf has tokens and merges that do not fit: "),
        ({"tokens": ["a", "a"]}, FileError, "x.gguf lists a token twice"),
        ({"token_type": [1]}, FileError, "x.gguf has 260 tokens and another number of token types"),
        (
            {"add_bos_token": True, "bos_token_id": 260},
            FileError,
            "x.gguf asks for bos_token_id 260 of 260 tokens",
        ),
    ],
)
def test_tables_that_make_no_tokenizer_are_refused(
    changes: dict[str, Any], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind) as error:
        make_tokenizer(tables(**changes), FILE)
    assert str(error.value).startswith(message)
