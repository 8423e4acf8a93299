"""What may be given and asked: arguments are checked before anything is computed."""

import math
from operator import index
from typing import SupportsIndex

import torch
from jaxtyping import Float
from torch import Tensor

from qkv.core import fused
from qkv.core.mask import Mask
from qkv.errors import ArgumentError, ShapeError
from qkv.weights.logits import Logits


def check_operands(q: object, k: object, mask: Mask | None, softcap: float | None) -> None:
    """Raise where queries, keys and a mask do not fit each other, or there are none of them."""
    q, k = check_real("q", q), check_real("k", k)
    fused.check(q, k, k, softcap)
    if q.numel() == 0 and 0 in (q.shape[-1], *q.shape[:-2]):
        raise ShapeError(
            f"q is {tuple(q.shape)}; wanted one example, one head and one value a query at least"
        )
    if mask is not None:
        fused.check_mask(mask, q, k)


def check_real(name: str, tensor: object) -> Tensor:
    """Return a tensor of real numbers, or say what it is instead."""
    if not isinstance(tensor, Tensor) or tensor.is_complex() or tensor.is_meta:
        got = tensor.dtype if isinstance(tensor, Tensor) else type(tensor).__name__
        got = "without numbers (meta)" if isinstance(tensor, Tensor) and tensor.is_meta else got
        raise ArgumentError(f"{name} is {got}; wanted a torch.Tensor of real numbers")
    return tensor


def check_scale(scale: object) -> float:
    """Return a scale that is a finite number."""
    if isinstance(scale, bool) or not isinstance(scale, int | float) or not math.isfinite(scale):
        raise ArgumentError(f"scale is {scale!r}; wanted a finite number")
    return float(scale)


def check_whole(name: str, number: object, low: int | None = None) -> int:
    """Return a whole number, from `low` on where that is given."""
    if isinstance(number, SupportsIndex) and not isinstance(number, bool | Tensor):
        whole = index(number)
        if low is None or whole >= low:
            return whole
    least = "" if low is None else f" from {low}"
    raise ArgumentError(f"{name} is {number!r}; wanted a whole number{least}")


def joined(sinks: Tensor, leading: torch.Size, logits: Logits) -> Float[Tensor, "batch heads rows"]:
    """Return ln Σ exp(sinks) of each query, the last axis 1 where it is the same for all.

    Raises:
        ShapeError: the sinks do not broadcast to (…, heads, queries, number).
    """
    sinks, queries = check_real("sinks", sinks), logits.shape[-2]
    spread = sinks[:, None, None] if sinks.dim() == 1 else sinks
    try:
        torch.broadcast_shapes(spread.shape[:-1], (*leading, queries))
        total = torch.logsumexp(spread.to(logits.dtype), -1)
        total = total.expand(*leading, total.shape[-1])
    except (RuntimeError, IndexError):
        raise ShapeError(
            f"sinks are {tuple(sinks.shape)}; wanted one number a head, "
            f"{tuple(leading[-1:])}, or axes that broadcast to {(*leading, queries)} and a number "
            f"of sinks"
        ) from None
    return total.reshape(*logits.shape[:2], -1)
