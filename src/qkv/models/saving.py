"""Saving: a model of any family as a folder that `load` reads, in Hugging Face's layout."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import nn

from qkv.errors import ArgumentError, FileError
from qkv.models.family import Family
from qkv.models.formats.folder import WEIGHTS
from qkv.models.text.tokenizer import Tokenizer


def save_folder(
    model: nn.Module,
    family: Family[Any, Any],
    folder: Path,
    *,
    tokenizer: Tokenizer | None = None,
    dtype: torch.dtype = torch.float32,
) -> None:
    """Write config.json, model.safetensors and tokenizer.json.

    Each file is complete or as it was before: it is written under another name and renamed. The
    weights come last.

    Args:
        model: has the family's dataclass as `config`.
        family: says what config.json and the tensors call things.
        folder: made where it is not there.
        tokenizer: what cuts text into the model's tokens.
        dtype: of the numbers in the file.

    Raises:
        ArgumentError: a family whose files fuse or transpose tensors, which only reading undoes.
        FileError: a file cannot be written.
    """
    if family.unpack is not None:
        raise ArgumentError(f"family is {family.name}, which is read but not written here")
    said = {name: value for name, value in asdict(model.config).items() if value is not None}  # type: ignore[call-overload]
    about = {"model_type": family.name, **family.assumes, **said}
    config = json.dumps(about, indent=2, ensure_ascii=False)
    tensors = {
        family.source(ours): tensor.detach().to("cpu", dtype).contiguous()
        for ours, tensor in model.state_dict().items()
    }
    write_whole(folder / "config.json", f"{config}\n".encode())
    if tokenizer is not None:
        write_whole(folder / "tokenizer.json", tokenizer.json().encode())
    with whole(folder / WEIGHTS) as partial:
        save_file(tensors, partial, metadata={"format": "pt"})


def write_whole(path: Path, content: bytes) -> None:
    """Write a file that is complete or, whatever happens meanwhile, as it was before.

    Raises:
        FileError: it cannot be written.
    """
    with whole(path) as partial:
        partial.write_bytes(content)


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """Give a name to write to; what is written there lies under `path` when all is on the disk.

    Raises:
        FileError: it cannot be written; what lay there before still does.
    """
    partial = path.with_name(f".{path.name}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield partial
        settle(partial)
        os.replace(partial, path)
        settle(path.parent)
    except (OSError, SafetensorError) as error:
        raise FileError(f"{path} cannot be written: {reason(error)}") from error
    finally:
        with suppress(OSError):  # what cannot be written to, nothing was written to
            partial.unlink(missing_ok=True)


def settle(path: Path) -> None:
    """Wait until a file, or the names in a folder, lie on the disk.

    On macOS the disk may still hold them in a memory of its own, which a power cut empties.
    """
    if path.is_dir() and os.name == "nt":
        return  # Windows opens no folders, and keeps their names itself
    opened = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def reason(error: Exception) -> str:
    """Say in a few words why a file could not be read or written."""
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
