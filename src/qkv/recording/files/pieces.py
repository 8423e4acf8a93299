"""Tensors that share memory, written once: flat pieces, and where in them each tensor lies."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Shaped
from torch import Tensor

from qkv.errors import FileError


class View(NamedTuple):
    """Where the numbers of a tensor lie.

    Attributes:
        piece: name of the piece.
        start: of its first number in the piece.
        shape: of its axes.
        stride: steps of its axes.
    """

    piece: str
    start: int
    shape: Sequence[int]
    stride: Sequence[int]


class Place(NamedTuple):
    """The memory that a tensor lies in."""

    address: int
    device: torch.device
    dtype: torch.dtype


class Pieces:
    """Collects tensors; each place in memory becomes one piece, as far as it is used."""

    def __init__(self) -> None:
        """Nothing yet."""
        self._held: list[Tensor] = []  # or another tensor would come to lie at the same address
        self._names: dict[Place, str] = {}
        self._numbers: dict[tuple[str, int, torch.Size, tuple[int, ...]], int] = {}

    def add(self, tensor: Shaped[Tensor, "..."]) -> int:
        """Take a tensor, and return its number among the views."""
        tensor = tensor.detach()
        if not tensor.numel():
            tensor = tensor.new_empty(tensor.shape)
        address = tensor.untyped_storage().data_ptr()
        place = Place(address, tensor.device, tensor.dtype)
        name = self._names.setdefault(place, str(len(self._names)))
        key = (name, int(tensor.storage_offset()), tensor.shape, tensor.stride())
        if key not in self._numbers:
            self._numbers[key] = len(self._held)
            self._held.append(tensor)
        return self._numbers[key]

    def views(self) -> list[View]:
        """Return where each tensor lies, by its number."""
        first = {name: reach.start for name, reach in self._reaches().items()}
        return [
            View(name, start - first[name], shape, stride)
            for name, start, shape, stride in self._numbers
        ]

    def flat(self) -> dict[str, Shaped[Tensor, "numbers"]]:
        """Return the pieces, by name."""
        owners = dict(zip((name for name, *_ in self._numbers), self._held, strict=True))
        return {
            name: owners[name].as_strided((len(reach),), (1,), reach.start).cpu().contiguous()
            for name, reach in self._reaches().items()
        }

    def _reaches(self) -> dict[str, range]:
        """From which number to which each piece of memory is used."""
        reaches: dict[str, range] = {}
        for name, start, shape, stride in self._numbers:
            last = start + sum((n - 1) * step for n, step in zip(shape, stride, strict=True))
            used = range(start, last + 1 if shape.numel() else start)
            have = reaches.get(name, used)
            reaches[name] = range(min(have.start, start), max(have.stop, used.stop))
        return reaches


def views_of(pieces: Mapping[str, Tensor], views: Sequence[Sequence[Any]]) -> list[Tensor]:
    """Return the tensors that lie in pieces, by their number.

    Raises:
        FileError: a tensor that does not lie within its piece.
    """
    return [_view(pieces[piece], start, shape, stride) for piece, start, shape, stride in views]


def _view(flat: Tensor, start: int, shape: Sequence[int], stride: Sequence[int]) -> Tensor:
    if min((start, *shape, *stride)) < 0:
        raise FileError(f"a tensor of {shape} numbers in steps of {stride}, from {start} on")
    last = start + sum((n - 1) * step for n, step in zip(shape, stride, strict=True))
    if 0 in shape:
        return flat.new_empty(shape)
    if last >= flat.numel():
        raise FileError(f"a tensor reaches number {last} in a piece of {flat.numel()}")
    return flat.as_strided(shape, stride, int(flat.storage_offset()) + start)
