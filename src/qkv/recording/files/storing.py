"""A recording in one file: tensors as safetensors, everything else as JSON in its header.

What calls share is written once. Nothing in a file is ever executed.
"""

import json
from os import PathLike, fspath, getpid
from pathlib import Path
from stat import S_ISDIR, S_ISREG
from typing import TYPE_CHECKING

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from qkv.errors import ArgumentError, FileError, QkvError
from qkv.recording.files.pieces import views_of
from qkv.recording.files.reading import Reader
from qkv.recording.files.writing import Writer

if TYPE_CHECKING:
    from qkv.recording.recording import Recording

HEADER = "qkv recording"
VERSION = 1
WANTED = "wanted a file that Recording.save wrote"


def save(recording: "Recording", file: str | PathLike[str]) -> None:
    """Write a recording; see `Recording.save`."""
    target = _target(file)
    writer = Writer()
    header = {"version": VERSION, **writer.recording(recording)}
    part = target.with_name(f".{target.name}.{getpid()}.part")
    try:
        try:
            part.touch()
            mode = part.stat().st_mode  # what files have here: safetensors makes them private
            save_file(writer.pieces.flat(), part, {HEADER: json.dumps(header, allow_nan=False)})
            part.chmod(mode)
            part.replace(target)
        finally:
            part.unlink(missing_ok=True)
    except (OSError, SafetensorError) as error:
        raise FileError(f"cannot write {target}: {error}") from error


def _named(file: object) -> Path:
    """Return a path that can be one.

    Raises:
        ArgumentError: it is none.
        FileError: no file can be called that.
    """
    if not isinstance(file, str | PathLike) or not isinstance(fspath(file), str):
        raise ArgumentError(f"file is a {type(file).__name__}; wanted a path: 'seen.safetensors'")
    text = fspath(file)
    if not text or "\0" in text or _is_no_utf8(text):
        raise FileError(f"{text!r} names no file; wanted a path: 'seen.safetensors'")
    return Path(text)


def _is_no_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def _target(file: object) -> Path:
    """Return where to write: behind a link, what it leads to, and nothing but a plain file.

    The new file takes the old one's place, so a device or a pipe would be gone.
    """
    path = _named(file)
    try:
        target = path.resolve()
        kind = target.stat().st_mode if target.exists() else None
    except (OSError, RuntimeError) as error:  # links in a circle
        raise FileError(f"cannot write {path}: {error}") from error
    if kind is not None and not S_ISREG(kind):
        what = "a folder" if S_ISDIR(kind) else "a device, a pipe or a socket"
        raise FileError(f"cannot write {path}: it is {what}; wanted the name of a file")
    return target


def load(file: str | PathLike[str]) -> "Recording":
    """Read a recording; see `Recording.load`."""
    path = _named(file)
    if not path.is_file():
        raise FileError(f"{path} is {'no file' if path.exists() else 'not there'}; {WANTED}")
    try:
        with safe_open(path, "pt") as opened:
            text = (opened.metadata() or {}).get(HEADER)
            names = [] if text is None else list(opened.keys())
            pieces = {name: opened.get_tensor(name) for name in names}
    except (OSError, SafetensorError) as error:
        raise FileError(f"{path} is no whole safetensors file ({error}); {WANTED}") from error
    if text is None:
        raise FileError(f"{path} is a safetensors file, but holds no recording; {WANTED}")
    try:
        header = json.loads(text)
        if header["version"] != VERSION:
            raise FileError(f"it is of version {header['version']}, this reads {VERSION}")
        return Reader(views_of(pieces, header["views"])).recording(header)
    except (QkvError, LookupError, TypeError, ValueError, RuntimeError, OverflowError) as error:
        why = error if isinstance(error, QkvError) else repr(error)
        raise FileError(f"{path} holds a recording that cannot be read: {why}") from error
