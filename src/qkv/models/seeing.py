"""Seeing: small pictures as a model takes them, and the convolutions that make rows of them."""

from os import PathLike
from pathlib import Path
from typing import cast

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Num
from torch import Tensor, nn

from qkv.core.positions import waves
from qkv.disk import cannot_read
from qkv.errors import ArgumentError, FileError, ShapeError
from qkv.nn.attending import positive

PLACE = 4
"""Pixels along one side of a place: two convolutions, each of which halves the picture."""

BASE = 100.0
"""Of the positions' wavelengths: there are a few lines and columns, not thousands of words."""

WIDEST = 8
"""Bytes of a number that PyTorch has, too."""

Pictures = Num[np.ndarray, "*pictures height width"] | Num[Tensor, "*pictures height width"]
"""Whole numbers of 8 bits from 0 (nothing) to 255 (ink), or numbers from 0 to 1."""


class Seeing(nn.Module):
    """norm(gelu(conv₃(gelu(conv₂(gelu(conv₁(picture))))))) + positions: one row for 4 × 4 pixels

    Convolutions rather than cut-out patches, which learn faster: Xiao et al. 2021, section 3. A
    row has seen 15 × 15 pixels. Half of the values of a position say its line, half its column.

    Args:
        n_embed: values a row.
        size: pixels along one side of a picture.

    Raises:
        ArgumentError: a size, or a number of values, that is no multiple of 4.
    """

    def __init__(self, n_embed: int, size: int) -> None:
        """Draw the weights."""
        super().__init__()
        for name, number in (("d_model", n_embed), ("image_size", size)):
            if positive(name, number) % 4:
                raise ArgumentError(f"{name} is {number}; wanted a multiple of 4")
        self.n_embed, self.size = n_embed, size
        self.conv1 = nn.Conv2d(1, n_embed, kernel_size=3, stride=2, padding=1)
        self.conv2 = nn.Conv2d(n_embed, n_embed, kernel_size=3, stride=2, padding=1)
        self.conv3 = nn.Conv2d(n_embed, n_embed, kernel_size=3, padding=1)
        for conv in (self.conv1, self.conv2, self.conv3):  # He et al. 2015, equation 10
            nn.init.kaiming_uniform_(conv.weight, nonlinearity="relu")
            nn.init.zeros_(cast(Tensor, conv.bias))
        self.norm = nn.LayerNorm(n_embed)

    def forward(
        self, pictures: Float[Tensor, "batch height width"]
    ) -> Float[Tensor, "batch places n_embed"]:
        """Return one row a place, line by line."""
        x = pictures[:, None]
        for conv in (self.conv1, self.conv2, self.conv3):
            x = F.gelu(conv(x))
        rows: Tensor = self.norm(x.flatten(2).mT)
        return rows + self.positions(rows.device, rows.dtype)

    def positions(
        self, device: torch.device, dtype: torch.dtype = torch.float32
    ) -> Float[Tensor, "places n_embed"]:
        """Return the waves of each place's line beside those of its column."""
        side = self.size // PLACE
        lines = waves(torch.arange(side, device=device), self.n_embed // 2, base=BASE, dtype=dtype)
        both = lines[:, None].expand(-1, side, -1), lines[None].expand(side, -1, -1)
        return torch.cat(both, dim=-1).flatten(0, 1)


def inked(
    pictures: Num[Tensor, "*pictures height width"], dtype: torch.dtype
) -> Float[Tensor, "*pictures height width"]:
    """Return numbers from 0 to 1."""
    return pictures.to(dtype) / 255 if pictures.dtype == torch.uint8 else pictures.to(dtype)


def side_by_side(
    pictures: Pictures | str | PathLike[str], size: int, device: torch.device
) -> Num[Tensor, "pictures height width"]:
    """Return one picture or several as a batch.

    Args:
        pictures: (height, width) or (pictures, height, width), or the path of a .npy file.
        size: pixels along one side.
        device: where they are wanted.

    Raises:
        ShapeError: none, or of another size.
        ArgumentError: numbers out of their range.
        FileError: a file that cannot be read.
    """
    given = _read(Path(pictures)) if isinstance(pictures, str | PathLike) else pictures
    if isinstance(given, np.ndarray):  # of any strides and any order of bytes
        given = np.ascontiguousarray(given, given.dtype.newbyteorder("="))
    seen = torch.as_tensor(given, device=device)
    if seen.dim() not in {2, 3} or tuple(seen.shape[-2:]) != (size, size) or not len(seen):
        raise ShapeError(
            f"pictures are {tuple(seen.shape)}; wanted ({size}, {size}), or several of them: "
            f"(pictures, {size}, {size})"
        )
    if seen.dtype != torch.uint8 and not _shares(seen):
        raise ArgumentError(
            f"pictures are {seen.dtype}, from {seen.min()} to {seen.max()}; wanted uint8 from 0 "
            f"(nothing) to 255 (ink), or fractions from 0 to 1"
        )
    return seen if seen.dim() == 3 else seen[None]


def _shares(seen: Tensor) -> bool:
    return seen.is_floating_point() and bool(((seen >= 0) & (seen <= 1)).all())


def _read(path: Path) -> Num[np.ndarray, "*axes"]:
    """Read a .npy file that holds numbers and nothing else."""
    try:
        with path.open("rb") as file:
            found = np.lib.format.read_array(file, allow_pickle=False)
    except OSError as error:
        raise cannot_read(path, error) from error
    except Exception as error:  # whatever NumPy meets in a header that was made up
        raise FileError(f"{path} cannot be read as a .npy file: {error}") from error
    if found.dtype.kind not in "uif" or found.dtype.itemsize > WIDEST:
        raise FileError(f"{path} holds no numbers; wanted a .npy file of pictures")
    return found
