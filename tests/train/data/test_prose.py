"""Prose of files: its lines are the text, however long they are."""

import random
import tracemalloc
from pathlib import Path

import pytest

from qkv.errors import ArgumentError, FileError
from qkv.train.data import prose
from qkv.train.data.books import BOOKS
from qkv.train.data.prose import prose_of, read_prose, sources

LONGEST = 1000
"""Bytes of a piece, in place of a hundred times as many."""


def test_the_lines_are_the_text_without_its_mark(tmp_path: Path) -> None:
    path = tmp_path / "mine.txt"
    path.write_bytes("\ufeffuno\r\n\r\n  dós\nno end".encode())
    assert list(read_prose(path)) == ["uno\n", "\n", "  dós\n", "no end"]


@pytest.mark.parametrize("alphabet", ["abc", "abc ", "añ€𝕏", "añ€𝕏 \n", "\r\nñ", " "])
@pytest.mark.parametrize("extra", range(-5, 6))
def test_long_lines_come_in_pieces_that_are_the_text(
    tmp_path: Path, alphabet: str, extra: int, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prose, "LONGEST", LONGEST)
    draw = random.Random(seed + extra)
    text = "".join(draw.choices(alphabet, k=LONGEST + extra)) + "x " + "y" * (2 * LONGEST) + "ñ"
    path = tmp_path / "mine.txt"
    path.write_bytes(text.encode("utf-8"))
    pieces = list(read_prose(path))
    assert "".join(pieces) == text.replace("\r\n", "\n")
    assert max(len(piece.encode("utf-8")) for piece in pieces) <= LONGEST


def test_a_long_line_is_cut_behind_a_space(tmp_path: Path) -> None:
    path = tmp_path / "mine.txt"
    path.write_text("word " * 300_000)
    assert all(piece.endswith("word ") for piece in read_prose(path))


def test_bad_lines_are_named(tmp_path: Path) -> None:
    path = tmp_path / "mine.txt"
    path.write_bytes(b"good\nb\xe9d\n" + b"long " * 50_000 + b"\nn\0l\n")
    with pytest.raises(FileError) as refused:
        list(read_prose(path))
    assert str(refused.value).splitlines() == [
        f"{path}:2: byte 2 is 0xe9: this is no text in UTF-8",
        f"{path}:4: byte 2 is zero: this is no text in UTF-8",
    ]


@pytest.mark.parametrize("content", ["", "\n\n", " \ufeff"[1:]])
def test_a_file_without_text_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "mine.txt"
    path.write_text(content)
    with pytest.raises(FileError, match=r"mine.txt holds no text"):
        list(read_prose(path))


def test_rows_of_parquet_are_texts(tmp_path: Path) -> None:
    import pyarrow as arrow
    from pyarrow import parquet

    table = arrow.table({"id": ["1", "2"], "text": ["one\ntwo", "three"]})
    parquet.write_table(table, tmp_path / "mine.parquet")
    assert "".join(read_prose(tmp_path / "mine.parquet")) == "one\ntwo\nthree\n"


def test_sources_are_books_and_files(tmp_path: Path) -> None:
    path = tmp_path / "mine.txt"
    path.write_text("text\n")
    assert sources([]) == sources(["books"]) == list(BOOKS)
    assert sources(["alice", str(path)]) == ["alice", str(path)]
    assert list(prose_of(str(path))) == ["text\n"]
    assert "".join(prose_of("alice")) == BOOKS["alice"].path.read_text()
    assert "".join(prose_of("books")).endswith(BOOKS["paradise-lost"].path.read_text())
    with pytest.raises(FileError, match="data is 'alise'; wanted books, alice, as-you-like-it"):
        sources(["alise"])


def test_a_text_twice_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.txt"
    path.write_text("text\n")
    with pytest.raises(ArgumentError, match="data has alice twice; wanted each text once"):
        sources(["alice", "books"])
    with pytest.raises(ArgumentError, match=r"data has .*mine.txt twice"):
        sources([str(path), f"{tmp_path}/./mine.txt"])


def test_a_long_line_of_a_large_file_takes_little_memory(tmp_path: Path) -> None:
    path = tmp_path / "large.txt"
    path.write_bytes(b"x" * 20_000_000)
    tracemalloc.start()
    size = sum(map(len, read_prose(path)))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert size == 20_000_000
    assert peak < 2_000_000
