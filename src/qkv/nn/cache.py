"""Keys and values of what was read: each new token then costs one row, not the whole text."""

from contextlib import AbstractContextManager, nullcontext
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from qkv.core.laid import Laid
from qkv.core.mask import Mask
from qkv.core.product import plain
from qkv.errors import ArgumentError, ShapeError

FIRST = 64
"""Tokens that a growing cache has room for at first; then it doubles."""

SOON = 16
"""Single tokens after which laying weights out for more of them is worth its time."""

Pair = tuple[Tensor, Tensor]


@runtime_checkable
class Kept(Protocol):
    """Keys and values of one attention."""

    @property
    def length(self) -> int:
        """Tokens read so far."""

    @property
    def complete(self) -> bool:
        """Whether nothing is added any more."""

    def read(self) -> Pair:
        """Return all keys and values."""

    def extend(self, k: Tensor, v: Tensor) -> Pair:
        """Add those of new tokens and return all that these may look at."""


class Growing:
    """Keys and values of self-attention: those of new tokens are written behind the others.

    Args:
        most: room for so many tokens from the start (a static cache); by default it grows.
        window: how many tokens are kept, the newest; all by default.
    """

    complete = False

    def __init__(self, most: int | None = None, window: int | None = None) -> None:
        """Start empty."""
        self.most, self.window = most, window
        self.length = 0
        self._keys: Tensor | None = None
        self._values: Tensor | None = None
        self._end = 0  # of what is in use; after a window has moved on it is less than length

    def read(self) -> Pair:
        """Return keys and values; axes (batch, kv_heads, tokens, d_k) and (…, d_v)."""
        if self._keys is None or self._values is None:
            raise ArgumentError("the cache is empty: nothing has been read yet")
        return self._keys.narrow(2, 0, self._end), self._values.narrow(2, 0, self._end)

    def extend(
        self,
        k: Float[Tensor, "batch kv_heads tokens d_k"],
        v: Float[Tensor, "batch kv_heads tokens d_v"],
    ) -> Pair:
        """Write keys and values of new tokens behind the others; return all that are kept.

        Raises:
            ShapeError: another batch or other heads than before.
            ArgumentError: a static cache is full.
        """
        self._make_room(k, v)
        assert self._keys is not None
        assert self._values is not None
        new = k.shape[-2]
        self._keys.narrow(2, self._end, new).copy_(k)
        self._values.narrow(2, self._end, new).copy_(v)
        self._end += new
        self.length += new
        return self.read()

    def reorder(self, rows: Int[Tensor, "beams"]) -> None:
        """Let row i go on from what row rows[i] has read."""
        if self._keys is not None and self._values is not None:
            k, v = self.read()
            if len(rows) == len(k):  # the room stays as it is
                k[:], v[:] = k[rows], v[rows]
                return
            room = self._keys.shape[-2]
            self._keys, self._values = _roomy(k[rows], room), _roomy(v[rows], room)

    def cut(self, length: int) -> None:
        """Forget what was read after so many tokens."""
        gone = max(0, self.length - length)
        if length < 0 or gone > self._end:
            raise ArgumentError(
                f"length is {length}; wanted {self.length - self._end} to {self.length}"
            )
        self._end -= gone
        self.length -= gone

    def keys_with(self, new: int) -> int:
        """Return how many keys so many new tokens will look at, themselves counted."""
        return new if self._keys is None else self._kept_beside(new) + new

    def _kept_beside(self, new: int) -> int:
        """Tokens that stay; a window is cut only where there is no room: it moves seldom."""
        fits = self._keys is not None and self._end + new <= self._keys.shape[-2]
        if self.window is None or fits:
            return self._end
        return min(self._end, self.window - 1)  # a query sees itself too

    def _make_room(self, k: Tensor, v: Tensor) -> None:
        new = k.shape[-2]
        if k.dim() != 4:
            raise ShapeError(f"k is {tuple(k.shape)}; a cache wants one batch axis, (batch, …)")
        if self.most is not None and self.window is None and self.length + new > self.most:
            raise ArgumentError(
                f"the cache has room for {self.most} tokens, {self.length + new} are wanted; "
                f"say a larger `most`, or none"
            )
        if self._keys is None or self._values is None:
            room = max(new, FIRST if self.most is None else self.most)
            if self.window is not None:
                room = max(new, 2 * self.window)
            self._keys, self._values = _roomy(k[:, :, :0], room), _roomy(v[:, :, :0], room)
            return
        if self._keys.shape[:2] != k.shape[:2] or self._keys.shape[-1] != k.shape[-1]:
            raise ShapeError(
                f"k is {tuple(k.shape)}, the cache holds {tuple(self.read()[0].shape)}"
            )
        if self._end + new <= self._keys.shape[-2]:
            return
        keep = self._kept_beside(new)
        room = 2 * (keep + new) if self.window is None else max(2 * self.window, keep + new)
        kept = slice(self._end - keep, self._end)
        self._keys = _roomy(self._keys[:, :, kept], room)
        self._values = _roomy(self._values[:, :, kept], room)
        self._end = keep


class Memory:
    """Keys and values of cross-attention: made once from what the encoder read, then complete."""

    def __init__(self) -> None:
        """Start empty."""
        self._pair: Pair | None = None

    @property
    def length(self) -> int:
        """Tokens of the memory."""
        return 0 if self._pair is None else int(self._pair[0].shape[-2])

    @property
    def complete(self) -> bool:
        """Whether keys and values have been made."""
        return self._pair is not None

    def read(self) -> Pair:
        """Return them."""
        if self._pair is None:
            raise ArgumentError("the cache is empty: nothing has been read yet")
        return self._pair

    def extend(self, k: Tensor, v: Tensor) -> Pair:
        """Keep them."""
        self._pair = (k, v)
        return self._pair

    def reorder(self, rows: Int[Tensor, "beams"]) -> None:
        """Let row i go on with the memory of row rows[i]."""
        if self._pair is not None:
            k, v = self._pair
            self._pair = (k[rows], v[rows])


class LayerCache:
    """What one layer keeps: of itself, and of the memory that it looks at."""

    def __init__(self, most: int | None, window: int | None) -> None:
        """Start empty."""
        self.own = Growing(most, window)
        self.cross = Memory()


class KeyValueCache:
    """Keys and values of all layers.

    Args:
        num_layers: layers of the decoder.
        most: room for so many tokens from the start, which no step then has to grow.
        window: how many tokens are kept, the newest; all by default.

    Attributes:
        layers: what each layer keeps.
        start: padding on the left of each row, (batch,), or None.
        memory: what the encoder gave, for decoders that look at it.
        memory_mask: which of it is padding.
    """

    def __init__(
        self, num_layers: int, *, most: int | None = None, window: int | None = None
    ) -> None:
        """Start empty."""
        for name, number in (("num_layers", num_layers), ("most", most), ("window", window)):
            if number is not None and number < 1:
                raise ArgumentError(f"{name} is {number}; wanted 1 or more")
        self.layers = [LayerCache(most, window) for _ in range(num_layers)]
        self.window = window
        self.start: Int[Tensor, batch] | None = None
        self.memory: Float[Tensor, "batch keys n_embed"] | None = None
        self.memory_lengths: Int[Tensor, batch] | None = None
        self._singles, self._laid = 0, Laid()

    @property
    def length(self) -> int:
        """Tokens read so far, padding included."""
        return self.layers[0].own.length

    def quicker(self, tokens: int) -> AbstractContextManager[None]:
        """Return what the next tokens are read in: quicker products, once many came singly.

        For that the weights are laid out a second time (`core.laid`), and kept with this cache.
        """
        self._singles += tokens == 1
        early = tokens > 1 or self._singles <= SOON
        if early or not plain() or torch.is_autocast_enabled("cpu"):
            return nullcontext()
        return self._laid.used()

    def positions(self, tokens: int, device: torch.device) -> Int[Tensor, "*batch tokens"]:
        """Return the positions of so many new tokens; padding on the left does not count."""
        columns = torch.arange(self.length, self.length + tokens, device=device)
        if self.start is not None:
            columns = (columns - self.start[:, None]).clamp(min=0)
        return columns

    def mask(self, tokens: int) -> Mask | None:
        """Return what hides from so many new tokens what is kept: padding, and beyond the window.

        A window is cut from memory only now and then, so the mask has to hide the rest.
        """
        keys = self.layers[0].own.keys_with(tokens)
        beyond = self.window is not None and keys > self.window
        seen = Mask.window(self.window - 1, tokens) if beyond and self.window else None
        if self.start is None:
            return seen
        real = (self.length + tokens - self.start).clamp(min=0, max=keys)  # 0: padding alone
        padding = Mask.padding(real, "left")
        return padding if seen is None else seen & padding

    def cut(self, length: int) -> None:
        """Forget what was read after so many tokens.

        Raises:
            ArgumentError: more tokens than were read, or fewer than a window still keeps.
        """
        for layer in self.layers:
            layer.own.cut(length)
        if not length:  # nothing is left of the text, nor of the weights as they were
            self.start, self._singles, self._laid = None, 0, Laid()

    @property
    def memory_mask(self) -> Mask | None:
        """Return what hides the padding of the memory."""
        return None if self.memory_lengths is None else Mask.padding(self.memory_lengths)

    def reorder(self, rows: Int[Tensor, "beams"], *, memory: bool = True) -> None:
        """Let row i go on from what row rows[i] has read: one beam may become several.

        Args:
            rows: where each row goes on from.
            memory: False leaves the memory and the padding as they are, where rows change only
                with others of the same source and prompt.
        """
        for layer in self.layers:
            layer.own.reorder(rows)
            if memory:
                layer.cross.reorder(rows)
        if not memory:
            return
        for name in ("start", "memory", "memory_lengths"):
            kept = getattr(self, name)
            setattr(self, name, None if kept is None else kept[rows])


def _roomy(tensor: Tensor, room: int) -> Tensor:
    """Copy (batch, heads, tokens, values) to where there is room for more tokens."""
    out = tensor.new_zeros(*tensor.shape[:2], room, tensor.shape[-1])
    out[:, :, : tensor.shape[-2]] = tensor
    return out
