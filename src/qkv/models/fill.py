"""A model that is all shape becomes one that computes: memory is made once, and filled in place.

What a file holds as a parameter wants it stays where it is, mapped: it is read when it is used, and
what writes to it writes to a copy of that page, never to the file. All else is copied. The peak is
the parameters and one block of one tensor: a file is read a few rows at a time, and each block goes
to its place, packed and transposed projections included, as the state dict gives views on them.
Only a tensor whose rows come in another order (queries and keys in GGUF) is read whole; and of
projections that lie side by side (GPT-2's) each reads all rows and keeps its own.
"""

import math
import mmap
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from qkv.errors import FileError, ModelError
from qkv.models.formats.stored import Stored

CHUNK = 1 << 25
"""Bytes of memory that are asked for at once. NumPy asks Linux for large pages where it is much,
PyTorch does not; and the first touch of small pages takes longer than reading a file does."""

ALIGNMENT = 64

DRAWS = {nn.init.kaiming_uniform_, nn.init.uniform_, nn.init.normal_, nn.init.xavier_uniform_}


class Undrawn(TorchFunctionMode):
    """Within it, modules do not draw the weights that a file will fill."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Return the tensor as it is where numbers would be drawn into it."""
        given = kwargs or {}
        if func in DRAWS:
            return args[0] if args else given["tensor"]
        return func(*args, **given)


class Memory:
    """Room for parameters, of one dtype and on one device, cut from a few large pieces.

    Args:
        dtype, device: of the parameters.
    """

    def __init__(self, dtype: torch.dtype, device: torch.device | str) -> None:
        """Take nothing yet."""
        self.dtype, self.device = dtype, torch.device(device)
        self._left = torch.empty(0, dtype=torch.uint8)
        self._files: dict[Path, mmap.mmap] = {}

    def of(self, shape: torch.Size, stored: Stored | None) -> Tensor | None:
        """Return a tensor as it lies in its file; None where it has to be copied."""
        span = None if stored is None else stored.span
        if self.device.type != "cpu" or span is None or not span.lies_whole(shape, self.dtype):
            return None
        if span.path not in self._files:
            self._files[span.path] = _mapped(span.path)
        return span.mapped(self._files[span.path]).view(shape)

    def room(self, shape: torch.Size) -> Tensor:
        """Return an empty tensor for a parameter."""
        if self.device.type != "cpu":
            return torch.empty(shape, dtype=self.dtype, device=self.device)
        size = math.prod(shape) * self.dtype.itemsize
        reserved = -(-size // ALIGNMENT) * ALIGNMENT
        if reserved > CHUNK // 4:
            piece = _piece(reserved)
        else:
            if reserved > len(self._left):
                self._left = _piece(CHUNK)
            piece, self._left = self._left, self._left[reserved:]
        return piece[:size].view(self.dtype).view(shape)


def _mapped(path: Path) -> mmap.mmap:
    """Map a file so that what is written to the memory is not written to it."""
    try:
        with path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    except (OSError, ValueError) as error:
        raise FileError(f"{path} cannot be read: {error}") from error


def _piece(size: int) -> Tensor:
    """Return so many bytes of memory and no less, from a multiple of ALIGNMENT on."""
    piece = np.empty(size + ALIGNMENT, np.uint8)
    return torch.from_numpy(piece)[-piece.ctypes.data % ALIGNMENT :]


@torch.no_grad()
def fill(
    model: nn.Module, names: Mapping[str, Stored], dtype: torch.dtype, device: torch.device | str
) -> None:
    """Give a model on the meta device its parameters.

    Args:
        model: its parameters are shapes only.
        names: what goes into each entry of its state dict; all of them are here.
        dtype: of the parameters, whatever the files hold.
        device: of the parameters.

    Raises:
        ModelError: a buffer that is in no file, whose numbers nobody would know.
        FileError: a file that ends before its tensors do.
    """
    _check_buffers(model)
    memory = Memory(dtype, device)
    made: dict[nn.Parameter, nn.Parameter] = {}
    lying = set()
    for path, module in model.named_modules():
        for name, parameter in module.named_parameters(recurse=False):
            if parameter not in made:  # one that two modules share is made once
                whole = f"{path}.{name}" if path else name
                found = memory.of(parameter.shape, names.get(whole))
                lying |= set() if found is None else {whole}
                room = memory.room(parameter.shape) if found is None else found
                made[parameter] = nn.Parameter(room, parameter.requires_grad)
            module.register_parameter(name, made[parameter])
        for name, buffer in module.named_buffers(recurse=False):
            kind = dtype if buffer.is_floating_point() else buffer.dtype
            module.register_buffer(name, torch.empty_like(buffer, dtype=kind, device=device))
    places = model.state_dict()
    for ours in names.keys() - lying:
        names[ours].into(places[ours])


def _check_buffers(model: nn.Module) -> None:
    kept = model.state_dict().keys()
    lost = [name for name, _ in model.named_buffers() if name not in kept]
    if lost:
        raise ModelError(f"{', '.join(lost)}: buffers that no file holds cannot be filled")
