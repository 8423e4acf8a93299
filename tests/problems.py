"""Attention problems for hypothesis: sizes, dtypes and masks, with M built on its own by NumPy."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from torch import Tensor

from qkv.core.mask import Mask
from tests import reference
from tests.reference import Array

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
    mask, added = _KINDS[kind](_Numbers((batch, heads, queries, keys), random, q))
    return Problem(q, k, v, mask, added, kind)


@st.composite
def problems(
    draw: st.DrawFn,
    kinds: tuple[str, ...] | None = None,
    dtypes: tuple[torch.dtype, ...] = (torch.float64, torch.float32, torch.bfloat16),
) -> dict[str, Any]:
    """Draw the arguments of `problem`, up to 7 of everything: sizes are equal or unequal.

    The tensors themselves are drawn in the test: beartype picks what it looks at by `random`,
    which hypothesis forbids in a strategy.
    """
    kv_heads = draw(st.integers(1, 3))
    keys = draw(st.integers(1, 7))
    return {
        "kind": draw(st.sampled_from(kinds or MASKS)),
        "batch": draw(st.integers(1, 3)),
        "heads": kv_heads * draw(st.integers(1, 3)),
        "kv_heads": kv_heads,
        "queries": draw(st.integers(1, keys)),
        "keys": keys,
        "d_k": draw(st.integers(1, 7)),
        "d_v": draw(st.integers(1, 7)),
        "dtype": draw(st.sampled_from(dtypes)),
        "seed": draw(st.integers(0, 99)),
    }


class _Numbers:
    """What the masks of one problem are drawn from."""

    def __init__(
        self, sizes: tuple[int, int, int, int], random: torch.Generator, like: Tensor
    ) -> None:
        self.batch, self.heads, self.queries, self.keys = sizes
        self.random, self.like = random, like
        self.lengths = torch.randint(0, self.keys + 1, (self.batch,), generator=random).tolist()
        self.ids = torch.randint(0, 3, (self.keys,), generator=random)
        self.visible = self.bools(self.batch, self.keys)
        self.open_keys = reference.blocked(self.visible.cpu())[:, None, None, :]
        self.triangle = reference.causal(self.queries, self.keys)
        self.padded = reference.padded(self.lengths, self.keys)

    def bools(self, *shape: int) -> Tensor:
        return (torch.rand(shape, generator=self.random) < 0.5).to(self.like.device)

    def allowed(self) -> tuple[Mask, Array]:
        may_look = self.bools(self.batch, self.heads, self.queries, self.keys)
        return Mask.allow(may_look), reference.blocked(may_look.cpu())

    def forbidden(self) -> tuple[Mask, Array]:
        not_allowed = self.bools(self.queries, self.keys)
        return Mask.forbid(not_allowed), reference.blocked(~not_allowed.cpu())

    def biased(self) -> tuple[Mask, Array]:
        shape = (1, self.heads, self.queries, self.keys)
        numbers = torch.randn(shape, generator=self.random, dtype=torch.float64).to(self.like)
        return Mask.bias(numbers), reference.array(numbers)

    def by_distance(self) -> tuple[Mask, Array]:
        mask = Mask.alibi(self.heads, dtype=torch.float64)
        return mask, reference.alibi(self.heads, self.queries, self.keys)


def _none(n: _Numbers) -> tuple[None, Array]:
    return None, np.zeros((1, 1, 1, 1))


def _causal_and_bias(n: _Numbers) -> tuple[Mask, Array]:
    mask, added = n.biased()
    return Mask.causal() & mask, n.triangle + added


_KINDS: dict[str, Callable[[_Numbers], tuple[Mask | None, Array]]] = {
    "none": _none,
    "causal": lambda n: (Mask.causal(), n.triangle),
    "causal at the top left": lambda n: (
        Mask.causal(offset=0),
        reference.causal(n.queries, n.keys, 0),
    ),
    "window": lambda n: (Mask.window(2, 1), reference.band(n.queries, n.keys, 2, 1)),
    "padding": lambda n: (Mask.padding(n.lengths), n.padded),
    "left padding": lambda n: (
        Mask.padding(n.lengths, "left"),
        reference.padded(n.lengths, n.keys, "left"),
    ),
    "causal and padding": lambda n: (
        Mask.causal() & Mask.padding(n.lengths),
        n.triangle + n.padded,
    ),
    "keys": lambda n: (Mask.keys(n.visible), n.open_keys),
    "documents": lambda n: (
        Mask.documents(n.ids.to(n.like.device)),
        reference.documents(n.ids.tolist(), n.queries),
    ),
    "allow by head": _Numbers.allowed,
    "forbid": _Numbers.forbidden,
    "bias": _Numbers.biased,
    "causal and bias": _causal_and_bias,
    "alibi": _Numbers.by_distance,
    "causal and alibi": lambda n: (
        Mask.causal() & n.by_distance()[0],
        n.triangle + n.by_distance()[1],
    ),
    "causal or keys": lambda n: (
        Mask.causal() | Mask.keys(n.visible),
        np.maximum(n.triangle, n.open_keys),
    ),
}
MASKS = tuple(_KINDS)
