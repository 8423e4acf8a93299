"""SentencePiece models that the library itself trained, cut as the library cuts."""

import io
import random
import struct
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qkv.errors import FileError
from qkv.models.text.sentencepiece import Kind, Piece, SentencePiece

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # what SWIG generates is deprecated by Python itself
    import sentencepiece

SYLLABLES = ["ka", "lo", "mi", "tran", "é", "ü", "st", "on", "ba", "re", "ß", "日本", "the", "qu"]
ALPHABET = (
    "kalomitranéüstonbareß日本theingqu   .,!?▁①ﬁｶﾞÅA\u030a\t\n\u3000\u200b\u0e33İ🙂"
    "👨\u200d👩\u200d👧x<>3½™\u0301ﷺ\0"
)
TEXTS = [
    "", " ", "  two  spaces ", "</s> <s> <unk>", "a<x>b <x>", "＜x＞", "▁", "a▁b", "ﬁ\u0301", "ｶﾞ",
    "tranéü日本 the kalomi", "unknown: ЖЖ Ж", "\u200b", "ﷺ ﷺ", "\x00", "a \x01 b", "\x01 a",
]  # fmt: skip


def sentences() -> list[str]:
    draw = random.Random(20180819)
    words = ["".join(draw.choices(SYLLABLES, k=draw.randint(1, 4))) for _ in range(300)]
    return [
        " ".join(draw.choices(words, k=draw.randint(3, 12))) + draw.choice([".", "!", "?", " 3.14"])
        for _ in range(500)
    ]


def trained(**options: Any) -> bytes:
    made = io.BytesIO()
    settings = {
        "vocab_size": 300, "hard_vocab_limit": False, "model_type": "unigram", "minloglevel": 2,
        "num_threads": 1,
    }  # fmt: skip
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(sentences()), model_writer=made, **(settings | options)
    )
    return made.getvalue()


KINDS: dict[str, dict[str, Any]] = {
    "as Marian's": {},
    "with words of its own": {"user_defined_symbols": ["<x>", "<xy>", "ab"]},
    "with bytes": {"byte_fallback": True, "vocab_size": 500, "character_coverage": 0.98},
    "untouched": {"normalization_rule_name": "identity"},
    "untidy": {"remove_extra_whitespaces": False},
    "without a prefix": {"add_dummy_prefix": False},
    "small letters": {"normalization_rule_name": "nmt_nfkc_cf"},
}


@pytest.fixture(scope="module", params=KINDS)
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Our reading of a model, and the library's."""
    path = tmp_path_factory.mktemp("spm") / "source.spm"
    path.write_bytes(trained(**KINDS[request.param]))
    return SentencePiece.read(path), sentencepiece.SentencePieceProcessor(model_file=str(path))


def compare(both: Any, text: str) -> None:
    ours, theirs = both
    normal, origins = ours.normalised(text)
    assert normal == theirs.normalize(text).replace(" ", "▁")
    assert len(origins) == len(normal)
    assert origins == sorted(origins)
    assert all(0 <= at < max(1, len(text)) for at in origins)
    assert ours.rules().encode(normal).ids == theirs.encode(text)


def test_pieces_scores_and_kinds_are_the_librarys(both: Any) -> None:
    ours, theirs = both
    assert len(ours.pieces) == theirs.get_piece_size()
    for number, piece in enumerate(ours.pieces):
        assert piece.text == theirs.id_to_piece(number)
        assert piece.score == theirs.get_score(number)
        assert (piece.kind is Kind.UNKNOWN) == theirs.is_unknown(number)
        assert (piece.kind is Kind.CONTROL) == theirs.is_control(number)
        assert (piece.kind is Kind.BYTE) == theirs.is_byte(number)


@pytest.mark.parametrize("text", TEXTS)
def test_known_texts_are_cut_as_the_library_cuts_them(both: Any, text: str) -> None:
    compare(both, text)


def test_any_text_is_cut_as_the_library_cuts_it(both: Any) -> None:
    draw = random.Random(7)
    ours, theirs = both
    rules = ours.rules()
    for _ in range(500):
        text = "".join(draw.choices(ALPHABET, k=draw.randint(0, 25)))
        assert rules.encode(ours.normalised(text)[0]).ids == theirs.encode(text), text


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Any:
    path = tmp_path_factory.mktemp("spm") / "source.spm"
    path.write_bytes(trained())
    return SentencePiece.read(path), sentencepiece.SentencePieceProcessor(model_file=str(path))


@settings(max_examples=150)
@given(text=st.text(st.characters(exclude_categories=["Cs"]), max_size=12))
def test_any_characters_are_cut_as_the_library_cuts_them(plain: Any, text: str) -> None:
    compare(plain, text)


def test_origins_point_at_the_characters_of_the_text(plain: Any) -> None:
    normal, origins = plain[0].normalised("  ﬁ① ka ")
    assert normal == "▁fi1▁ka"
    assert origins == [0, 2, 2, 3, 4, 5, 6]


# --- broken files ---------------------------------------------------------------------------------


@pytest.fixture
def refused(tmp_path: Path) -> Callable[[bytes], str]:
    def read(content: bytes) -> str:
        path = tmp_path / "source.spm"
        path.write_bytes(content)
        with pytest.raises(FileError) as error:
            SentencePiece.read(path)
        assert "source.spm" in str(error.value)
        return str(error.value)

    return read


def field(number: int, content: bytes | int) -> bytes:
    if isinstance(content, int):
        return bytes([number << 3, content])
    assert len(content) < 128
    return bytes([number << 3 | 2, len(content)]) + content


def piece(text: str, score: float, kind: int) -> bytes:
    packed = bytes([2 << 3 | 5]) + struct.pack("<f", score)
    return field(1, field(1, text.encode()) + packed + field(3, kind))


SMALL = piece("<unk>", 0, 2) + piece("▁a", -1, 1) + piece("b", -2, 1)


def test_a_model_by_hand_is_read(tmp_path: Path) -> None:
    path = tmp_path / "source.spm"
    path.write_bytes(SMALL)
    model = SentencePiece.read(path)
    assert model.pieces[1] == Piece("▁a", -1.0, Kind.NORMAL)
    assert model.normalised("a  b ") == ("▁a▁b", [0, 0, 1, 3])
    assert model.rules().encode("▁ab").ids == [1, 2]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "it has 0 pieces, 0 of them unknown"),
        (SMALL[:-1], "it is cut off: a field of"),
        (b"\xff" * 12, "it is cut off in a number"),
        (b"\x80", "it is cut off in a number"),
        (b"\x0b", "a field of wire type 3"),
        (b"\x08\x01", "a number stands where a text or a message should"),
        (SMALL + SMALL, "it has 6 pieces, 2 of them unknown, or doubles"),
        (SMALL + piece("b", -3, 1), "it has 4 pieces, 1 of them unknown, or doubles"),
        (SMALL + piece("c", float("nan"), 1), "piece 'c' has the score nan"),
        (SMALL + piece("", 0, 1), "piece '' has the score 0.0"),
        (SMALL + piece("c", 0, 9), "9 is not a valid Kind"),
        (SMALL + field(1, field(1, b"\xff")), "can't decode byte 0xff"),
        (SMALL + field(2, field(3, 2)), "it cuts by BPE, wanted unigram"),
        (SMALL + field(3, field(5, 0)), "write spaces behind words or not at all"),
        (SMALL + field(2, b"\xc0\x01\x01"), "write spaces behind words or not at all"),
        (SMALL + field(3, field(2, b"\x08\0\0\0\0\0\0\0")), "its table of characters says 8 of 8"),
        (SMALL + field(3, field(2, b"\x01")), "requires a buffer of at least 4 bytes"),
        (b"\x80\x04pickle", "is no SentencePiece model"),
        (b"{}", "is no SentencePiece model"),
    ],
)
def test_a_broken_model_is_refused(refused: Any, content: bytes, message: str) -> None:
    assert message in refused(content)


def test_a_table_that_leads_nowhere_reads_nothing(tmp_path: Path) -> None:
    """Units that point outside of the tree, and texts that have no end."""
    draw = random.Random(3)
    path = tmp_path / "source.spm"
    for _ in range(200):
        units = struct.pack("<8I", *(draw.getrandbits(32) for _ in range(8)))
        path.write_bytes(SMALL + field(3, field(2, struct.pack("<I", 32) + units + b"abc")))
        text, origins = SentencePiece.read(path).normalised("ab 日本")
        assert len(text) == len(origins)


def test_a_real_model_that_is_cut_off_is_refused_or_has_fewer_pieces(tmp_path: Path) -> None:
    content, path = trained(normalization_rule_name="identity"), tmp_path / "source.spm"
    path.write_bytes(content)
    whole = SentencePiece.read(path)
    for length in range(0, len(content), 97):
        path.write_bytes(content[:length])
        try:
            part = SentencePiece.read(path)
        except FileError:
            continue
        assert part.pieces == whole.pieces[: len(part.pieces)]


def test_what_is_not_there_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "source.spm", tmp_path):
        with pytest.raises(FileError, match="cannot be read"):
            SentencePiece.read(path)
