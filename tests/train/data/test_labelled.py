"""Labelled texts of files."""

from pathlib import Path

import pytest

from qkv.errors import FileError
from qkv.train.data.labelled import numbered, read_labelled


@pytest.mark.parametrize(
    "content", ["good film\tpos\nbad\tneg\n", "Label\tn\tText\npos\t1\tgood film\nneg\t2\tbad"]
)
def test_a_line_is_a_text_and_its_label(tmp_path: Path, content: str) -> None:
    path = tmp_path / "mine.tsv"
    path.write_text(content)
    found = list(read_labelled(path))
    assert [(one.text, one.label) for one in found] == [("good film", "pos"), ("bad", "neg")]


def test_labels_of_parquet_may_be_numbers(tmp_path: Path) -> None:
    import pyarrow as arrow
    from pyarrow import parquet

    table = arrow.table({"label": [1, 0], "text": ["good film", "bad"]})
    parquet.write_table(table, tmp_path / "mine.parquet")
    assert list(read_labelled(tmp_path / "mine.parquet")) == [("good film", "1"), ("bad", "0")]


def test_labels_of_parquet_may_be_truths_or_categories(tmp_path: Path) -> None:
    import pyarrow as arrow
    from pyarrow import parquet

    texts = arrow.array(["good film", "bad", "good film"]).dictionary_encode()
    truths = {"label": arrow.array([True, False, None])}
    parquet.write_table(arrow.table({**truths, "text": texts}), tmp_path / "mine.parquet")
    found = read_labelled(tmp_path / "mine.parquet")
    assert [next(found), next(found)] == [("good film", "True"), ("bad", "False")]
    with pytest.raises(FileError, match=r"mine.parquet:3: the label is empty"):
        next(found)
    categories = arrow.array(["pos", "neg", "pos"]).dictionary_encode()
    parquet.write_table(
        arrow.table({"kind": categories, "words": texts}), tmp_path / "mine.parquet"
    )
    found = list(read_labelled(tmp_path / "mine.parquet"))
    assert found[:2] == [("pos", "good film"), ("neg", "bad")]  # in the order of the file


def test_lines_are_told_with_their_texts(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text('text,label\n"two\nlines",pos\n\nbad,neg\n')
    assert list(numbered(path)) == [(2, ("two\nlines", "pos")), (5, ("bad", "neg"))]


def test_bad_lines_are_named(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text("good,pos\nbad,\n")
    with pytest.raises(FileError, match=r"mine.csv:2: the label is empty"):
        list(read_labelled(path))
    path.write_text("")
    with pytest.raises(FileError, match="holds no labelled texts"):
        list(read_labelled(path))
