"""`attention`: softmax(Q Kᵀ / √d_k + M) V, fused wherever PyTorch has a kernel for it."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from qkv.core import blocks, short
from qkv.core.mask import Mask, wanted
from qkv.core.mask_parts import Tile, as_bias
from qkv.errors import ArgumentError, MaskError, ShapeError

WHOLE = 1 << 22
"""Up to so many pairs of query and key a mask is handed to the kernel as one tensor."""


def attention(
    q: Float[Tensor, "*batch_heads queries d_k"],
    k: Float[Tensor, "*batch_kv_heads keys d_k"],
    v: Float[Tensor, "*batch_kv_heads keys d_v"],
    mask: Mask | None = None,
    *,
    scale: float | None = None,
    softcap: float | None = None,
    dropout: float = 0.0,
) -> Float[Tensor, "*batch_heads queries d_v"]:
    """softmax(Q Kᵀ / √d_k + M) V        Vaswani et al. 2017, equation 1.

    Runs PyTorch's fused kernel, so that similarities never stand as n × n, unless `dropout` is
    above 0 on a CPU, or a short text trains there in bfloat16. A mask over pairs is handed over
    whole up to 2048 × 2048 and row by row beyond. A soft cap, a trained bias and bfloat16 inference
    on a CPU run in blocks of rows.

    Args:
        q: queries; axes may be missing on the left down to (queries, d_k).
        k: keys; each of the kv_heads serves heads / kv_heads heads in a row (0 0 1 1).
        v: values.
        mask: who may look at whom. A query that may look at nothing gives 0; what padding
            hides has no influence, NaN included.
        scale: by default 1 / √d_k.
        softcap: c · tanh(scaled / c) before the mask is added (Gemma 2, section 2).
        dropout: probability that a weight is dropped; the caller passes 0 outside training.

    Returns:
        In the dtype of q, which is also that of k and v.

    Raises:
        ShapeError: axes do not fit each other.
        MaskError: the mask is no `Mask`, or does not fit.
        ArgumentError: dtypes differ, or a number is out of its range.
    """
    check(q, k, v, softcap, dropout)
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    batch = q.shape[:-3]
    q4, k4, v4 = (q, k, v) if q.dim() == 4 else map(four_axes, (q, k, v))
    if mask is not None:
        check_mask(mask, q, k)
    parts = _parts(mask, q4, k4, batch)
    k4, v4 = without_hidden(k4, v4, parts.visible)
    if softcap is not None or (mask and mask.trainable) or blocks.faster(q4, k4, v4):
        out = blocks.attention(q4, k4, v4, mask, batch, scale, softcap, dropout)
    elif not dropout and _simple(parts, q, k) and short.faster(q4, k4, v4):
        out = short.attention(q4, k4, v4, scale, parts.triangle)
    else:
        out = _fused(q4, k4, v4, mask, parts, batch, scale, dropout)
    return out if q.dim() == 4 else out.reshape(*q.shape[:-1], v.shape[-1])


class _Parts(NamedTuple):
    """A mask as the kernel sees it: the visible keys, whether a triangle follows, the rest."""

    visible: Tile
    triangle: bool
    rest: Mask | None


def _parts(mask: Mask | None, q: Tensor, k: Tensor, batch: torch.Size) -> _Parts:
    if mask is None:
        return _Parts(True, triangle=False, rest=None)
    hiding, triangle, rest = mask.split(q.shape[-2], k.shape[-2])
    visible = True if hiding is None else blocks.tile_of(hiding, q, k, batch)
    return _Parts(visible, triangle, rest)


def _simple(parts: _Parts, q: Tensor, k: Tensor) -> bool:
    """Whether all is open, or all but a triangle over as many keys as queries."""
    visible, triangle, rest = parts
    return visible is True and rest is None and (not triangle or q.shape[-2] == k.shape[-2])


def _fused(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Mask | None,
    parts: _Parts,
    batch: torch.Size,
    scale: float,
    dropout: float,
) -> Tensor:
    visible, triangle, rest = parts
    if mask is None or (rest is None and (visible is True or _takes_both(q, triangle, dropout))):
        return _kernel(q, k, v, visible, triangle, scale, dropout)
    queries, keys = q.shape[-2], k.shape[-2]
    if queries * keys <= WHOLE or dropout:
        return _kernel(q, k, v, blocks.tile_of(mask, q, k, batch), False, scale, dropout)
    outputs = []
    for rows in blocks.runs(queries, blocks.ROWS):
        columns, tile = blocks.reach(mask, rows, q, k, batch)
        q_, k_, v_ = q[:, :, _cut(rows)], k[:, :, _cut(columns)], v[:, :, _cut(columns)]
        outputs.append(_kernel(q_, k_, v_, tile, False, scale, dropout))
    return torch.cat(outputs, dim=-2)


def _kernel(
    q: Tensor, k: Tensor, v: Tensor, tile: Tile, triangle: bool, scale: float, dropout: float
) -> Tensor:
    """One fused call; widths are padded to be equal, or PyTorch would form n × n."""
    d_k, d_v = q.shape[-1], v.shape[-1]
    if triangle and scale <= 0:  # the kernel scales the −∞ of its triangle, too: NaN, or +∞
        q, scale = q * scale, 1.0
    if q.shape[1] != k.shape[1] and q.shape[2] == 1 and not triangle and _same_for_all(tile):
        # While text is written: the heads of a group become queries of one head, so that its
        # keys are read once instead of once a head.
        rows = q.reshape(q.shape[0], k.shape[1], q.shape[1] // k.shape[1], d_k)
        return _kernel(rows, k, v, tile, False, scale, dropout).reshape(*q.shape[:3], d_v)
    if d_v < d_k:
        v = F.pad(v, (0, d_k - d_v))
    elif d_k < d_v:
        q, k = F.pad(q, (0, d_v - d_k)), F.pad(k, (0, d_v - d_k))
    allowed = torch.full((1, 1), False, device=q.device) if tile is False else tile
    grouped = q.shape[1] != k.shape[1]
    if triangle and isinstance(allowed, Tensor):
        added = as_bias(allowed, q.dtype)
        out: Tensor = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            q, k, v, 0.0, True, attn_mask=added, scale=scale
        )[0]
    else:
        if isinstance(allowed, Tensor) and allowed.is_floating_point():
            allowed = allowed.to(q.dtype)
        out = F.scaled_dot_product_attention(
            q, k, v, None if allowed is True else allowed, dropout, triangle,
            scale=scale, enable_gqa=grouped,
        )  # fmt: skip
    return out[..., :d_v] if d_v < d_k else out


def _same_for_all(tile: Tile) -> bool:
    """Whether a mask says the same for every head."""
    return isinstance(tile, bool) or tile.dim() < 3 or tile.shape[-3] == 1


def _takes_both(q: Tensor, triangle: bool, dropout: float) -> bool:
    """Whether the kernel takes a mask over keys; beside a triangle only the CPU's own does."""
    own = hasattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu")
    plain = dropout == 0 and q.device.type == "cpu" and not torch.compiler.is_compiling()
    return not triangle or (own and plain)


def without_hidden(k: Tensor, v: Tensor, visible: Tile) -> tuple[Tensor, Tensor]:
    """Put 0 where keys are hidden from every query: 0 · NaN would be NaN."""
    if visible is True:
        return k, v
    if visible is False:
        visible = torch.zeros(1, 1, dtype=torch.bool, device=k.device)
    hidden = ~visible.mT
    return k.masked_fill(hidden, 0.0), v.masked_fill(hidden, 0.0)


def four_axes(tensor: Tensor) -> Tensor:
    """Give q, k or v the axes (batch, heads, tokens, values)."""
    if tensor.dim() == 4:
        return tensor
    if tensor.dim() < 4:
        return tensor[(None,) * (4 - tensor.dim())]
    return tensor.flatten(0, -4)


def _cut(run: range) -> slice:
    return slice(run.start, run.stop)


def check(
    q: Tensor, k: Tensor, v: Tensor, softcap: float | None = None, dropout: float = 0.0
) -> None:
    """Raise where q, k and v do not fit each other, or a number is out of its range."""
    if not q.dtype == k.dtype == v.dtype or not q.is_floating_point():
        each = {"q": q, "k": k} if v is k else {"q": q, "k": k, "v": v}
        said = " and ".join(f"{name} is {tensor.dtype}" for name, tensor in each.items())
        raise ArgumentError(f"{said}; wanted one floating dtype")
    if not q.dim() == k.dim() == v.dim() >= 2:
        raise _misfit(q, k, v, "wanted as many axes for each, (…, heads, tokens, values)")
    if q.shape[-1] != k.shape[-1]:
        raise _misfit(q, k, v, f"d_k of queries and keys differ, {q.shape[-1]} ≠ {k.shape[-1]}")
    if k.shape[-2] != v.shape[-2]:
        raise _misfit(q, k, v, f"keys and values differ in number, {k.shape[-2]} ≠ {v.shape[-2]}")
    if q.shape[:-3] != k.shape[:-3] or k.shape[:-2] != v.shape[:-2]:
        raise _misfit(q, k, v, "batch axes (and the heads of keys and values) have to be equal")
    if q.dim() > 2 and (k.shape[-3] == 0 or q.shape[-3] % k.shape[-3]):
        raise _misfit(q, k, v, f"{q.shape[-3]} heads cannot share {k.shape[-3]} key/value heads")
    if softcap is not None and not softcap > 0:
        raise ArgumentError(f"softcap is {softcap}; wanted a number above 0, or None")
    if not 0 <= dropout < 1:
        raise ArgumentError(f"dropout is {dropout}; wanted a probability from 0 to below 1")


def _misfit(q: Tensor, k: Tensor, v: Tensor, why: str) -> ShapeError:
    values = "" if v is k else f", v is {tuple(v.shape)}"  # of weights alone there are none
    return ShapeError(f"q is {tuple(q.shape)}, k is {tuple(k.shape)}{values}: {why}")


def check_mask(mask: object, q: Tensor, k: Tensor) -> None:
    """Raise where it is no `Mask`, or has other axes than the similarities of q and k."""
    mask = wanted("mask", mask)
    mask.check(q.shape[-2], k.shape[-2])
    target = q.shape[:-2]
    for shape in mask.leading_axes:
        aligned = target[max(0, len(target) - len(shape)) :]
        extra = shape[: len(shape) - len(aligned)]
        if any(n != 1 for n in extra) or any(
            n not in (1, m) for n, m in zip(shape[len(extra) :], aligned, strict=True)
        ):
            raise MaskError(
                f"mask has the axes {tuple(shape)} before queries and keys, similarities have "
                f"{tuple(target)}: batch or heads differ"
            )
