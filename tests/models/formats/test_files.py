"""What stands beside the weights: JSON, and what cuts text."""

from pathlib import Path

import pytest

from qkv.errors import FileError
from qkv.models.formats.files import Files, read_json


def test_json_is_read_with_and_without_a_mark(tmp_path: Path) -> None:
    for mark in (b"", b"\xef\xbb\xbf"):
        (tmp_path / "x.json").write_bytes(mark + b'{"a": [1]}')
        assert read_json(tmp_path / "x.json") == {"a": [1]}
        assert Files(tmp_path).json("x.json") == {"a": [1]}


def test_what_is_not_there_is_none_or_an_error(tmp_path: Path) -> None:
    assert Files(tmp_path).json("x.json") is None
    assert Files(tmp_path).tokenizer() is None
    with pytest.raises(
        FileError, match=r"x\.json is not there; wanted a model folder with x\.json"
    ):
        read_json(tmp_path / "x.json")


def test_json_that_holds_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("[1]")
    assert read_json(tmp_path / "x.json", list) == [1]
    with pytest.raises(FileError, match=r"x\.json holds a list; wanted a dict"):
        Files(tmp_path).json("x.json")


def test_the_tokenizer_is_read_once(minilm_folder: Path) -> None:
    files = Files(minilm_folder)
    assert files.tokenizer() is files.tokenizer()
