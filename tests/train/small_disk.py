"""A disk that is soon full."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 512 KB of its own."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=512k", "small", str(disk)]
    if not hasattr(os, "geteuid") or os.geteuid() != 0:
        pytest.skip("only root mounts a small disk")
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("no small disk can be mounted here")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def fill(disk: Path, but: int = 0) -> Path:
    """Leave so many bytes free, and return the file that takes the others."""
    filler = disk / "filler"
    told = os.statvfs(disk)
    with suppress(OSError):
        filler.write_bytes(bytes(max(0, told.f_bavail * told.f_frsize - but)))
    return filler
