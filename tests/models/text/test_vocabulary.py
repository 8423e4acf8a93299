"""Vocabularies without a tokenizer.json, against Hugging Face's tokenizers of the same files."""

import json
from pathlib import Path
from typing import Any

import pytest

from qkv.errors import FileError
from qkv.models.text.tokenizer import Tokenizer

TEXTS = [
    "Draw a map, Été!",
    "unbelievably naïve 日本語 🙂",
    "[CLS] by hand [SEP]  don't",
    "\n12,345.67 = x\t",
]
MERGES = ["d r", "dr a", "dra w", "Ġ a", "Ġ m", "Ġm a", "Ġma p", "o n", "' t"]


def read(folder: Path) -> Tokenizer:
    found = Tokenizer.find(folder)
    assert found is not None
    return found


@pytest.fixture
def word_pieces(tmp_path: Path, minilm_folder: Path) -> Path:
    """MiniLM's own vocabulary, one piece a line."""
    content = json.loads((minilm_folder / "tokenizer.json").read_text("utf-8"))
    words = content["model"]["vocab"]
    lines = "".join(f"{word}\n" for word in sorted(words, key=words.__getitem__))
    (tmp_path / "vocab.txt").write_text(lines, "utf-8")
    return tmp_path


@pytest.mark.parametrize("lower", [True, False])
@pytest.mark.parametrize("text", TEXTS)
def test_word_pieces_are_hugging_faces(word_pieces: Path, text: str, lower: bool) -> None:
    from transformers import BertTokenizer

    (word_pieces / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": lower}))
    theirs = BertTokenizer.from_pretrained(word_pieces, do_lower_case=lower)
    ours = read(word_pieces)
    assert list(ours(text).ids) == theirs(text)["input_ids"]
    assert list(ours(text, around=False).ids) == theirs(text, add_special_tokens=False)["input_ids"]


@pytest.mark.parametrize("text", TEXTS)
def test_without_settings_word_pieces_are_minilms(
    word_pieces: Path, minilm_folder: Path, text: str
) -> None:
    ours, whole = read(word_pieces), Tokenizer.read(minilm_folder / "tokenizer.json")
    assert ours(text) == whole(text)
    assert ours.special == whole.special
    assert ours.decode(ours(text).ids) == whole.decode(whole(text).ids)


@pytest.fixture
def byte_pairs(tmp_path: Path) -> Path:
    """A small vocabulary of GPT-2's kind."""
    from tokenizers.pre_tokenizers import ByteLevel

    tokens = [*sorted(ByteLevel.alphabet()), *(m.replace(" ", "") for m in MERGES), "<|endoftext|>"]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    (tmp_path / "vocab.json").write_text(json.dumps(vocabulary), "utf-8")
    (tmp_path / "merges.txt").write_text("#version: 0.2\n" + "\n".join(MERGES) + "\n", "utf-8")
    return tmp_path


@pytest.mark.parametrize("text", [*TEXTS, "draw a map<|endoftext|> on it"])
def test_byte_pairs_are_hugging_faces(byte_pairs: Path, text: str) -> None:
    from transformers import GPT2Tokenizer

    theirs = GPT2Tokenizer.from_pretrained(byte_pairs)
    ours = read(byte_pairs)
    tokens = ours(text)
    assert list(tokens.ids) == theirs(text)["input_ids"]
    assert ours.decode(tokens.ids, special=True) == text
    assert ours.special == {"<|endoftext|>": len(theirs) - 1}


def test_added_tokens_keep_their_numbers(byte_pairs: Path) -> None:
    size = read(byte_pairs).size
    (byte_pairs / "added_tokens.json").write_text(json.dumps({"<b>": size + 1, "<a>": size}))
    assert read(byte_pairs)("<b> <a>", around=False).ids[::2] == (size + 1, size)
    (byte_pairs / "added_tokens.json").write_text(json.dumps({"<b>": size + 7}))
    with pytest.raises(FileError, match="numbers <b> otherwise than its vocabulary goes on"):
        read(byte_pairs)


def test_a_folder_without_any_has_no_tokenizer(tmp_path: Path) -> None:
    assert Tokenizer.find(tmp_path) is None
    (tmp_path / "vocab.json").write_text("{}")  # Marian's; its merges are elsewhere
    assert Tokenizer.find(tmp_path) is None


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"vocab.txt": "a\nb"}, r"vocab\.txt does not hold \[UNK\], \[CLS\], \[SEP\]"),
        ({"vocab.json": "[]", "merges.txt": ""}, "holds no vocabulary that can be read"),
        ({"vocab.json": '{"a": 0}', "merges.txt": "a b c"}, "holds no vocabulary that can be"),
        ({"vocab.txt": "", "tokenizer_config.json": "{"}, r"tokenizer_config\.json cannot be read"),
    ],
)
def test_what_cannot_be_read_is_refused(
    tmp_path: Path, files: dict[str, Any], message: str
) -> None:
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    with pytest.raises(FileError, match=message):
        Tokenizer.find(tmp_path)
