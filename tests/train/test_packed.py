"""Packed tokens: the ids that were given, on the disk, and gone when they are let go."""

import gc
import os
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from qkv.errors import ArgumentError, FileError
from qkv.train.packed import Packed


@pytest.fixture
def sequences(seed: int) -> list[list[int]]:
    """Of odd lengths, one of them empty, with the smallest and the largest id."""
    draw = np.random.default_rng(seed)
    return [[0, 65535], [], *(draw.integers(0, 65536, n).tolist() for n in (7, 1, 13, 5))]


def _open(folder: Path) -> list[str]:
    """Files of a folder that this process has open or mapped, with a name or without."""
    if not Path("/proc/self/maps").exists():
        pytest.skip("only Linux tells what is open")
    maps = Path("/proc/self/maps").read_text().splitlines()
    links = [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")
             if os.path.lexists(f"/proc/self/fd/{fd}")]  # fmt: skip
    return [line for line in [*maps, *links] if str(folder) in line]


@pytest.mark.parametrize(("vocabulary", "kind"), [(65536, np.uint16), (65537, np.uint32)])
def test_it_holds_the_sequences(
    sequences: list[list[int]], tmp_path: Path, vocabulary: int, kind: type
) -> None:
    packed = Packed.of(iter(sequences), vocabulary, tmp_path)
    assert len(packed) == 6
    assert packed.tokens == 28
    assert [packed[i].tolist() for i in range(6)] == sequences
    assert packed[2].dtype == kind
    assert packed.lengths.tolist() == [2, 0, 7, 1, 13, 5]
    assert packed.offsets.tolist() == [0, 2, 2, 9, 10, 23, 28]
    with pytest.raises(IndexError, match="sequence 6 of 6"):
        packed[6]


def test_windows_run_across_sequences(sequences: list[list[int]]) -> None:
    stream = [token for sequence in sequences for token in sequence]
    packed = Packed.of(sequences, 65536)
    assert packed.window(1, 11).tolist() == stream[1:12]
    assert packed.window(28, 0).tolist() == []
    windows = packed.windows([23, 0, 3], 5)
    assert windows.tolist() == [stream[23:28], stream[:5], stream[3:8]]
    assert windows.dtype == np.int64
    for start, length in [(24, 5), (-1, 5), (0, 29)]:
        with pytest.raises(ArgumentError, match=rf"window of {length} from {start} .* 28 tokens"):
            packed.window(start, length)
        with pytest.raises(ArgumentError, match=rf"window of {length} from {start} "):
            packed.windows([start], length)


def test_padding_stands_behind_the_shorter_ones(sequences: list[list[int]]) -> None:
    packed = Packed.of(sequences, 65536)
    rows = packed.padded([5, 1, 0], -1)
    assert rows.tolist() == [sequences[5], [-1] * 5, [0, 65535, -1, -1, -1]]
    assert rows.dtype == np.int64


@pytest.mark.parametrize("strange", [-1, 7, 70000])
def test_ids_outside_the_vocabulary_are_refused(strange: int, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=rf"sequence 1 holds the id {strange}; wanted 0 to 6"):
        Packed.of([[1], [2, strange]], 7, tmp_path)
    gc.collect()
    assert _open(tmp_path) == []


def test_nothing_is_refused() -> None:
    for nothing in ([], [[]]):
        with pytest.raises(ArgumentError, match="there are no tokens"):
            Packed.of(nothing, 7)


def test_its_files_have_no_name_and_go_when_it_is_let_go(tmp_path: Path) -> None:
    packed = Packed.of([[1, 2], [3]], 7, tmp_path)
    assert os.listdir(tmp_path) == []
    assert len(_open(tmp_path)) == 4  # two maps, each with its descriptor
    kept = packed[0]
    del packed
    assert kept.tolist() == [1, 2]
    del kept
    assert _open(tmp_path) == []


def test_a_reader_that_fails_leaves_nothing(tmp_path: Path) -> None:
    def failing() -> Iterator[list[int]]:
        yield [1] * 100_000
        raise FileError("mine.tsv:2: the target is empty")

    with pytest.raises(FileError, match=r"^mine.tsv:2: the target is empty$"):
        Packed.of(failing(), 7, tmp_path)
    gc.collect()
    assert _open(tmp_path) == []


@pytest.fixture
def small_disk() -> Iterator[None]:
    """No file may grow beyond 100 kB."""
    resource = pytest.importorskip("resource", reason="Windows limits no sizes of files")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.usefixtures("small_disk")
def test_a_full_disk_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(
        FileError, match=r"cannot take the tokens: File too large; make room, or set"
    ):
        Packed.of(([1] * 1000 for _ in range(1000)), 7, tmp_path)
    gc.collect()
    assert _open(tmp_path) == []


def test_a_folder_that_is_not_there_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"absent cannot take the tokens: No such file"):
        Packed.of([[1]], 7, tmp_path / "absent")


def test_large_amounts_take_little_memory(tmp_path: Path) -> None:
    tracemalloc.start()
    packed = Packed.of(([n % 999] * 2_500 for n in range(4_000)), 999, tmp_path)
    total = sum(int(packed[n][-1]) for n in range(0, 4_000, 7))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert total == sum(n % 999 for n in range(0, 4_000, 7))
    assert packed.tokens == 10_000_000
    assert peak < 1_000_000  # of 20 MB
