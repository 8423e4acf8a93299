"""The map of a model: its parts, their sizes and parameters, read from its modules.

Shapes are enough: a model is built on the meta device, and no weight is read.
"""

from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import nn

from qkv.errors import ArgumentError
from qkv.models.family import account, configure, family_of, shaped
from qkv.models.fill import Undrawn
from qkv.models.formats.files import Files
from qkv.models.loading import FAMILIES, look
from qkv.models.maps.original import Original
from qkv.models.maps.parts import layer_parts
from qkv.models.maps.stems import above, below
from qkv.models.named import find
from qkv.show.architecture import Architecture, CacheSize, Tower


class Untold(Files):
    """Files whose tokenizer is left unread: a map needs none."""

    def __init__(self, files: Files) -> None:
        """Take the files of whatever format."""
        super().__init__(files.path)
        self._files = files

    def json(self, name: str) -> dict[str, Any] | None:
        """Return what the files say."""
        return self._files.json(name)

    def tokenizer(self) -> None:
        """Return nothing."""


def map_of(name_or_path: str | PathLike[str]) -> Architecture:
    """Return the map of a model, from its configuration and the shapes of its tensors alone.

    Args:
        name_or_path: as `qkv.load` takes it.

    Raises:
        MissingPackageError, FileError, ModelError: as `qkv.load` raises them.
    """
    path = find(name_or_path)
    found = look(path)
    family = family_of(found, FAMILIES)
    model = shaped(family, configure(family, found), found, Untold(found.files))
    account(family, model, found)
    return architecture(model, _called(str(name_or_path), path), family.name)


def map_of_original() -> Architecture:
    """Return the map of the first transformer, base      Vaswani et al. 2017, table 3"""
    with torch.device("meta"), Undrawn():
        model = Original()
    return architecture(model, "The original transformer", "Vaswani et al. 2017")


def architecture(model: nn.Module, name: str, family: str = "") -> Architecture:
    """Return the map of a model, which may be on the meta device.

    Args:
        model: what `qkv.load` gives.
        name: what the map is headed with.
        family: by its name.

    Raises:
        ArgumentError: a model that is no transformer of `qkv.load`.
    """
    sides = [side for side in ("encoder", "decoder") if hasattr(model, side)]
    if not sides or not hasattr(model, "layers"):
        raise ArgumentError(
            f"model is a {type(model).__name__}; wanted a transformer, as qkv.load gives it"
        )
    return Architecture(name, family, tuple(_tower(side, model) for side in sides), _cache(model))


def _called(name: str, path: Path) -> str:
    """What to call a model: a path by its last part, a name as it is."""
    return path.resolve().name if Path(name).expanduser() == path else name


def _tower(side: str, model: Any) -> Tower:
    layers = getattr(model, side).layers
    layer = tuple(layer_parts(layers[0], side == "decoder"))
    return Tower(side, below(side, model), layer, len(layers), above(side, model))


def _cache(model: Any) -> CacheSize | None:
    """Keys and values of every layer, of what is written and of what was read."""
    if not hasattr(model, "decoder"):
        return None
    layers = model.decoder.layers
    own, memory = layers[0].attention, layers[0].cross
    values, memory_values = (
        0 if part is None else len(layers) * part.kv_heads * (part.d_k + part.d_v)
        for part in (own, memory)
    )
    return CacheSize(values, memory_values, model.most)
