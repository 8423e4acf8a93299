"""What one step of a training frees, the next one takes: the system is not asked again."""

import ctypes
import platform
import resource
from pathlib import Path

import pytest
import torch

from qkv.train.memory import memory_kept

glibc = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")

MB = 1 << 20


def resident() -> int:
    """Bytes of this process that lie in memory."""
    pages = int(Path("/proc/self/statm").read_text("ascii").split()[1])
    return pages * resource.getpagesize()


def step() -> None:
    """Write 256 MB, and free them."""
    held = [torch.ones(MB) for _ in range(64)]
    assert held[-1][-1] == 1


@glibc
def test_what_is_freed_is_kept_until_training_ends() -> None:
    before = resident()
    with memory_kept():
        step()
        kept = resident()
        assert kept - before > 150 * MB
        step()
        assert resident() - kept < 50 * MB
    assert resident() - before < 50 * MB


@glibc
def test_afterwards_memory_is_given_back_also_where_training_failed() -> None:
    before = resident()

    def failing() -> None:
        with memory_kept():
            step()
            raise KeyError

    with pytest.raises(KeyError):
        failing()
    assert resident() - before < 50 * MB


@glibc
@pytest.mark.parametrize("takes", [1 << 25, 1 << 40])
def test_a_threshold_that_is_refused_becomes_the_largest_that_is_taken(
    takes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[int, int]] = []

    class Allocator(ctypes.CDLL):
        def __init__(self) -> None: ...

        def mallopt(self, which: int, number: int) -> int:
            told.append((which, number))
            return int(which != -3 or number <= takes)

        def malloc_trim(self, _: int) -> None: ...

    made = Allocator()
    monkeypatch.setattr("qkv.train.memory.ctypes.CDLL", lambda _: made)
    with memory_kept():
        assert told.pop() == (-1, 1 << 30)
        assert told.pop() == (-3, 1 << 25 if takes < 1 << 30 else 1 << 30)
    assert told[-2:] == [(-3, 1 << 25), (-1, 1 << 26)]


def test_another_c_library_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "libc_ver", lambda: ("", ""))
    monkeypatch.setattr("qkv.train.memory.ctypes.CDLL", None)
    with memory_kept():
        pass
