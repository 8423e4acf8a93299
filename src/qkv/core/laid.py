"""Weights laid out once more, in the blocks that the processor's products read."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor, nn

FEW = 8
"""Rows that are multiplied by blocks at most: one token of as many texts."""

MOST = 1 << 31
"""Bytes of memory that a `Laid` takes at most; what is beyond is multiplied as it lies."""

_LAY: Any = getattr(getattr(torch.ops.mkldnn, "_reorder_linear_weight", None), "default", None)


class Laid:
    """Matrices in blocks instead of rows; while it is in use, few rows are multiplied by these.

    oneDNN reads blocks, of bfloat16 in pairs, and lays rows out anew in every product; for a single
    row that takes as long as the product. Each matrix is laid out when it is met first. Its numbers
    must not change while this is used, so whoever makes one says for how long: a `KeyValueCache`
    for its text, whose keys would be wrong then, too.
    """

    def __init__(self) -> None:
        """Nothing is laid out yet."""
        self.blocks: dict[int, tuple[Tensor, Tensor]] = {}
        self._rows: dict[int, Tensor] = {}
        self._room = MOST

    def __reduce__(self) -> tuple[type["Laid"], tuple[()]]:
        """A copy lays its own out: blocks can be neither copied nor stored."""
        return Laid, ()

    @contextmanager
    def used(self) -> Iterator[None]:
        """Let products in this thread use the blocks."""
        token = _USED.set(self)
        try:
            yield
        finally:
            _USED.reset(token)

    def add(self, W: Tensor) -> None:
        """Lay a parameter out, if there is room; views are new ones every time, and left out."""
        if type(W) is nn.Parameter and W.nbytes <= self._room and _LAY is not None:
            self._room -= W.nbytes
            blocks = _LAY(W.detach(), FEW)
            self.blocks[id(W)] = W, blocks  # both are kept, so that their ids are
            self._rows[id(blocks)] = W

    def rows(self, blocks: Tensor) -> Tensor | None:
        """Return the parameter that was laid out so."""
        return self._rows.get(id(blocks))


_USED: ContextVar[Laid | None] = ContextVar("used", default=None)


def lay(W: Tensor) -> None:
    """Lay a matrix out for the next products, where blocks are in use."""
    if (used := _USED.get()) is not None:
        used.add(W)


def rows(blocks: Tensor) -> Tensor | None:
    """Return the parameter whose blocks are in use, for those who watch a product."""
    return None if (used := _USED.get()) is None else used.rows(blocks)


def laid(x: Tensor, W: Tensor) -> Tensor | None:
    """Return the blocks of a matrix, where there are some in use and they fit these few rows."""
    if (used := _USED.get()) is None or (kept := used.blocks.get(id(W))) is None:
        return None
    few = 0 < x.numel() <= FEW * W.shape[1] and x.shape[-1] == W.shape[1]
    return kept[1] if few and type(x) is Tensor and x.dtype == W.dtype else None
