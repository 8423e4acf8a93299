"""How translators spell: capital letters and marks do not matter, every letter can be written."""

import random

import pytest

from qkv.errors import ArgumentError
from qkv.train.translation.spelling import PLAIN, plain, spelling

TEXTS = ["the sky is blue", "el cielo es azul", "mañana", "the sky", "el niño corrió", "the blue"]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("The sky is blue.", "the sky is blue"),
        ("  THE SKY,  is «blue»?! ", "the sky is blue"),
        ("¿Dónde está el niño?", "dónde está el niño"),
        ("don’t", "don't"),
        ("mañana", "mañana"),  # n and a tilde of its own
        ("well-known", "well known"),
        ("a\tb\nc", "a b c"),
        ("...", ""),
    ],
)
def test_text_is_small_letters_without_marks(text: str, wanted: str) -> None:
    assert plain(text) == wanted


def test_what_is_plain_already_is_what_the_rules_make_of_it(seed: int) -> None:
    draw = random.Random(seed)
    some = [
        "".join(draw.choices("abz áéíñóúü'09 ÁN\u0303.", k=draw.randint(1, 8))) for _ in range(4000)
    ]
    assert [plain(text) for text in some] == [PLAIN.normalize_str(text) for text in some]
    assert sum(plain(text) == text for text in some) > 500


def test_tokens_are_those_of_the_plain_text_and_give_it_back() -> None:
    tokenizer = spelling(TEXTS, 400)
    for text in ("The sky is blue.", "el CIELO, es azul", "ñandú 漢字 🙂x", "a</s>b"):
        ids = tokenizer.plain(text)
        assert ids == tokenizer.plain(plain(text))
        assert tokenizer.decode(ids) == plain(text)
        assert min(ids) > 1
    assert tokenizer("The sky").ids == (*tokenizer.plain("the sky"), 1)
    assert (tokenizer.piece(0), tokenizer.piece(1)) == ("<pad>", "</s>")


def test_a_word_is_the_same_tokens_wherever_it_stands() -> None:
    tokenizer = spelling(TEXTS * 3, 600)
    (sky,) = tokenizer.plain("sky")
    assert sky in tokenizer.plain("the sky is")


def test_a_text_of_marks_alone_has_no_token() -> None:
    tokenizer = spelling(TEXTS, 400)
    assert tokenizer.plain("?!") == ()
    with pytest.raises(ArgumentError, match="there is no token in it"):
        tokenizer("?!")


def test_what_cannot_hold_the_bytes_is_refused() -> None:
    with pytest.raises(ArgumentError, match="size"):
        spelling(TEXTS, 200)
