"""Texts and what they are, of files."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from qkv.train.data.columns import Columns, read_columns

COLUMNS = Columns(
    ("text", "sentence", "review"), ("label", "class", "category", "sentiment"), "labelled texts"
)


class LabelledText(NamedTuple):
    """A text and its label; neither is empty."""

    text: str
    label: str


def read_labelled(path: str | Path) -> Iterator[LabelledText]:
    """Yield the labelled texts of a file, which may be larger than memory.

    A line holds a text and its label: .tsv and .txt with a tab between them, .csv as spreadsheets
    write it, or .parquet. A first line that names them (text, label) may have them in the other
    order and more columns beside them.

    Args:
        path: of UTF-8 text, or of Parquet.

    Raises:
        FileError: the file cannot be read or holds no labelled texts; or, after all of them, some
            lines are bad: each is named by file and line, 20 at most.
        MissingPackageError: it is a Parquet file, and pyarrow is not installed.
    """
    yield from (one for _, one in numbered(path))


def numbered(path: str | Path) -> Iterator[tuple[int, LabelledText]]:
    """Yield the labelled texts of a file as `read_labelled` does, each with its line."""
    yield from ((line, LabelledText(*row)) for line, row in read_columns(Path(path), COLUMNS))
