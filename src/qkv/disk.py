"""The disk: a file that is written is complete or, whatever happens meanwhile, as it was before.

    with whole(path) as partial:
        partial.write_bytes(content)

What is written has another name, beside its place, until all of it is on the disk.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from errno import EACCES, EBADF, EINVAL
from pathlib import Path
from stat import S_ISDIR, S_ISREG
from threading import get_ident
from typing import TYPE_CHECKING

from qkv.errors import FileError

if TYPE_CHECKING:
    from torch import Tensor

UNSETTLED = (EACCES, EBADF, EINVAL)
"""What folders answer that may not be read, or whose disk keeps names in its own way."""

LETTERS = 50
"""Of a name, that its partial takes: a folder takes names of 255 bytes."""


def write_whole(path: Path, content: bytes) -> None:
    """Write a file that is complete or, whatever happens meanwhile, as it was before.

    Raises:
        FileError: it cannot be written; what lay there before still does.
    """
    with whole(path) as partial:
        partial.write_bytes(content)


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """Give a name to write to; what is written there lies under `path` when all is on the disk.

    Behind a link, what it leads to is replaced. The name holds the numbers of process and thread:
    two that write one file do not mix.

    Raises:
        FileError: it cannot be written; what lay there before still does.
    """
    try:
        target = _target(path)
        partial = target.with_name(f".{target.name[:LETTERS]}.{os.getpid()}-{get_ident()}.partial")
        try:
            yield partial
            if target.exists():
                partial.chmod(target.stat().st_mode)
            settle(partial)
            os.replace(partial, target)
            settle(target.parent)
        finally:
            with suppress(OSError):  # what cannot be written to, nothing was written to
                partial.unlink(missing_ok=True)
    except FileError:  # what was to be written says itself what is wrong with it
        raise
    except OSError as error:
        raise cannot_write(path, error) from error


def _target(path: Path) -> Path:
    """Return the place of a file; a device or a pipe would be gone, were it replaced."""
    try:
        kind = path.stat().st_mode
    except FileNotFoundError:
        return path.resolve()
    if not S_ISREG(kind):
        what = "a folder" if S_ISDIR(kind) else "a device, a pipe or a socket"
        raise OSError(f"it is {what}; wanted the name of a file")
    return path.resolve()


def write_tensors(
    path: Path, tensors: "Mapping[str, Tensor]", about: Mapping[str, str] | None = None
) -> None:
    """Write tensors as safetensors, straight to `path`: `whole` makes a name for it.

    Args:
        path: the file; who may read other files here may read it.
        tensors: by their names, each contiguous and in memory of its own.
        about: texts in the file's header.

    Raises:
        OSError: it cannot be written.
    """
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    path.touch()
    mode = path.stat().st_mode  # safetensors makes its files private
    try:
        save_file(dict(tensors), path, None if about is None else dict(about))
    except SafetensorError as error:
        raise OSError(str(error)) from error
    path.chmod(mode)


def make_folder(path: Path) -> None:
    """Make a folder, and those that it is to lie in, where they are not there.

    Raises:
        FileError: it cannot be made.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise cannot_write(path, error) from error


def settle(path: Path) -> None:
    """Wait until a file, or the names in a folder, lie on the disk.

    On macOS the disk may still hold them in a memory of its own, which a power cut empties.
    """
    is_folder = path.is_dir()
    if is_folder and os.name == "nt":
        return  # Windows opens no folders, and keeps their names itself
    try:
        opened = os.open(path, os.O_RDONLY if is_folder else os.O_RDWR)
        try:
            os.fsync(opened)
        finally:
            os.close(opened)
    except OSError as error:
        if not is_folder or error.errno not in UNSETTLED:
            raise


def cannot_write(path: Path, error: Exception) -> FileError:
    """Return the error that says what could not be written, and why."""
    return FileError(f"{path} cannot be written: {reason(error)}")


def cannot_read(path: Path | str, error: Exception) -> FileError:
    """Return the error that says what could not be read, and why."""
    return FileError(f"{path} cannot be read: {reason(error)}")


def reason(error: Exception) -> str:
    """Say in a few words why a file could not be read or written."""
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
