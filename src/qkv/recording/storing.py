"""A recording in one file: tensors as safetensors, everything else as JSON in its header.

What calls share is written once. Nothing in a file is ever executed.
"""

import json
from os import PathLike, getpid
from pathlib import Path
from typing import TYPE_CHECKING

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from qkv.errors import FileError
from qkv.recording.pieces import views_of
from qkv.recording.reading import Reader
from qkv.recording.writing import Writer

if TYPE_CHECKING:
    from qkv.recording.recording import Recording

HEADER = "qkv recording"
VERSION = 1
WANTED = "wanted a file that Recording.save wrote"


def save(recording: "Recording", file: str | PathLike[str]) -> None:
    """Write a recording; see `Recording.save`."""
    writer = Writer()
    header = {"version": VERSION, **writer.recording(recording)}
    target = Path(file)
    part = target.with_name(f".{target.name}.{getpid()}.part")
    try:
        try:
            save_file(writer.pieces.flat(), part, {HEADER: json.dumps(header, allow_nan=False)})
            part.replace(target)
        finally:
            part.unlink(missing_ok=True)
    except (OSError, SafetensorError) as error:
        raise FileError(f"cannot write {target}: {error}") from error


def load(file: str | PathLike[str]) -> "Recording":
    """Read a recording; see `Recording.load`."""
    path = Path(file)
    if not path.is_file():
        raise FileError(f"{path} is not there; {WANTED}")
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
    except (FileError, LookupError, TypeError, ValueError, RuntimeError) as error:
        why = error if isinstance(error, FileError) else repr(error)
        raise FileError(f"{path} holds a recording that cannot be read: {why}") from error
