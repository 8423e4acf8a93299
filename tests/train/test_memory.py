"""What one step of a training frees, the next one takes: the system is not asked again."""

import platform
import resource

import pytest
import torch

from qkv.train.memory import memory_kept

glibc = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")


def faults_of_a_step() -> int:
    """Pages that the system hands out while a hundred megabytes are written and freed."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    held = [torch.ones(1 << 20) for _ in range(24)]
    assert held[-1][-1] == 1
    del held
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


@glibc
def test_what_is_freed_is_kept_until_training_ends() -> None:
    with memory_kept():
        faults_of_a_step()
        assert faults_of_a_step() < 3_000
    assert faults_of_a_step() > 20_000


@glibc
def test_afterwards_memory_is_given_back_also_where_training_failed() -> None:
    with pytest.raises(KeyError), memory_kept():
        raise KeyError
    faults_of_a_step()
    assert faults_of_a_step() > 10_000


def test_another_c_library_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "libc_ver", lambda: ("", ""))
    monkeypatch.setattr("qkv.train.memory.ctypes.CDLL", None)
    with memory_kept():
        pass
