"""A recording in one file: tensors as safetensors, everything else as JSON in its header.

What calls share is written once. Nothing in a file is ever executed.
"""

import json
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING

from safetensors import SafetensorError, safe_open

from qkv.disk import whole, write_tensors
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
    with whole(_named(file)) as partial:
        writer = Writer()
        header = {"version": VERSION, **writer.recording(recording)}
        write_tensors(partial, writer.pieces.flat(), {HEADER: json.dumps(header, allow_nan=False)})


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
