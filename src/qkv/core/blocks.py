"""The same attention in blocks: for what no fused kernel takes, and where blocks are faster.

A block is small enough for the processor's cache, so memory grows with n · d, not with n × n.
"""

from collections.abc import Iterator
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from qkv.core.mask import Mask
from qkv.core.mask_parts import Tile, as_bias
from qkv.core.product import BFLOAT16, learns

ROWS = 512
"""Rows of a block under the fused kernel, and the step in which closed columns are skipped."""

PAIRS = 1 << 19
"""Pairs of query and key that a thread works on at a time: 1 MB in bfloat16, in its cache."""

TALL = 1 << 19
"""Pairs of one head in a block at most, from 64 rows on: products of many rows are faster."""


def attention(
    q: Float[Tensor, "batch heads queries d_k"],
    k: Float[Tensor, "batch kv_heads keys d_k"],
    v: Float[Tensor, "batch kv_heads keys d_v"],
    mask: Mask | None,
    batch: torch.Size,
    scale: float,
    softcap: float | None,
    dropout: float,
) -> Float[Tensor, "batch heads queries d_v"]:
    """softmax(cap(Q Kᵀ · scale) + M) V, explicitly; with gradients each block is recomputed."""
    trained = mask is not None and mask.trainable
    if (trained and torch.is_grad_enabled()) or learns(q, k, v):
        return _rows_recomputed(q, k, v, mask, batch, scale, softcap, dropout)
    groups = q.shape[1] // k.shape[1]
    q = torch.mul(q, scale, out=q.new_empty(q.shape))
    if mask is None and softcap is None and not dropout and groups == 1:
        return _open(q, k, v)
    q = q.unflatten(1, (k.shape[1], groups))
    k, v = k.contiguous(), v.contiguous()  # as q is now: a block's rows lie side by side
    out = q.new_empty(q.shape[0], q.shape[3], k.shape[1], groups, v.shape[-1])
    out = out.permute(0, 2, 3, 1, 4)  # tokens before heads in memory: what follows joins heads
    height, width = block_size(q.shape[3], k.shape[-2], groups)
    for rows in runs(q.shape[3], height):
        columns, tile = reach(mask, rows, q.flatten(1, 2), k, batch)
        tile = _per_group(tile, q)
        r, c = slice(rows.start, rows.stop), slice(columns.start, columns.stop)
        for e, h in portions(q.shape[0], k.shape[1], width):
            part = tile if isinstance(tile, bool) else tile[e, h]
            operands = (q[e, h, :, r], k[e, h, c], v[e, h, c], part)
            out[e, h, :, r] = _block(*operands, softcap, dropout)
    return out.flatten(1, 2)


def _open(
    q: Float[Tensor, "batch heads queries d_k"],
    k: Float[Tensor, "batch heads keys d_k"],
    v: Float[Tensor, "batch heads keys d_v"],
) -> Float[Tensor, "batch heads queries d_v"]:
    """softmax(Q Kᵀ) V where all is open, the queries scaled already: in the fewest calls."""
    out = q.new_empty(*q.shape[:-1], v.shape[-1])
    q3, k3, v3, out3 = (tensor.flatten(0, 1) for tensor in (q, k, v, out))
    height, width = block_size(q.shape[-2], k.shape[-2], 1)
    width = _aligned(width, q.shape[1])
    scratch = q.new_empty(min(width, len(q3)), height, k.shape[-2])  # fresh pages are slow
    for heads in (slice(run.start, run.stop) for run in runs(len(q3), width)):
        keys, values = k3[heads].mT, v3[heads]
        for rows in (slice(run.start, run.stop) for run in runs(q.shape[-2], height)):
            block = q3[heads, rows]
            whole = block.shape[:2] == scratch.shape[:2]
            room = scratch if whole else q.new_empty(*block.shape[:2], k.shape[-2])
            scores = torch.bmm(block, keys, out=room)
            weights = torch.softmax(scores, -1, out=scores)  # in place, as PyTorch's own path does
            torch.bmm(weights, values, out=out3[heads, rows])
    return out


def _aligned(width: int, heads: int) -> int:
    """Return at most so many heads, such that a run of them is whole examples or lies in one."""
    if width >= heads:
        return width - width % heads
    return max(part for part in range(1, width + 1) if heads % part == 0)


def block_size(queries: int, keys: int, groups: int) -> tuple[int, int]:
    """Rows, and key/value heads, of a block: every thread gets a head, and its pairs its cache."""
    height = max(1, min(queries, ROWS, max(64, TALL // max(1, keys))))
    pairs = height * max(1, keys) * groups
    threads = 1 if torch.compiler.is_compiling() else torch.get_num_threads()
    return height, max(1, threads // groups, threads * PAIRS // pairs)


def portions(examples: int, heads: int, width: int) -> Iterator[tuple[slice, slice]]:
    """Cut into runs of whole examples where several fit, of heads of one example where not."""
    for e in runs(examples, max(1, width // max(1, heads))):
        for h in runs(heads, width):
            yield slice(e.start, e.stop), slice(h.start, h.stop)


def _rows_recomputed(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Mask | None,
    batch: torch.Size,
    scale: float,
    softcap: float | None,
    dropout: float,
) -> Tensor:
    height = max(1, TALL // max(1, q.shape[0] * q.shape[1] * k.shape[-2]))
    grouped = (q * scale).unflatten(1, (k.shape[1], -1))
    parts = []
    for rows in runs(q.shape[-2], height):
        columns, tile = reach(mask, rows, q, k, batch)
        r, c = slice(rows.start, rows.stop), slice(columns.start, columns.stop)
        operands = (grouped[..., r, :], k[:, :, c], v[:, :, c], _per_group(tile, grouped))
        parts.append(checkpoint(_block, *operands, softcap, dropout, use_reentrant=False))
    return torch.cat(parts, dim=-2).flatten(1, 2) if parts else q @ k.mT @ v  # no queries


def _block(
    q: Float[Tensor, "batch kv_heads groups rows d_k"],
    k: Float[Tensor, "batch kv_heads columns d_k"],
    v: Float[Tensor, "batch kv_heads columns d_v"],
    tile: Tile,
    softcap: float | None,
    dropout: float,
) -> Float[Tensor, "batch kv_heads groups rows d_v"]:
    """softmax(cap(Q Kᵀ) + M) V, the queries scaled already; heads of a group share one product."""
    shape = q.shape[:-1]
    scaled = torch.bmm(q.flatten(2, 3).flatten(0, 1), k.flatten(0, 1).mT)
    if softcap is not None:
        scaled = softcap * torch.tanh(scaled / softcap)
    if tile is False:  # as a tensor: everything stays in the graph, with gradients of 0
        tile = torch.zeros(1, 1, dtype=torch.bool, device=q.device)
    if tile is True:
        weights = torch.softmax(scaled, -1)
    else:
        masked = scaled.view(*shape, k.shape[-2]) + as_bias(tile, scaled.dtype)  # + M
        nothing = (masked == -torch.inf).all(-1, keepdim=True)
        weights = torch.softmax(masked.masked_fill(nothing, 0.0), -1).masked_fill(nothing, 0.0)
        weights = weights.view(scaled.shape)
    weights = torch.dropout(weights, dropout, dropout > 0)
    return torch.bmm(weights, v.flatten(0, 1)).view(*shape, v.shape[-1])


def faster(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether blocks beat the fused kernel: bfloat16 inference on a CPU, from 128 tokens on.

    Where the processor has products of bfloat16 the kernel still multiplies no faster than in
    float32, plain products up to three times.
    As in PyTorch's unfused attention the similarities are rounded to bfloat16.
    """
    return (
        q.dtype == torch.bfloat16
        and BFLOAT16
        and q.device.type == "cpu"
        and q.shape[-2] * k.shape[-2] >= 128 * 128
        and not torch.compiler.is_compiling()
        and not learns(q, k, v)
    )


def reach(
    mask: Mask | None, rows: range, q: Tensor, k: Tensor, batch: torch.Size
) -> tuple[range, Tile]:
    """Return the columns that some of these rows may look at, and the mask over them."""
    queries, keys = q.shape[-2], k.shape[-2]
    if mask is None:
        return range(keys), True
    tile = partial(mask.tile, queries=queries, keys=keys, device=q.device)
    ahead = [columns for columns in runs(keys, ROWS) if tile(rows, columns) is not False]
    if not ahead:
        return range(min(1, keys)), False
    columns = range(ahead[0].start, ahead[-1].stop)
    return columns, four_axes(tile(rows, columns), batch)


def tile_of(mask: Mask, q: Tensor, k: Tensor, batch: torch.Size) -> Tile:
    """Return the whole mask for these queries and keys, with four axes at most."""
    queries, keys = q.shape[-2], k.shape[-2]
    tile = mask.tile(range(queries), range(keys), queries=queries, keys=keys, device=q.device)
    return four_axes(tile, batch)


def runs(size: int, step: int) -> Iterator[range]:
    """Cut an axis into runs of at most `step`."""
    for start in range(0, size, step):
        yield range(start, min(size, start + step))


def four_axes(tile: Tile, batch: torch.Size) -> Tile:
    """Flatten the batch axes of a mask as those of the queries are flattened."""
    if isinstance(tile, bool) or tile.dim() <= 2:
        return tile
    wanted = max(1, len(batch)) + 3
    if tile.dim() > wanted:  # what stands further left has been checked to be 1
        tile = tile.flatten(0, tile.dim() - wanted)
    if len(batch) <= 1:
        return tile
    return tile.expand(*batch, *tile.shape[-3:]).flatten(0, -4)


def _per_group(tile: Tile, q: Tensor) -> Tile:
    """Give a mask the axes (batch, kv_heads, heads of each, rows, columns), without a copy."""
    if isinstance(tile, bool):
        return tile
    batch, kv_heads, groups = q.shape[:3]
    return tile.expand(batch, kv_heads * groups, *tile.shape[-2:]).reshape(
        batch, kv_heads, groups, *tile.shape[-2:]
    )
