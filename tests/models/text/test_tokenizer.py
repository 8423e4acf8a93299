"""Text in tokens, as Hugging Face's tokenizer of the same folder cuts it."""

import json
from pathlib import Path

import pytest
import tokenizers

from qkv.errors import ArgumentError, FileError, ModelError
from qkv.models.bert import Bert
from qkv.models.text.tokenizer import Tokenizer, Tokens

TEXTS = [
    "draw a map",
    "  Unbelievably, the coffee's spilled!\n",
    "été 🙂 日本語",
    "=SUM(A1:A3) <script>alert('x')</script> {{7*7}}",
    "\x00 zero \u202e reversed",
    "[CLS] written by hand [SEP]",
    "map " * 300,
]


def small(path: Path, **rules: object) -> Path:
    """Write a tokenizer of three words that cuts off at 2 and pads to 5."""
    vocabulary = {"[PAD]": 0, "[UNK]": 1, "draw": 2, "a": 3, "map": 4}
    model = tokenizers.models.WordLevel(vocabulary, unk_token="[UNK]")
    made = tokenizers.Tokenizer(model)
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.add_special_tokens(["[PAD]", "[UNK]"])
    made.enable_truncation(2)
    made.enable_padding(length=5)
    made.save(str(path))
    return path


@pytest.mark.parametrize("text", TEXTS)
def test_ids_tokens_and_offsets_equal_hugging_faces(
    minilm: Bert, minilm_folder: Path, text: str
) -> None:
    from transformers import AutoTokenizer

    theirs = AutoTokenizer.from_pretrained(minilm_folder)(
        text, return_offsets_mapping=True, truncation=False, padding=False
    )
    ours = minilm.tokenizer(text)
    assert list(ours.ids) == theirs["input_ids"]
    assert list(ours.names) == theirs.tokens()
    assert list(ours.offsets) == theirs["offset_mapping"]


def test_the_special_tokens_stand_around_the_text(minilm: Bert) -> None:
    tokens = minilm.tokenizer("draw a mapping")
    assert tokens.names == ("[CLS]", "draw", "a", "mapping", "[SEP]")
    assert tokens.special == (True, False, False, False, True)
    assert minilm.tokenizer.special == {
        "[PAD]": 0, "[UNK]": 100, "[CLS]": 101, "[SEP]": 102, "[MASK]": 103,
    }  # fmt: skip
    assert minilm.tokenizer.size == 30522


def test_offsets_count_characters_of_the_text(minilm: Bert) -> None:
    text = "été 日本"
    tokens = minilm.tokenizer(text)
    assert [text[a:b] for a, b in tokens.offsets] == ["", "ét", "é", "日", "本", ""]


def test_nothing_is_cut_off_and_nothing_padded_whatever_the_file_says(tmp_path: Path) -> None:
    tokenizer = Tokenizer.read(small(tmp_path / "tokenizer.json"))
    expected = Tokens(
        ids=(2, 3, 4), names=("draw", "a", "map"), offsets=((0, 4), (5, 6), (7, 10)),
        special=(False, False, False),
    )  # fmt: skip
    assert tokenizer("draw a map") == expected
    assert len(tokenizer("draw a map a map a")) == 6


@pytest.mark.parametrize("text", ["", " ", "\n\t", "\x00"])
def test_text_without_a_token_is_refused(minilm: Bert, text: str) -> None:
    with pytest.raises(ArgumentError) as error:
        minilm.tokenizer(text)
    assert str(error.value) == f"text is {text!r}: there is no token in it"


def test_half_a_surrogate_pair_is_refused(minilm: Bert) -> None:
    with pytest.raises(ArgumentError, match=r"text '\\ud800' holds characters that are no Unicode"):
        minilm.tokenizer("\ud800")


@pytest.mark.usefixtures("as_shipped")
@pytest.mark.parametrize(
    ("text", "kind"), [(None, "NoneType"), (["draw"], "list"), (b"a", "bytes")]
)
def test_what_is_no_text_is_refused(minilm: Bert, text: object, kind: str) -> None:
    with pytest.raises(ArgumentError, match=f"text is a {kind}; wanted a str"):
        minilm.tokenizer(text)  # type: ignore[arg-type]


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"tokenizer\.json is not there; wanted a tokenizer\.json"):
        Tokenizer.read(tmp_path / "tokenizer.json")


@pytest.mark.parametrize("content", [b"", b"{}", b"no JSON", json.dumps([1]).encode(), b"\x80\x04"])
def test_a_file_that_holds_no_tokenizer_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_bytes(content)
    with pytest.raises(FileError, match=r"tokenizer\.json holds no tokenizer that can be read: "):
        Tokenizer.read(path)


@pytest.mark.parametrize("kind", ["WordPiece", "WordLevel"])
def test_a_vocabulary_without_its_own_unknown_token_says_so(tmp_path: Path, kind: str) -> None:
    model = {"type": kind, "unk_token": "[UNK]", "vocab": {"a": 0}}
    if kind == "WordPiece":
        model |= {"continuing_subword_prefix": "##", "max_input_chars_per_word": 100}
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps({"version": "1.0", "model": model}))
    cut = Tokenizer.read(path)
    assert cut("a").ids == (0,)
    for ask in (cut, cut.plain):
        with pytest.raises(ModelError, match="the tokenizer cannot cut 'xyz': "):
            ask("xyz")


# --- and back -------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", TEXTS[:-1])
def test_text_comes_back_as_hugging_face_brings_it(
    minilm: Bert, minilm_folder: Path, text: str
) -> None:
    from transformers import AutoTokenizer

    theirs = AutoTokenizer.from_pretrained(minilm_folder).backend_tokenizer
    ids = minilm.tokenizer(text).ids
    assert minilm.tokenizer.decode(ids) == theirs.decode(list(ids), skip_special_tokens=True)
    whole = theirs.decode(list(ids), skip_special_tokens=False)
    assert minilm.tokenizer.decode(ids, special=True) == whole


def test_nothing_is_put_around_where_that_is_asked_for(minilm: Bert) -> None:
    tokens = minilm.tokenizer("draw a map", around=False)
    assert tokens.names == ("draw", "a", "map")
    assert not any(tokens.special)


def test_pieces_are_the_vocabularys(minilm: Bert) -> None:
    tokens = minilm.tokenizer("unbelievably")
    assert tuple(minilm.tokenizer.piece(number) for number in tokens.ids) == tokens.names


def test_ids_that_no_token_has_are_refused_or_stand_for_nothing(minilm: Bert) -> None:
    for number in (-1, 30522):
        with pytest.raises(ArgumentError, match=f"no token {number}; the vocabulary has 30522"):
            minilm.tokenizer.piece(number)
    with pytest.raises(ArgumentError, match="ids reach down to -2; wanted numbers from 0"):
        minilm.tokenizer.decode([3, -2])
    map_ids = minilm.tokenizer("map", around=False).ids
    assert minilm.tokenizer.decode([*map_ids, 30522]) == "map"
