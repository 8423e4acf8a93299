"""Rows of many steps in few tensors.

A small tensor of each step between the keys that come and go would keep their memory from being
used again: three times as much was taken by 1,000 tokens.
"""

from collections.abc import Callable
from functools import partial

from jaxtyping import Shaped
from torch import Tensor

CHUNK = 64
"""Rows that are made room for at once."""


class Rows:
    """Takes rows (…, rows, width), of the same other axes each time."""

    def __init__(self) -> None:
        """No row yet."""
        self._chunk: Tensor | None = None
        self._used = 0

    def add(self, x: Shaped[Tensor, "*axes rows width"]) -> Callable[[], Tensor]:
        """Copy rows, and return what gives them back."""
        count = x.shape[-2]
        if self._chunk is None or self._used + count > self._chunk.shape[-2]:
            self._chunk = x.new_zeros((*x.shape[:-2], max(count, CHUNK), x.shape[-1]))
            self._used = 0
        start = self._used
        self._used += count
        self._chunk[..., start : self._used, :] = x
        return partial(_part, self._chunk, start, self._used)


def _part(chunk: Tensor, start: int, stop: int) -> Tensor:
    return chunk[..., start:stop, :]
