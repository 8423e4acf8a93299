"""A folder in Hugging Face's layout: config.json, and safetensors in one file or in several.

Weights come from safetensors alone. A pickle runs whatever code it holds when it is opened, so
none is ever opened here.
"""

import json
from pathlib import Path, PureWindowsPath

from safetensors import SafetensorError, safe_open

from qkv.errors import FileError, ModelError
from qkv.models.formats.files import Files, read_json
from qkv.models.formats.stored import Found, Stored, plain
from qkv.models.hub import PICKLES
from qkv.models.named import NO_PICKLE

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"


def open_folder(folder: Path) -> Found:
    """Look at a folder with config.json and safetensors; no tensor is read.

    Raises:
        FileError: a file is missing, broken, or not what it claims to be.
        ModelError: the index of several files does not agree with them.
    """
    config = read_json(folder / "config.json")
    single, index = folder / WEIGHTS, folder / INDEX
    if single.is_file() or not index.is_file():
        weights, source = _single(folder), read_safetensors(_single(folder))
    else:
        weights, source = index, _sharded(index)
    return Found(config, folder / "config.json", weights, source, Files(folder))


def read_safetensors(path: Path) -> dict[str, Stored]:
    """Return the tensors of one file.

    Raises:
        FileError: it is no whole file of safetensors; says what it is instead.
    """
    try:
        with safe_open(str(path), "np") as file:  # checks the header, and every offset in it
            names = list(file.keys())
        with path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(size))
    except (SafetensorError, OSError) as error:
        raise FileError(_instead(path, error)) from error
    found = {}
    for name in names:
        about = header[name]
        start = 8 + size + about["data_offsets"][0]
        found[name] = plain(name, tuple(about["shape"]), about["dtype"], path, start)
    return found


def _single(folder: Path) -> Path:
    path = folder / WEIGHTS
    if path.is_file():
        return path
    there = sorted(file.name for file in folder.iterdir())
    pickles = [name for name in there if Path(name).suffix in PICKLES]
    if pickles:
        raise FileError(f"{folder} offers its weights as {', '.join(pickles)}: {NO_PICKLE}")
    raise FileError(f"{folder} holds no {WEIGHTS}; there are: {', '.join(there) or 'no files'}")


def _sharded(index: Path) -> dict[str, Stored]:
    """Return the tensors of all files that an index names."""
    shards = _shards(index)
    found: dict[str, Stored] = {}
    strays = []
    for name in sorted(set(shards.values())):
        tensors = read_safetensors(index.parent / name)
        strays += [f"{key} in {name}" for key in tensors if shards.get(key) != name]
        found.update(tensors)
    lost = [f"{key} in {name}" for key, name in shards.items() if key not in found]
    problems = {"not there": lost, "not in the index": strays}
    said = [f"{what}: {', '.join(sorted(which))}" for what, which in problems.items() if which]
    if said:
        raise ModelError(f"{index} does not agree with its files: {'; '.join(said)}")
    return found


def _shards(index: Path) -> dict[str, str]:
    """Return which file holds which tensor; only files of the folder itself are taken."""
    shards = read_json(index).get("weight_map")
    if not isinstance(shards, dict) or not shards:
        raise FileError(f"{index} has no weight_map; wanted the file of each tensor")
    outside = sorted({str(name) for name in shards.values() if not _plain_name(name)})
    if outside:
        raise FileError(
            f"{index} names {', '.join(map(repr, outside))}; wanted safetensors in its own folder"
        )
    absent = sorted({name for name in shards.values() if not (index.parent / name).is_file()})
    if absent:
        raise FileError(f"{index} names {', '.join(absent)}, which {index.parent} does not hold")
    return shards


def _plain_name(name: object) -> bool:
    """Whether it is the name of a file of safetensors, and no path, on any system."""
    if not isinstance(name, str) or not name.endswith(".safetensors") or "\0" in name:
        return False
    return PureWindowsPath(name).name == name and Path(name).name == name and ":" not in name


def _instead(path: Path, error: Exception) -> str:
    """Look at the first bytes of what is no safetensors file."""
    if isinstance(error, OSError):
        return f"{path} cannot be read: {error}"
    with path.open("rb") as file:
        start = file.read(32)
    if start.startswith((b"PK\x03\x04", b"\x80")):
        return f"{path} is a pickle under another name: {NO_PICKLE}"
    if start.startswith(b"version https://git-lfs"):
        return (
            f"{path} is a Git LFS pointer, not the weights themselves; fetch it with git lfs pull"
        )
    return (
        f"{path} is no whole safetensors file ({path.stat().st_size} bytes; {error}); it may have "
        f"been cut off: copy it again"
    )
