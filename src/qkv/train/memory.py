"""Memory between the steps of a training: kept, not given back.

Every step needs as much as the one before. glibc returns what lies free at the end of its heap to
the system, step after step, which then hands it out again page by page, and clears each.
"""

import ctypes
import platform
from collections.abc import Iterator
from contextlib import contextmanager

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # as malloc.h numbers them; mallopt(3)

KEPT = 1 << 30
"""Bytes that may lie free at the end of the heap, and of a tensor that still lies in it."""

USUAL = 32 << 20
"""Bytes of the largest piece in the heap, as glibc itself ends up with; twice as many lie free."""


@contextmanager
def memory_kept() -> Iterator[None]:
    """Keep freed memory for what comes next; where the C library is another, change nothing."""
    if platform.libc_ver()[0] != "glibc":
        yield
        return
    allocator = ctypes.CDLL(None)
    try:
        _thresholds(allocator, KEPT, KEPT)
        yield
    finally:
        _thresholds(allocator, USUAL, 2 * USUAL)
        allocator.malloc_trim(0)


def _thresholds(allocator: ctypes.CDLL, mapped: int, free: int) -> None:
    if not allocator.mallopt(MMAP_THRESHOLD, mapped):  # before 2.35 it takes no more than the usual
        allocator.mallopt(MMAP_THRESHOLD, USUAL)
    allocator.mallopt(TRIM_THRESHOLD, free)
