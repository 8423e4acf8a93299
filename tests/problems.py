"""Attention problems for hypothesis: sizes, dtypes and masks, with M built on its own by NumPy."""

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from torch import Tensor

from qkv.core.mask import Mask
from tests import reference
from tests.reference import Array

MASKS = (
    "none", "causal", "causal at the top left", "window", "padding", "left padding",
    "causal and padding", "keys", "documents", "allow by head", "forbid", "bias", "causal and bias",
    "causal or keys",
)  # fmt: skip
TOLERANCE = {torch.float64: 1e-12, torch.float32: 5e-6, torch.bfloat16: 4e-2}


@dataclass(frozen=True)
class Problem:
    """One call of attention, and M as NumPy has it (batch, heads, queries, keys)."""

    q: Tensor
    k: Tensor
    v: Tensor
    mask: Mask | None
    added: Array
    kind: str

    @property
    def arrays(self) -> tuple[Array, Array, Array]:
        return reference.array(self.q), reference.array(self.k), reference.array(self.v)

    @property
    def tolerance(self) -> float:
        return TOLERANCE[self.q.dtype]

    @property
    def empty(self) -> Array:
        """Where a query may look at nothing."""
        shape = (*self.q.shape[:-1], self.k.shape[-2])
        return np.broadcast_to(np.isneginf(self.added), shape).all(-1)


def problem(
    kind: str,
    *,
    batch: int = 2,
    heads: int = 4,
    kv_heads: int = 2,
    queries: int = 5,
    keys: int = 7,
    d_k: int = 3,
    d_v: int = 3,
    dtype: torch.dtype = torch.float64,
    seed: int = 0,
    device: torch.device | str = "cpu",
) -> Problem:
    """Draw the numbers of one problem."""
    random = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        values = torch.randn(*shape, generator=random, dtype=torch.float64)
        return values.to(device, dtype)

    q = normal(batch, heads, queries, d_k)
    k, v = normal(batch, kv_heads, keys, d_k), normal(batch, kv_heads, keys, d_v)
    mask, added = _mask(kind, batch, heads, queries, keys, random, dtype, device)
    return Problem(q, k, v, mask, added, kind)


@st.composite
def problems(
    draw: st.DrawFn,
    kinds: tuple[str, ...] = MASKS,
    dtypes: tuple[torch.dtype, ...] = (torch.float64, torch.float32, torch.bfloat16),
) -> dict[str, Any]:
    """Draw the arguments of `problem`, up to 7 of everything: sizes are equal or unequal.

    The tensors themselves are drawn in the test: beartype picks what it looks at by `random`,
    which hypothesis forbids in a strategy.
    """
    kv_heads = draw(st.integers(1, 3))
    keys = draw(st.integers(1, 7))
    return dict(
        kind=draw(st.sampled_from(kinds)),
        batch=draw(st.integers(1, 3)),
        heads=kv_heads * draw(st.integers(1, 3)),
        kv_heads=kv_heads,
        queries=draw(st.integers(1, keys)),
        keys=keys,
        d_k=draw(st.integers(1, 7)),
        d_v=draw(st.integers(1, 7)),
        dtype=draw(st.sampled_from(dtypes)),
        seed=draw(st.integers(0, 99)),
    )


def _mask(
    kind: str,
    batch: int,
    heads: int,
    queries: int,
    keys: int,
    random: torch.Generator,
    dtype: torch.dtype,
    device: torch.device | str,
) -> tuple[Mask | None, Array]:
    def bools(*shape: int) -> Tensor:
        return (torch.rand(shape, generator=random) < 0.5).to(device)

    lengths = torch.randint(0, keys + 1, (batch,), generator=random).tolist()
    ids = torch.randint(0, 3, (keys,), generator=random)
    triangle = reference.causal(queries, keys)
    match kind:
        case "causal":
            return Mask.causal(), triangle
        case "causal at the top left":
            return Mask.causal(offset=0), reference.causal(queries, keys, 0)
        case "window":
            return Mask.window(2, 1), reference.band(queries, keys, 2, 1)
        case "padding":
            return Mask.padding(lengths), reference.padded(lengths, keys)
        case "left padding":
            return Mask.padding(lengths, "left"), reference.padded(lengths, keys, "left")
        case "causal and padding":
            mask = Mask.causal() & Mask.padding(lengths)
            return mask, triangle + reference.padded(lengths, keys)
        case "documents":
            return Mask.documents(ids.to(device)), reference.documents(ids.tolist(), queries)
        case "allow by head":
            may = bools(batch, heads, queries, keys)
            return Mask.allow(may), reference.blocked(may.cpu())
        case "forbid":
            not_allowed = bools(queries, keys)
            return Mask.forbid(not_allowed), reference.blocked(~not_allowed.cpu())
        case "bias" | "causal and bias":
            shape = (1, heads, queries, keys)
            numbers = torch.randn(prod(shape), generator=random, dtype=torch.float64).view(shape)
            numbers = numbers.to(device, dtype)
            if kind == "bias":
                return Mask.bias(numbers), reference.array(numbers)
            return Mask.causal() & Mask.bias(numbers), triangle + reference.array(numbers)
        case "keys" | "causal or keys":
            visible = bools(batch, keys)
            open_keys = reference.blocked(visible.cpu())[:, None, None, :]
            if kind == "keys":
                return Mask.keys(visible), open_keys
            return Mask.causal() | Mask.keys(visible), np.maximum(triangle, open_keys)
    return None, np.zeros((1, 1, 1, 1))
