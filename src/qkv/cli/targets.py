"""Files that a command is to write: looked at before anything is computed."""

import os
from pathlib import Path

from qkv.errors import ArgumentError, FileError


def check_target(name: str, path: Path, suffix: str) -> None:
    """Refuse a file that cannot be written, or whose name says that it is something else.

    Args:
        name: of the option.
        path: the file.
        suffix: how its name has to end.

    Raises:
        ArgumentError: another suffix.
        FileError: it cannot be written there.
    """
    if path.suffix.lower() != suffix:
        raise ArgumentError(f"{name} is {str(path)!r}; wanted a name that ends in {suffix}")
    if not os.path.isdir(path.parent):
        raise FileError(f"{path} cannot be written: there is no folder {path.parent}")
    if os.path.isdir(path):
        raise FileError(f"{path} cannot be written: it is a folder")
    if not os.access(path if os.path.exists(path) else path.parent, os.W_OK):
        raise FileError(f"{path} cannot be written: there is no permission to")
