"""Vocabularies give back the text they cut, whatever it is, and are the same each time."""

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkv.errors import ArgumentError
from qkv.models.formats.files import Unwritten
from qkv.models.text.tokenizer import Tokenizer
from qkv.train.vocabulary import BYTES, END, of_bytes, trained_bpe

TEXTS = ("the red house is old\n", "the red houses are old\n", "los árboles rojos, ¿qué?\n") * 5


@pytest.fixture(scope="module", params=["bytes", "bpe"])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return of_bytes() if request.param == "bytes" else trained_bpe(TEXTS, 300)


@given(text=st.text(st.characters(exclude_categories=["Cs"]), max_size=60))
def test_the_text_of_the_tokens_is_the_text(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.plain(text)) == text


def test_a_token_of_bytes_is_a_byte() -> None:
    text = "¿qué? 你好\n"
    ids = of_bytes().plain(text)
    assert len(ids) == len(text.encode())
    assert len(set(of_bytes().plain("".join(map(chr, range(0x800)))))) > 128


def test_special_tokens_have_the_first_ids_in_their_order() -> None:
    for tokenizer in (of_bytes(special=("<pad>", "</s>")), trained_bpe(TEXTS, 290,
                      special=("<pad>", "</s>"))):  # fmt: skip
        assert tokenizer.special == {"<pad>": 0, "</s>": 1}
        assert tokenizer.plain("</s>")[0] > 1, "in a text they are letters"
        assert tokenizer.decode([1, *tokenizer.plain("a"), 0]) == "a"


def test_frequent_pairs_become_tokens_up_to_the_size() -> None:
    small, large = trained_bpe(TEXTS, BYTES + 3), trained_bpe(TEXTS, 280)
    assert (small.size, large.size) == (BYTES + 3, 280)
    assert len(large.plain(TEXTS[0])) < len(small.plain(TEXTS[0])) <= len(TEXTS[0])
    assert trained_bpe(["ab"], 400).size == BYTES + 1, "a pair that is seen once is not joined"


def test_the_most_frequent_pair_is_joined_first() -> None:
    tokenizer = trained_bpe(["xyxyxy xy ab ab"], BYTES + 2)
    assert tokenizer.piece(BYTES + 1) == "xy"


def test_the_same_texts_give_the_same_vocabulary() -> None:
    assert trained_bpe(iter(TEXTS), 320).json() == trained_bpe(list(TEXTS), 320).json()


def test_what_stands_around_a_text_is_put_there() -> None:
    tokenizer = trained_bpe(
        TEXTS, 300, special=("[PAD]", "[CLS]", "[SEP]"), before=("[CLS]",), after=("[SEP]",)
    )
    cut = tokenizer("red")
    assert (cut.ids[0], cut.ids[-1]) == (1, 2)
    assert cut.ids[1:-1] == tokenizer.plain("red")
    assert cut.special == (True, *[False] * (len(cut) - 2), True)


def test_a_word_is_the_same_at_the_beginning_and_within() -> None:
    tokenizer = trained_bpe(TEXTS, 300, space=True)
    first, within = tokenizer.plain("red"), tokenizer.plain("the red")
    assert within[-len(first) :] == first
    assert tokenizer.decode(first) == "red"


def test_letters_are_composed_and_made_small_where_wanted() -> None:
    tokenizer = trained_bpe(TEXTS, 300, compose=True, lower=True)
    assert tokenizer.plain("A\u0301RBOLES") == tokenizer.plain("árboles")
    plain = trained_bpe(TEXTS, 300)
    assert plain.plain("A\u0301RBOLES") != plain.plain("árboles")


def test_a_tokenizer_is_read_back_as_it_was(
    tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("read") / "tokenizer.json"
    path.write_text(tokenizer.json(), "utf-8")
    again = Tokenizer.read(path)
    assert again.plain(TEXTS[2]) == tokenizer.plain(TEXTS[2])
    assert again.special == tokenizer.special == {END: 0}


@pytest.mark.parametrize("size", [0, 1, BYTES, True, 300.0])
def test_a_size_that_holds_no_bytes_is_refused(size: int, as_shipped: None) -> None:
    with pytest.raises(ArgumentError, match=r"size is .*; wanted 257 or more: 256 bytes and 1"):
        trained_bpe(TEXTS, size)


@pytest.mark.parametrize("texts", [[], ["", ""]])
def test_no_text_is_refused(texts: list[str]) -> None:
    with pytest.raises(ArgumentError, match="no text to train a vocabulary on"):
        trained_bpe(texts, 300)


def test_text_that_is_no_unicode_is_refused_with_its_place() -> None:
    with pytest.raises(ArgumentError, match=r"no Unicode: 'before \\ud800'"):
        trained_bpe(["good", "before \ud800 after"], 300)


def test_an_error_of_what_reads_the_texts_is_passed_on() -> None:
    def broken() -> Iterator[str]:
        yield "good"
        raise ArgumentError("line 2 is bad")

    with pytest.raises(ArgumentError, match="line 2 is bad"):
        trained_bpe(broken(), 300)


def test_special_tokens_that_cannot_be_meant_are_refused() -> None:
    with pytest.raises(ArgumentError, match="wanted each once"):
        of_bytes(special=("<s>", "<s>"))
    with pytest.raises(ArgumentError, match="none empty"):
        trained_bpe(TEXTS, 300, special=("",))
    with pytest.raises(ArgumentError, match=r"\[SEP\] cannot stand around a text; wanted one of <"):
        of_bytes(after=("[SEP]",))


def test_what_cannot_be_meant_is_refused_before_a_text_is_read() -> None:
    def unread() -> Iterator[str]:
        raise AssertionError("was read")
        yield

    with pytest.raises(ArgumentError, match=r"\[CLS\] cannot stand around a text"):
        trained_bpe(unread(), 300, before=("[CLS]",))


def test_an_unwritten_folder_has_a_tokenizer_and_nothing_else(tokenizer: Tokenizer) -> None:
    files = Unwritten(tokenizer)
    assert files.tokenizer() is tokenizer
    assert files.json("generation_config.json") is None
    assert Unwritten().tokenizer() is None
