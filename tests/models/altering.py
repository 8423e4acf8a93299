"""Folders of models, altered on purpose, and the message with which they are then refused."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from qkv.errors import FileError
from qkv.models import load


def change_weights(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Alter the tensors of a folder, in place."""
    path = folder / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)


def change_config(folder: Path, *removed: str, **values: Any) -> None:
    """Alter the config.json of a folder, in place."""
    path = folder / "config.json"
    config = json.loads(path.read_text("utf-8")) | values
    for key in removed:
        del config[key]
    path.write_text(json.dumps(config), "utf-8")


def refusal(folder: Path | str, kind: type[Exception] = FileError, **options: Any) -> str:
    """Return the message with which a folder or a file is refused."""
    with pytest.raises(kind) as error:
        load(folder, **options)
    return str(error.value)
