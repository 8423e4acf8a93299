"""Columns of a Parquet file, row by row, by pyarrow (needs the extra `parquet`)."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from qkv.errors import FileError, MissingPackageError

AT_ONCE = 1024
"""Rows that are held."""


def read_parquet(
    path: Path, names: Sequence[Sequence[str]]
) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Yield what stands in some columns, and the number of the row, from 1.

    Whole numbers, and true and false, are written out; what is missing is "". No more is
    held than some rows, and what pyarrow reads of a row group.

    Args:
        path: of the file.
        names: for each column what it may be called, in small letters; where a file has exactly as
            many columns of text as are wanted, they may be called anything.

    Raises:
        MissingPackageError: pyarrow is not installed.
        FileError: the file cannot be read, or has not these columns.
    """
    try:
        import pyarrow as arrow
        from pyarrow import parquet
    except ImportError as error:
        raise MissingPackageError(
            f"{path.name} needs pyarrow, which is not installed: pip install 'qkv[parquet]'"
        ) from error
    if not path.exists():
        raise FileError(f"{path} is not there")
    try:
        with parquet.ParquetFile(path, memory_map=True, pre_buffer=False) as file:
            columns = _columns(path, file.schema_arrow, names)
            yield from _rows(file, columns)
    except FileError:
        raise
    except (arrow.ArrowException, OSError) as error:
        raise FileError(f"{path} cannot be read as Parquet: {_first_line(error)}") from error


def _rows(file: Any, columns: Sequence[str]) -> Iterator[tuple[int, tuple[str, ...]]]:
    number = 0
    for batch in file.iter_batches(AT_ONCE, columns=list(columns)):
        for cells in zip(*(batch.column(name).to_pylist() for name in columns), strict=True):
            number += 1
            yield number, tuple("" if cell is None else str(cell) for cell in cells)


def _columns(path: Path, schema: Any, names: Sequence[Sequence[str]]) -> list[str]:
    """Return the file's own names of the columns that are wanted."""
    from pyarrow import types

    kinds = {field.name: field.type for field in schema}
    held = {n: kind.value_type if types.is_dictionary(kind) else kind for n, kind in kinds.items()}
    texts = [n for n, kind in held.items() if types.is_string(kind) or types.is_large_string(kind)]
    whole = [n for n, kind in held.items() if types.is_integer(kind) or types.is_boolean(kind)]
    plain = [n for n in kinds if n in texts or n in whole]
    found = [next((n for n in plain if n.casefold() in known), None) for known in names]
    named = [name for name in found if name is not None]
    if len(named) == len(names):
        return named
    if len(texts) == len(names):
        return texts
    wanted = " and ".join(f"one called {' or '.join(known)}" for known in names)
    raise FileError(
        f"{path} has the columns {', '.join(kinds) or 'none'}; wanted {wanted}, or {len(names)} "
        "of text and no more"
    )


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
