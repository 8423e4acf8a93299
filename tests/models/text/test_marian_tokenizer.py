"""Marian's tokenizer beside Hugging Face's, on a folder whose ids are not those of its pieces."""

import json
import random
import warnings
from pathlib import Path
from typing import Any

import pytest

from qkv.errors import ArgumentError, FileError
from qkv.models.formats.files import Files
from qkv.models.text.marian_tokenizer import MarianTokenizer
from qkv.models.text.sentencepiece import SentencePiece
from tests.models.text.test_sentencepiece import ALPHABET, TEXTS, trained

SPECIAL = ["</s>", "<unk>", "<pad>"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two models, and one vocabulary that is mixed and lacks some pieces of each."""
    made = tmp_path_factory.mktemp("marian")
    numbers: dict[str, int] = {"</s>": 0, "<unk>": 1, ">>fr<<": 2}
    for name, size in (("source", 110), ("target", 240)):
        (made / f"{name}.spm").write_bytes(trained(vocab_size=size))
        model = SentencePiece.read(made / f"{name}.spm")
        pieces = [piece.text for piece in model.pieces[3:]]
        random.Random(5).shuffle(pieces)
        for text in pieces[4:]:
            numbers.setdefault(text, len(numbers))
    numbers["<pad>"] = len(numbers)
    (made / "vocab.json").write_text(json.dumps(numbers), "utf-8")
    return made


@pytest.fixture(scope="module")
def theirs(folder: Path) -> Any:
    from transformers import MarianTokenizer as Theirs

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it recommends sacremoses
        return Theirs(
            str(folder / "source.spm"), str(folder / "target.spm"), str(folder / "vocab.json")
        )


def texts() -> list[str]:
    draw = random.Random(11)
    some = ["".join(draw.choices(ALPHABET, k=draw.randint(1, 25))) for _ in range(200)]
    written = [text for text in TEXTS if text.strip(" \u200b▁\0") and "</s>" not in text]
    return [*written, ">>fr<< tranka lo", ">>fr<<mi", ">>xx<< mi", *some]


def test_ids_equal_hugging_faces(folder: Path, theirs: Any) -> None:
    ours = MarianTokenizer.read(folder)
    compared = 0
    for text in texts():
        expected = theirs(text)["input_ids"]
        if len(expected) > 1:
            assert list(ours(text).ids) == expected, text
            compared += 1
    assert compared > 200


def test_targets_are_cut_by_their_own_model(folder: Path, theirs: Any) -> None:
    ours = MarianTokenizer.read(folder, "target.spm")
    different = 0
    for text in ["tranéü日本 the kalomi", "ingthe loka", "konba re"]:
        expected = theirs(text_target=text)["input_ids"]
        assert list(ours(text).ids) == expected
        different += expected != theirs(text)["input_ids"]
    assert different


def test_tokens_say_where_they_stand(folder: Path) -> None:
    text = ">>fr<< ﬁka  lo"
    tokens = MarianTokenizer.read(folder)(text)
    assert tokens.names[0] == ">>fr<<"
    assert tokens.names[-1] == "</s>"
    assert "".join(tokens.names[1:-1]) == "▁fika▁lo"
    assert tokens.special == (*(False for _ in tokens.names[1:]), True)
    assert tokens.offsets[-1] == (0, 0)
    assert tokens.offsets[0] == (0, 6)
    for (a, b), name in zip(tokens.offsets[1:-1], tokens.names[1:-1], strict=True):
        assert name.strip("▁") in (text[a:b].replace("ﬁ", "fi")), name


def test_decoding_equals_hugging_faces(folder: Path, theirs: Any) -> None:
    ours, draw = MarianTokenizer.read(folder), random.Random(13)
    for _ in range(100):
        ids = [draw.randrange(ours.size) for _ in range(draw.randint(0, 12))]
        assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)
    for text in ["kalo mi tran", "日本 the."]:
        assert ours.decode(ours(text).ids) == text


def test_special_tokens_in_a_text_are_text(folder: Path) -> None:
    tokenizer = MarianTokenizer.read(folder)
    assert tokenizer("</s>").ids.count(0) == 1
    assert tokenizer("ka</s>").ids[-1] == 0


def test_the_vocabulary_is_that_of_the_file(folder: Path) -> None:
    tokenizer = MarianTokenizer.read(folder)
    numbers = json.loads((folder / "vocab.json").read_text("utf-8"))
    assert tokenizer.size == len(numbers)
    assert tokenizer.special == {name: numbers[name] for name in SPECIAL}
    assert all(tokenizer.piece(number) == name for name, number in numbers.items())


@pytest.mark.parametrize("text", ["", "   ", "\u200b", "\n"])
def test_text_without_a_token_is_refused(folder: Path, text: str) -> None:
    with pytest.raises(ArgumentError, match="there is no token in it"):
        MarianTokenizer.read(folder)(text)


def test_half_a_surrogate_pair_is_refused(folder: Path) -> None:
    with pytest.raises(ArgumentError, match="holds characters that are no Unicode"):
        MarianTokenizer.read(folder)("\ud800")


@pytest.mark.usefixtures("as_shipped")
def test_what_is_no_text_is_refused(folder: Path) -> None:
    with pytest.raises(ArgumentError, match="text is a bytes; wanted a str"):
        MarianTokenizer.read(folder)(b"ka")  # type: ignore[arg-type]


def test_ids_outside_of_the_vocabulary_have_no_name_and_no_text(folder: Path) -> None:
    tokenizer = MarianTokenizer.read(folder)
    for number in (-1, tokenizer.size):
        with pytest.raises(ArgumentError, match=f"there is no token {number}; the vocabulary has"):
            tokenizer.piece(number)
    assert tokenizer.decode([tokenizer.size]) == ""
    with pytest.raises(ArgumentError, match="ids reach down to -1; wanted numbers from 0"):
        tokenizer.decode([3, -1])


def test_special_tokens_are_left_out_unless_they_are_asked_for(folder: Path) -> None:
    tokenizer = MarianTokenizer.read(folder)
    ids = tokenizer("ka").ids
    assert tokenizer.decode(ids) == "ka"
    assert tokenizer.decode(ids, special=True) == "ka</s>"
    assert tokenizer("ka", around=False).ids == ids[:-1]


def test_a_folders_files_offer_it(folder: Path) -> None:
    assert isinstance(Files(folder).tokenizer(), MarianTokenizer)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"</s>": None}, "the vocabulary lacks </s>; wanted one number a piece"),
        ({"more": 0}, "the vocabulary gives the same number twice"),
        ({"more": -1}, "gives 'more' no whole number from 0 on"),
        ({"more": "3"}, "gives 'more' no whole number from 0 on"),
        ({"more": True}, "gives 'more' no whole number from 0 on"),
    ],
)
def test_a_vocabulary_that_is_none_is_refused(
    folder: Path, tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    numbers = json.loads((folder / "vocab.json").read_text("utf-8")) | change
    numbers = {name: number for name, number in numbers.items() if number is not None}
    (tmp_path / "vocab.json").write_text(json.dumps(numbers), "utf-8")
    (tmp_path / "source.spm").write_bytes((folder / "source.spm").read_bytes())
    with pytest.raises(FileError, match=message):
        MarianTokenizer.read(tmp_path)


def test_two_vocabularies_are_refused(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "target_vocab.json").write_text("{}")
    with pytest.raises(FileError, match=r"has a target_vocab\.json; wanted one vocabulary"):
        MarianTokenizer.read(tmp_path)
