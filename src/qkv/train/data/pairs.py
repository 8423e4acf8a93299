"""Sentences and their translations, of files and of the verses in the package."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from qkv.errors import FileError
from qkv.train.data.columns import SUFFIXES, Columns, read_columns

COLUMNS = Columns(
    ("source", "src", "english", "en", "eng"), ("target", "tgt", "spanish", "es", "spa"), "pairs"
)


class TextPair(NamedTuple):
    """A sentence and its translation; neither is empty."""

    source: str
    target: str


def read_pairs(path: str | Path) -> Iterator[TextPair]:
    """Yield the pairs of a file, which may be larger than memory.

    A line holds a sentence and its translation: .tsv and .txt with a tab between them, .csv as
    spreadsheets write it, or .parquet. A first line that names them (source or en, target or es)
    may have them in the other order and more columns beside them.

    Args:
        path: of UTF-8 text, or of Parquet.

    Raises:
        FileError: the file cannot be read or holds no pairs; or, after all pairs, some lines are
            bad: each is named by file and line, 20 at most.
        MissingPackageError: it is a Parquet file, and pyarrow is not installed.
    """
    yield from (TextPair(*row) for _, row in read_columns(Path(path), COLUMNS))


def pairs_of(data: str) -> Iterator[TextPair]:
    """Return the pairs of what `--data` names: "verses", or a file.

    Raises:
        FileError: it is neither, or as `read_pairs` says.
        MissingPackageError: it is a Parquet file, and pyarrow is not installed.
    """
    if data == "verses":
        from qkv.train.data.verses import read_verses

        return read_verses()
    if not Path(data).exists():
        raise FileError(
            f"data is {data!r}; wanted phrasebook, clauses, verses, or a file: {SUFFIXES}"
        )
    return read_pairs(data)
