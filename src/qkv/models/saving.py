"""Saving: a model of any family as a folder that `load` reads, in Hugging Face's layout."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import nn

from qkv.disk import make_folder, whole, write_tensors, write_whole
from qkv.errors import ArgumentError
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

    Each file is complete or as it was before. The weights come last.

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
    make_folder(folder)
    write_whole(folder / "config.json", f"{config}\n".encode())
    if tokenizer is not None:
        write_whole(folder / "tokenizer.json", tokenizer.json().encode())
    with whole(folder / WEIGHTS) as partial:
        write_tensors(partial, tensors, {"format": "pt"})
