"""What tokens may be given as, and what is told of them."""

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers

from qkv.errors import ArgumentError
from qkv.recording.tokens import Tokens, is_separator, word

VOCABULARY = {"[UNK]": 0, "a": 1, "map": 2, ",": 3}


@pytest.fixture
def tokenizer() -> Tokenizer:
    made = Tokenizer(models.WordLevel(VOCABULARY, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    return made


class Named:
    """A tokenizer as those of `transformers` are asked."""

    def __call__(self, text: str) -> dict[str, list[int]]:
        return {"input_ids": [VOCABULARY[part] for part in text.split()]}

    def convert_ids_to_tokens(self, ids: list[int]) -> list[str]:
        return [list(VOCABULARY)[number] for number in ids]


def test_one_list_stands_for_every_example() -> None:
    tokens = Tokens.read(["a", "map"])
    assert (tokens.of(0), tokens.of(5)) == (("a", "map"), ("a", "map"))
    assert tokens.fit(7, 2)
    assert not tokens.fit(7, 3)


def test_lists_are_one_an_example() -> None:
    tokens = Tokens.read([["a", "map"], ["a", "a"]])
    assert tokens.of(1) == ("a", "a")
    assert tokens.fit(2, 2)
    assert not tokens.fit(3, 2)


@pytest.mark.parametrize("given", [torch.tensor([[1, 2], [1, 0]]), [[1, 2], [1, 0]]])
def test_ids_are_named_by_a_tokenizer(given: torch.Tensor, tokenizer: Tokenizer) -> None:
    for named in (tokenizer, Named()):
        assert Tokens.read(given, named).texts == (("a", "map"), ("a", "[UNK]"))


def test_a_text_is_cut_by_a_tokenizer(tokenizer: Tokenizer) -> None:
    for cuts in (tokenizer, Named()):
        assert Tokens.read("a map , a", cuts).texts == (("a", "map", ",", "a"),)


@pytest.mark.usefixtures("as_shipped")
@pytest.mark.parametrize(
    ("given", "tokenizer", "says"),
    [
        ("a map", None, "wanted also tokenizer="),
        ([1, 2], None, "wanted also tokenizer=, to name them"),
        ([], None, "tokens is []"),
        ([[]], None, r"tokens is \[\[\]\]"),
        ([["a"], ["a", "b"]], None, "examples of 1, 2 tokens; wanted the same number"),
        ([True, False], Named(), "wanted a list of texts"),
        ([1.5, 2.0], Named(), "wanted a list of texts"),
        ([1, 2], object(), "tokenizer is a object; wanted one of transformers"),
        ("a", object(), "tokenizer is a object; wanted one of transformers"),
    ],
)
def test_what_are_no_tokens_is_refused(given: object, tokenizer: object, says: str) -> None:
    with pytest.raises(ArgumentError, match=says.replace("[]", r"\[\]")):
        Tokens.read(given, tokenizer)  # type: ignore[arg-type]


@pytest.mark.parametrize("token", ["[SEP]", "<s>", "<|im_end|>", "Ġ,", ".", "—", "▁", "Ċ", "\n"])
def test_special_tokens_and_punctuation_separate(token: str) -> None:
    assert is_separator(token)


@pytest.mark.parametrize("token", ["a", "Ġmap", "##ing", "7", "<", "a.b", "é", "地"])
def test_words_do_not_separate(token: str) -> None:
    assert not is_separator(token)


def test_a_word_is_the_same_however_it_is_written() -> None:
    assert word("ĠMap") == word("map") == word("▁MAP") == "map"
    assert word("▁") == "▁"
    numbers = Tokens.read([["ĠMap", "a", "map"], ["a", "A", "b"]]).words(2)
    assert numbers.tolist() == [[0, 1, 0], [1, 1, 2]]
