"""Calls made by hand: a prompt and the steps after it, over every kind of cache."""

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from qkv.recording.calls.call import Call
from qkv.recording.calls.operands import Operands, Operation
from qkv.recording.calls.place import Place

HERE = Place("decoder.attention", "model.py", 7)


class Sequence(NamedTuple):
    """Queries, keys and values of a whole text, in float64."""

    q: Tensor
    k: Tensor
    v: Tensor


def sequence(tokens: int, *, batch: int = 2, heads: int = 4, kv_heads: int = 2) -> Sequence:
    """Draw one."""
    sizes = ((heads, 5), (kv_heads, 5), (kv_heads, 3))
    return Sequence(*(torch.randn(batch, n, tokens, d, dtype=torch.float64) for n, d in sizes))


def weights(q: Tensor, k: Tensor, open_: Tensor) -> Tensor:
    """softmax(Q Kᵀ / 2 + M), written out."""
    logits = q @ k.repeat_interleave(q.shape[1] // k.shape[1], 1).mT / 2
    return logits.masked_fill(~open_, -torch.inf).softmax(-1)


def attended(q: Tensor, k: Tensor, v: Tensor, open_: Tensor) -> Tensor:
    """softmax(Q Kᵀ / 2 + M) V, written out."""
    return weights(q, k, open_) @ v.repeat_interleave(q.shape[1] // v.shape[1], 1)


def call(
    q: Tensor, k: Tensor, v: Tensor, open_: Tensor, run: int, *mask: Operation, zero: bool = True
) -> Call:
    """One call over the keys so far; `mask` says what was done besides scaling."""
    scores = (Operation("multiply", number=0.5), *mask)
    output = attended(q, k, v, open_)
    operands = Operands(q, k, v, output, scores, empty_is_zero=zero, how="by hand")
    return Call(HERE, run, lambda: operands)


def triangle(queries: int, keys: int) -> Tensor:
    """True where a query may look, the last query at the last key."""
    return torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries)


def steps(length: int, prompt: int, at_once: int = 1) -> Iterator[range]:
    """The rows of a prompt, then those of each step."""
    yield range(prompt)
    for start in range(prompt, length, at_once):
        yield range(start, min(length, start + at_once))


def dynamic(whole: Sequence, prompt: int, at_once: int = 1) -> list[Call]:
    """Keys are appended: each step has those of all tokens so far, in new memory."""
    calls = []
    for run, rows in enumerate(steps(whole.q.shape[-2], prompt, at_once)):
        q = whole.q[..., rows.start : rows.stop, :]
        k, v = (x[..., : rows.stop, :].clone() for x in (whole.k, whole.v))
        open_ = triangle(len(rows), rows.stop)
        causal = [Operation("causal", number=float(rows.start))] if len(rows) > 1 else []
        calls.append(call(q, k, v, open_, run, *causal))
    return calls


def static(whole: Sequence, prompt: int, size: int) -> list[Call]:
    """Keys are written into a cache of constant size, whose other rows are hidden."""
    calls = []
    k, v = (torch.zeros(*x.shape[:2], size, x.shape[3], dtype=x.dtype) for x in (whole.k, whole.v))
    for run, rows in enumerate(steps(whole.q.shape[-2], prompt)):
        k, v = k.clone(), v.clone()
        written = slice(rows.start, rows.stop)
        k[..., written, :], v[..., written, :] = whole.k[..., written, :], whole.v[..., written, :]
        open_ = torch.ones(len(rows), size, dtype=torch.bool).tril(rows.start)
        hidden = Operation("fill", partial(_four, ~open_), -torch.inf)
        calls.append(call(whole.q[..., written, :], k, v, open_, run, hidden))
    return calls


def windowed(whole: Sequence, prompt: int, window: int) -> list[Call]:
    """Keys further back than the window are dropped from the cache."""
    calls = []
    for run, rows in enumerate(steps(whole.q.shape[-2], prompt)):
        first = max(0, rows.start - window + 1)
        k, v = (x[..., first : rows.stop, :].clone() for x in (whole.k, whole.v))
        i, j = torch.arange(rows.start, rows.stop)[:, None], torch.arange(first, rows.stop)
        open_ = (j <= i) & (j > i - window)
        hidden = Operation("fill", partial(_four, ~open_), -torch.inf)
        mask = [] if bool(open_.all()) else [hidden]
        calls.append(call(whole.q[..., rows.start : rows.stop, :], k, v, open_, run, *mask))
    return calls


def beams(whole: Sequence, prompt: int, parents: dict[int, list[int]]) -> list[Call]:
    """As `dynamic`, but before some steps the beams go on from other ones."""
    order = torch.arange(len(whole.k))
    k, v = (x[..., :0, :] for x in (whole.k, whole.v))
    calls = []
    for run, rows in enumerate(steps(whole.q.shape[-2], prompt)):
        order = torch.tensor(parents.get(run, order.tolist()))
        new = slice(rows.start, rows.stop)
        k = torch.cat((k[order], whole.k[..., new, :]), -2)
        v = torch.cat((v[order], whole.v[..., new, :]), -2)
        order = torch.arange(len(whole.k))
        open_ = triangle(len(rows), rows.stop)
        calls.append(call(whole.q[..., new, :], k, v, open_, run))
    return calls


def _four(mask: Tensor) -> Tensor:
    return mask[None, None]
