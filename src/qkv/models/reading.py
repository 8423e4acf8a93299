"""Where the tokens of a batch stand, and who may look at whom."""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

from qkv.core.mask import Mask
from qkv.errors import ArgumentError
from qkv.nn.cache import KeyValueCache

Side = Literal["right", "left"]
Lengths = Sequence[int] | Int[Tensor, "batch"] | None


class Place(NamedTuple):
    """Positions of the tokens (None: 0, 1, 2, …), and the mask between them."""

    positions: Int[Tensor, "*batch tokens"] | None
    mask: Mask | bool


def check_ids(name: str, ids: Tensor, size: int) -> None:
    """Raise ArgumentError where ids are not in a table of that size."""
    if torch.compiler.is_compiling() or ids.is_meta or not ids.numel():
        return
    low, high = int(ids.min()), int(ids.max())
    if low < 0 or high >= size:
        raise ArgumentError(f"{name} reach from {low} to {high}; the model's table has {size} rows")


def check_length(tokens: int, most: int | None) -> None:
    """Raise ArgumentError where a text has no token, or more than the model has positions for."""
    if tokens < 1:
        raise ArgumentError("the text has 0 tokens; wanted a text of one or more")
    if most is not None and tokens > most:
        raise ArgumentError(
            f"the text has {tokens} tokens, the model takes 1 to {most}: choose fewer tokens"
        )


def check_room(ids: Tensor, cache: KeyValueCache | None, most: int | None) -> None:
    """Raise ArgumentError where tokens do not fit behind what the cache holds.

    Padding takes no position, as far as all rows have it.
    """
    tokens = ids.shape[-1] + (0 if cache is None else cache.length)
    if most is not None and tokens > most and cache is not None and cache.start is not None:
        tokens -= int(cache.start.min())
    check_length(tokens, most)


def place(ids: Int[Tensor, "batch tokens"], lengths: Lengths, side: Side) -> Place:
    """Return positions and causal mask of texts that are read whole.

    Raises:
        ArgumentError: lengths that are not one for each row, or longer than the row.
    """
    if lengths is None:
        return Place(None, True)
    real = real_tokens(lengths, ids)
    mask = Mask.causal() & Mask.padding(real, side)
    if side == "right":
        return Place(None, mask)
    columns = torch.arange(ids.shape[-1], device=ids.device)
    start = ids.shape[-1] - real
    return Place((columns - start[:, None]).clamp(min=0), mask)


def place_on(ids: Int[Tensor, "batch tokens"], lengths: Lengths, cache: KeyValueCache) -> Place:
    """Return positions of tokens that follow what the cache holds; it knows who sees whom.

    Padding stands on the left of what is read first; the cache remembers how much.

    Raises:
        ArgumentError: lengths for a later read, or such as do not fit.
    """
    tokens = ids.shape[-1]
    if lengths is not None:
        if cache.length:
            raise ArgumentError("lengths are given, but the cache has read already; leave them out")
        start = tokens - real_tokens(lengths, ids)
        cache.start = start if bool(start.any()) else None
    return Place(cache.positions(tokens, ids.device), True)


def real_tokens(
    lengths: Sequence[int] | Tensor, rows: Tensor, name: str = "lengths", of: str = "ids"
) -> Int[Tensor, "batch"]:
    """Return how many tokens of each row are real.

    Args:
        lengths: what was given.
        rows: what they are the lengths of, (batch, tokens, …).
        name, of: what to call the two where they do not fit.

    Raises:
        ArgumentError: they are not one whole number for each row, from 1 to its length.
    """
    real = torch.as_tensor(lengths, device=rows.device)
    most = rows.shape[1]
    fits = real.shape == rows.shape[:1] and not real.is_floating_point()
    if not fits or bool((real < 1).any()) or bool((real > most).any()):
        raise ArgumentError(
            f"{name} are {real.tolist()} for {of} {tuple(rows.shape[:2])}; wanted one whole number "
            f"a row, 1 to {most}"
        )
    return real
