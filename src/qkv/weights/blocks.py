"""The weights in blocks of rows, exactly: for every device, every mask and every gradient.

A block is made once, in the processor's cache, and asked everything there. That takes less time
than the fused operation, which cannot answer more than one product. With gradients a block is
made again in the backward pass, so that memory grows with n · d there too.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from qkv.core.blocks import block_size, runs
from qkv.weights.logits import Logits, Scratch, Similarities, Strip

PAIRS = 1 << 19
"""Pairs of query and key in a block that is made of all heads at once."""

LEAST = -1e4
"""exp is 0 below it in every dtype, and 0 times it is 0, which 0 · −∞ is not."""

PROBES = 8
"""Rows that are asked how far they reach before the size of the blocks is chosen."""

Kept = Literal["weights", "logsumexp", "entropy"]
"""What a block holds; each also what stands before it."""


@dataclass(frozen=True, eq=False)
class Block:
    """Some rows of the weights of some heads, over the columns that they may look at.

    Attributes:
        part: columns outside of which everything is open, counted from the first of `columns`.
        open: whether a row may look at a key, over the columns of `part`.
        logsumexp: ln Σ exp(logits) of each row, sinks included; −∞ where it sees nothing.
        entropy: −Σ_j p_ij ln p_ij of each row.
    """

    rows: range
    columns: range
    examples: slice
    heads: slice
    weights: Float[Tensor, "examples heads rows columns"]
    part: slice
    open: Bool[Tensor, "examples heads rows part"] | None
    logsumexp: Float[Tensor, "examples heads rows"] | None = None
    entropy: Float[Tensor, "examples heads rows"] | None = None

    @property
    def visible(self) -> Int[Tensor, "examples heads rows"]:
        """How many keys a row may look at."""
        if self.open is None:
            shape, device = self.weights.shape[:3], self.weights.device
            return torch.full(shape, len(self.columns), device=device)
        return visible(self.open, len(self.columns))


def visible(is_open: Bool[Tensor, "examples heads rows part"], columns: int) -> Tensor:
    """Count the open ones of so many columns, once where several heads or rows have the same."""
    alike = [
        stride == 0 and n > 0 for stride, n in zip(is_open.stride(), is_open.shape, strict=True)
    ]
    once = is_open[tuple(slice(0, 1) if same else slice(None) for same in alike[:3])]
    return (once.sum(-1) + (columns - is_open.shape[-1])).expand(is_open.shape[:3])


def asked_for(answer: Tensor | None) -> Tensor:
    """Return what a block was told to keep."""
    assert answer is not None, "the block was made without it"
    return answer


Question = Callable[[Block], tuple[Tensor, ...]]
"""What is asked of a block: answers with the axes (examples, heads, rows or columns, …)."""


@dataclass(frozen=True, eq=False)
class Softmax:
    """softmax(logits), in blocks of rows; sinks take weight and give nothing.

    Attributes:
        sinks: ln Σ exp(sinks) of each query, the last axis 1 where it is the same for all.
    """

    logits: Logits
    sinks: Float[Tensor, "batch heads rows"] | None = None

    @property
    def trainable(self) -> bool:
        """Whether anything that the weights are made of may want gradients."""
        own: bool = getattr(self.logits, "requires_grad", True)
        return own or (self.sinks is not None and self.sinks.requires_grad)

    def trained(self, *others: Tensor) -> bool:
        """Whether gradients are wanted: then blocks are plain operations, and made again."""
        wanted = self.trainable or any(tensor.requires_grad for tensor in others)
        return torch.is_grad_enabled() and wanted

    def by_rows(
        self,
        question: Question,
        *others: Tensor,
        rows: range | None = None,
        keep: Kept = "weights",
    ) -> tuple[Tensor, ...]:
        """Ask each block and join the answers, which have the axes (batch, heads, rows, …)."""
        with in_full(self.logits.device):
            return self._by_rows(question, others, rows, keep)

    def _by_rows(
        self, question: Question, others: tuple[Tensor, ...], rows: range | None, keep: Kept
    ) -> tuple[Tensor, ...]:
        rows = range(self.logits.shape[-2]) if rows is None else rows
        if self.trained(*others):
            asked = [self._recomputed(run, question)[1] for run in self._runs(rows)]
            return tuple(torch.cat(parts, dim=2) for parts in zip(*asked, strict=True))
        found: list[Tensor] = []
        for b in self.blocks(rows, keep):
            answers = question(b)
            found = found or [self._empty(answer, len(rows)) for answer in answers]
            here = slice(b.rows.start - rows.start, b.rows.stop - rows.start)
            for whole, answer in zip(found, answers, strict=True):
                whole[b.examples, b.heads, here] = answer
        return tuple(found)

    def by_columns(self, question: Question, *others: Tensor) -> Tensor:
        """Ask each block and add the answers, which lie along its columns, the last axis."""
        with in_full(self.logits.device):
            return self._by_columns(question, others)

    def _by_columns(self, question: Question, others: tuple[Tensor, ...]) -> Tensor:
        keys, total = self.logits.shape[-1], None
        if self.trained(*others):
            for run in self._runs(range(self.logits.shape[-2])):
                columns, (part,) = self._recomputed(run, question)
                part = F.pad(part, (columns.start, keys - columns.stop))
                total = part if total is None else total + part
            assert total is not None
            return total
        for b in self.blocks(range(self.logits.shape[-2])):
            (part,) = question(b)
            if total is None:
                total = part.new_zeros(*self.logits.shape[:2], *part.shape[2:-1], keys)
            total[b.examples, b.heads, ..., b.columns.start : b.columns.stop] += part
        assert total is not None
        return total

    def blocks(self, rows: range, keep: Kept = "weights") -> Iterator[Block]:
        """Make the weights block by block, without gradients; each lasts until the next."""
        scratch, spare = (Scratch(self.logits.dtype, self.logits.device) for _ in range(2))
        logits = self.logits
        if isinstance(logits, Similarities):
            height, width = self._size(logits)
            # products with Kᵀ are faster where that is what lies row by row in memory
            logits = replace(logits, k=logits.k.mT.contiguous().mT)
            for run in _cut(rows, height):
                for strip in logits.strips(run, width, scratch):
                    yield self._block(run, strip, spare, keep)
            return
        for run in self._runs(rows):
            columns = logits.reach(run)
            tile = logits.tile(run, columns).detach()
            everything, part = slice(None), slice(0, len(columns))
            strip = Strip(columns, everything, everything, tile, part, tile > -torch.inf)
            yield self._block(run, strip, spare, keep)

    def _size(self, logits: Similarities) -> tuple[int, int]:
        """Rows of a block, and key/value heads: narrow bands get taller blocks."""
        queries = logits.shape[-2]
        places = {queries * at // PROBES for at in range(PROBES)} | {queries - 1}
        probes = (range(at, at + 1) for at in places if queries)
        widest = max((len(logits.reach(probe)) for probe in probes), default=1)
        groups = logits.q.shape[1] // logits.k.shape[1]
        return block_size(queries, widest, groups)

    def _runs(self, rows: range) -> Iterator[range]:
        batch, heads, _, keys = self.logits.shape
        return _cut(rows, max(1, PAIRS // max(1, batch * heads * keys)))

    def _empty(self, answer: Tensor, rows: int) -> Tensor:
        return answer.new_empty(*self.logits.shape[:2], rows, *answer.shape[3:])

    def _block(self, rows: range, strip: Strip, spare: Scratch, keep: Kept) -> Block:
        """Turn logits into weights, in place where nothing else is asked of them."""
        columns, examples, heads, logits, part, is_open = strip
        reaches: Tensor | None = None
        if is_open is not None:
            reaches = visible(is_open, len(columns)) > 0
        elif not len(columns):
            reaches = torch.zeros(logits.shape[:3], dtype=torch.bool, device=logits.device)
        weights, lse, entropy = logits, None, None
        if keep != "weights" or self.sinks is not None:
            highest = _highest(logits)
            weights = logits if keep != "entropy" else spare.take(*logits.shape)
        torch.softmax(logits, -1, out=weights)
        if reaches is not None and not reaches.all():
            weights.masked_fill_(~reaches[..., None], 0.0)  # rather than NaN
        if keep != "weights" or self.sinks is not None:
            # the weight of the highest logit is no small number: its logarithm is exact
            lse = highest - _highest(weights).log()
            if reaches is not None:
                lse = torch.where(reaches, lse, -torch.inf)
        if self.sinks is not None:
            assert lse is not None
            sinks = self._sinks_of(rows)[examples, heads]
            left = torch.sigmoid(lse - sinks).masked_fill(lse == -torch.inf, 0.0)
            weights.mul_(left[..., None])
            lse = torch.logaddexp(lse, sinks)
        if keep == "entropy":
            assert lse is not None
            if is_open is not None:
                logits.clamp_(min=torch.finfo(logits.dtype).min)
            inside = torch.mul(weights, logits, out=logits).sum(-1)
            entropy = self._entropy(weights, lse, inside)
        return Block(rows, columns, examples, heads, weights, part, is_open, lse, entropy)

    def _entropy(self, weights: Tensor, lse: Tensor, inside: Tensor) -> Tensor:
        """−Σ_j p_ij ln p_ij = lse Σ_j p_ij − Σ_j p_ij logit_ij"""
        lse = lse.masked_fill(lse == -torch.inf, 0.0)
        total = lse if self.sinks is None else lse * weights.sum(-1)
        return (total - inside).clamp(min=0.0)

    def _recomputed(self, rows: range, question: Question) -> tuple[range, tuple[Tensor, ...]]:
        columns = self.logits.reach(rows)

        def answer() -> tuple[Tensor, ...]:
            return question(self.plain_block(rows, columns))

        return columns, checkpoint(answer, use_reentrant=False, preserve_rng_state=False)

    def plain_block(self, rows: range, columns: range) -> Block:
        """exp(logits − lse) in plain operations, which carry gradients."""
        logits = self.logits.tile(rows, columns)
        sinks = None if self.sinks is None else self._sinks_of(rows)
        highest = _highest(logits.detach())
        if sinks is not None:
            highest = torch.maximum(highest, sinks.detach())
        highest = highest.masked_fill(highest == -torch.inf, 0.0)
        powers = torch.exp(logits - highest[..., None])
        total = powers.sum(-1) if sinks is None else powers.sum(-1) + torch.exp(sinks - highest)
        nothing = total == 0
        total = total.masked_fill(nothing, 1.0)
        lse = (total.log() + highest).masked_fill(nothing, -torch.inf)
        weights = powers / total[..., None]
        below = (logits - highest[..., None]).clamp(min=LEAST)
        above = torch.where(nothing, 0.0, lse - highest)
        entropy = (above * weights.sum(-1) - (weights * below).sum(-1)).clamp(min=0.0)
        everything, part, is_open = slice(None), slice(0, len(columns)), logits > -torch.inf
        return Block(rows, columns, everything, everything, weights, part, is_open, lse, entropy)

    def _sinks_of(self, rows: range) -> Tensor:
        assert self.sinks is not None
        return self.sinks if self.sinks.shape[-1] == 1 else self.sinks[..., rows.start : rows.stop]


def _cut(rows: range, height: int) -> Iterator[range]:
    """Cut rows into runs; no rows are one run, so that an answer has its axes."""
    if not rows:
        yield rows
    for run in runs(len(rows), height):
        yield range(rows.start + run.start, rows.start + run.stop)


def _highest(numbers: Tensor) -> Float[Tensor, "examples heads rows"]:
    if numbers.shape[-1] == 0:
        return numbers.new_full(numbers.shape[:-1], -torch.inf)
    return numbers.amax(-1)


def in_full(device: torch.device) -> AbstractContextManager[object]:
    """Compute in the dtypes that the operands have, under an autocast too."""
    if torch.is_autocast_enabled(device.type):
        return torch.autocast(device.type, enabled=False)
    return nullcontext()
