"""Pairs of files: what is read, what is refused, and how much memory it takes."""

import csv
import tracemalloc
from collections.abc import Iterable
from pathlib import Path

import pytest

from qkv.errors import FileError, MissingPackageError
from qkv.train.data.pairs import TextPair, pairs_of, read_pairs

PAIRS = [TextPair("the sky is blue", "el cielo es azul"), TextPair("a «dove»", "una paloma, ñandú")]


def _written(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8"))
    return path


def _parquet(path: Path, **columns: Iterable[object]) -> Path:
    import pyarrow as arrow
    from pyarrow import parquet

    parquet.write_table(arrow.table({name: list(of) for name, of in columns.items()}), path)
    return path


def _refused(path: Path) -> list[str]:
    with pytest.raises(FileError) as refused:
        list(read_pairs(path))
    return str(refused.value).replace(f"{path.parent}/", "").splitlines()


@pytest.mark.parametrize("suffix", ["tsv", "txt", "TSV"])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\n\n  \n"])
def test_a_line_is_a_pair_with_a_tab_between(
    tmp_path: Path, suffix: str, mark: bytes, end: str
) -> None:
    text = end.join(f" {source}\t{target} " for source, target in PAIRS)
    path = _written(tmp_path / f"mine.{suffix}", mark + text.encode("utf-8"))
    assert list(read_pairs(path)) == PAIRS


def test_csv_is_read_as_spreadsheets_write_it(tmp_path: Path) -> None:
    rows = [("a, b", 'he said "no"'), ("two\nlines", "dos\nlíneas"), PAIRS[0]]
    with (tmp_path / "mine.csv").open("w", newline="", encoding="utf-8-sig") as file:
        csv.writer(file).writerows(rows)
    assert list(read_pairs(tmp_path / "mine.csv")) == rows


@pytest.mark.parametrize(
    ("header", "row"),
    [
        ("source\ttarget", "s\tt"),
        ("Spanish\tEnglish", "t\ts"),
        ("id\ten\tnote\tes", "1\ts\t\tt"),
    ],
)
def test_a_first_line_that_names_the_columns_says_where_they_are(
    tmp_path: Path, header: str, row: str
) -> None:
    path = _written(tmp_path / "mine.tsv", f"{header}\n{row}\n")
    assert list(read_pairs(path)) == [("s", "t")]
    commas = f"{header}\n{row}\n".replace("\t", ",")
    assert list(read_pairs(_written(tmp_path / "mine.csv", commas))) == [("s", "t")]


def test_only_the_first_line_is_a_header(tmp_path: Path) -> None:
    path = _written(tmp_path / "mine.tsv", "a\tb\nsource\ttarget\n")
    assert list(read_pairs(path)) == [("a", "b"), ("source", "target")]


def test_every_bad_line_is_named_by_file_and_line(tmp_path: Path) -> None:
    lines = [b"a\tb", b"alone", b"c\t ", b"\td", b"e\tf\tg", b"\xff\xfe\tx", b"h\ti",
             b"x" * 1_000_000 + b"\ty", b"nul\0\tz", b"ends\there"]  # fmt: skip
    assert _refused(_written(tmp_path / "mine.tsv", b"\n".join(lines))) == [
        "mine.tsv:2: 1 column, wanted 2 with a tab between them",
        "mine.tsv:3: the target is empty",
        "mine.tsv:4: the source is empty",
        "mine.tsv:5: 3 columns, wanted 2 with a tab between them, or a first line that names "
        "them: source, target",
        "mine.tsv:6: byte 1 is 0xff: this is no text in UTF-8",
        "mine.tsv:8: 1,000,002 bytes in one line; wanted at most 100,000",
        "mine.tsv:9: byte 4 is zero: this is no text in UTF-8",
    ]


def test_the_good_pairs_come_before_the_refusal(tmp_path: Path) -> None:
    pairs = read_pairs(_written(tmp_path / "mine.tsv", "a\tb\nalone\nc\td\n"))
    assert [next(pairs), next(pairs)] == [("a", "b"), ("c", "d")]
    with pytest.raises(FileError, match=r"mine.tsv:2: 1 column"):
        next(pairs)


def test_of_many_bad_lines_twenty_are_named(tmp_path: Path) -> None:
    told = _refused(_written(tmp_path / "mine.tsv", "alone\n" * 1234))
    assert told[19].startswith("mine.tsv:20: ")
    assert told[20:] == ["and 1,214 more"]


def test_bad_csv_is_named_by_the_line_where_its_row_begins(tmp_path: Path) -> None:
    text = '"a\nb",c\n"two"words,x\nd,e\n\xe9,\n"never ends,f\ng,h\n'
    told = _refused(_written(tmp_path / "mine.csv", text))
    assert [line.split(" ")[0] for line in told] == ["mine.csv:3:", "mine.csv:5:", "mine.csv:6:"]
    assert told[1] == "mine.csv:5: the target is empty"


@pytest.mark.parametrize("content", ["", "\n \n", "\ufeff", "source\ttarget\n"])
def test_a_file_without_pairs_is_refused(tmp_path: Path, content: str) -> None:
    assert _refused(_written(tmp_path / "mine.tsv", content)) == ["mine.tsv holds no pairs"]


def test_what_is_no_file_of_pairs_is_refused(tmp_path: Path) -> None:
    assert _refused(tmp_path / "absent.tsv") == ["absent.tsv is not there"]
    (tmp_path / "folder.tsv").mkdir()
    assert _refused(tmp_path / "folder.tsv") == ["folder.tsv cannot be read: Is a directory"]
    assert "mine.docx ends in '.docx'" in _refused(_written(tmp_path / "mine.docx", "a\tb"))[0]
    with pytest.raises(FileError, match="data is 'versos'; wanted phrasebook, clauses, verses, or"):
        pairs_of("versos")


def test_pairs_of_is_a_file_or_the_verses(tmp_path: Path) -> None:
    path = _written(tmp_path / "mine.tsv", "a\tb")
    assert list(pairs_of(str(path))) == [("a", "b")]
    assert next(pairs_of("verses")).source.startswith("In the beginning")


def test_parquet_is_read_by_names_or_as_the_only_two_texts(tmp_path: Path) -> None:
    sources, targets = zip(*PAIRS, strict=True)
    named = _parquet(tmp_path / "a.parquet", note=["x", "y"], ES=targets, en=sources)
    alone = _parquet(tmp_path / "b.parquet", id=[1, 2], first=sources, second=targets)
    assert list(read_pairs(named)) == list(read_pairs(alone)) == PAIRS


def test_bad_parquet_is_refused(tmp_path: Path) -> None:
    path = _parquet(tmp_path / "a.parquet", source=["a", None, "c"], target=["x", "y", " "])
    assert _refused(path) == [
        "a.parquet:2: the source is empty",
        "a.parquet:3: the target is empty",
    ]
    path = _parquet(tmp_path / "b.parquet", a=["x"], b=["y"], c=["z"])
    assert _refused(path)[0].startswith(
        "b.parquet has the columns a, b, c; wanted one called source"
    )
    path = _written(tmp_path / "c.parquet", "no Parquet")
    assert _refused(path)[0].startswith("c.parquet cannot be read as Parquet: ")
    assert _refused(tmp_path / "d.parquet") == ["d.parquet is not there"]
    path = _parquet(tmp_path / "e.parquet", en=["", " "], es=["a", "b"])
    assert [line.split()[0] for line in _refused(path)] == ["e.parquet:1:", "e.parquet:2:"]


def test_parquet_without_rows_is_refused(tmp_path: Path) -> None:
    import pyarrow as arrow
    from pyarrow import parquet

    schema = arrow.schema({"en": arrow.string(), "es": arrow.large_string()})
    parquet.write_table(schema.empty_table(), tmp_path / "a.parquet")
    assert _refused(tmp_path / "a.parquet") == ["a.parquet holds no pairs"]


def test_without_pyarrow_a_command_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(MissingPackageError, match=r"pip install 'qkv\[parquet\]'"):
        next(read_pairs(tmp_path / "a.parquet"))


@pytest.mark.parametrize("suffix", ["tsv", "csv"])
def test_a_large_file_takes_no_more_memory_than_a_line(tmp_path: Path, suffix: str) -> None:
    line = "the sky is blue" * 800 + "\t" + "el cielo es azul" * 800 + "\n"
    path = tmp_path / f"large.{suffix}"
    with path.open("w") as file:
        file.writelines(line.replace("\t", ",") if suffix == "csv" else line for _ in range(800))
    tracemalloc.start()
    count = sum(1 for _ in read_pairs(path))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert count == 800
    assert path.stat().st_size > 19_000_000
    assert peak < 1_000_000


@pytest.mark.slow
def test_a_large_parquet_file_takes_no_more_memory_than_its_row_groups(tmp_path: Path) -> None:
    import pyarrow as arrow
    from pyarrow import parquet

    schema = arrow.schema({"source": arrow.string(), "target": arrow.string()})
    with parquet.ParquetWriter(tmp_path / "large.parquet", schema) as writer:
        for group in range(40):
            texts = [f"{group} {row} " + "word " * 60 for row in range(2_000)]
            writer.write_table(arrow.table({"source": texts, "target": texts}, schema=schema))
    pool = arrow.system_memory_pool()
    arrow.set_memory_pool(pool)
    before, most, count = pool.bytes_allocated(), 0, 0
    for count, _ in enumerate(read_pairs(tmp_path / "large.parquet"), start=1):
        if count % 500 == 0:
            most = max(most, pool.bytes_allocated() - before)
    assert count == 80_000
    assert 0 < most < 6_000_000  # of 48 MB of text
