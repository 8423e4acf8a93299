"""The weights in blocks of rows, exactly: for every device, every mask and every gradient.

A block is made once, in the processor's cache, and asked everything there. That takes less time
than the fused operation, which cannot answer more than one product. With gradients a block is
made again in the backward pass, so that memory grows with n · d there too.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from qkv.core.blocks import block_size, runs
from qkv.weights.logits import Logits, Scratch, Similarities, Strip

PAIRS = 1 << 19
"""Pairs of query and key in a block that is made of all heads at once."""

LEAST = -1e4
"""exp is 0 below it in every dtype, and 0 times it is 0, which 0 · −∞ is not."""


@dataclass(frozen=True, eq=False)
class Block:
    """Some rows of the weights of some heads, over the columns that they may look at.

    Attributes:
        highest: m, the largest logit of each row (of its sinks too, where there is `lse`).
        below: logits − m, and LEAST where that is −∞; None where they were not asked to be kept.
        lse: ln Σ exp(logits), where it does not follow from m and the weights alone.
    """

    rows: range
    columns: range
    examples: slice
    heads: slice
    weights: Float[Tensor, "examples heads rows columns"]
    highest: Float[Tensor, "examples heads rows"]
    below: Float[Tensor, "examples heads rows columns"] | None = None
    lse: Float[Tensor, "examples heads rows"] | None = None

    @property
    def reaches(self) -> Bool[Tensor, "examples heads rows"]:
        """Whether a row may look at any key."""
        return self.highest > -torch.inf

    @property
    def logsumexp(self) -> Float[Tensor, "examples heads rows"]:
        """ln Σ exp(logits) of each row, sinks included; −∞ where it may look at nothing."""
        if self.lse is not None:
            return self.lse
        return torch.where(self.reaches, self.highest + _above(self.weights), -torch.inf)

    @property
    def entropy(self) -> Float[Tensor, "examples heads rows"]:
        """−Σ_j p_ij ln p_ij = Σ_j p_ij (m − logit_ij) + (lse − m) Σ_j p_ij

        Taken from m, nothing is lost where logits are large.
        """
        assert self.below is not None, "the block was asked for without its logits"
        if self.lse is None:
            rest = torch.where(self.reaches, _above(self.weights), 0.0)
        else:
            reaches = self.reaches & (self.lse > -torch.inf)
            above = torch.where(reaches, self.lse - self.highest, 0.0)
            rest = above * self.weights.sum(-1)
        spread: Tensor = torch.linalg.vecdot(self.weights, self.below)
        return (rest - spread).clamp(min=0.0)


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

    def trained(self, *others: Tensor) -> bool:
        """Whether gradients are wanted: then blocks are plain operations, and made again."""
        if not torch.is_grad_enabled():
            return False
        tensors = others if self.sinks is None else (*others, self.sinks)
        own: bool = getattr(self.logits, "requires_grad", True)
        return own or any(tensor.requires_grad for tensor in tensors)

    def by_rows(
        self,
        question: Question,
        *others: Tensor,
        rows: range | None = None,
        keep_logits: bool = False,
    ) -> tuple[Tensor, ...]:
        """Ask each block and join the answers, which have the axes (batch, heads, rows, …)."""
        rows = range(self.logits.shape[-2]) if rows is None else rows
        if self.trained(*others):
            asked = [self._recomputed(run, question)[1] for run in self._runs(rows)]
            return tuple(torch.cat(parts, dim=2) for parts in zip(*asked, strict=True))
        found: list[Tensor] = []
        for b in self.blocks(rows, keep_logits=keep_logits):
            answers = question(b)
            found = found or [self._empty(answer, len(rows)) for answer in answers]
            here = slice(b.rows.start - rows.start, b.rows.stop - rows.start)
            for whole, answer in zip(found, answers, strict=True):
                whole[b.examples, b.heads, here] = answer
        return tuple(found)

    def by_columns(self, question: Question, *others: Tensor) -> Tensor:
        """Ask each block and add the answers, which lie along its columns, the last axis."""
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

    def blocks(self, rows: range, *, keep_logits: bool = False) -> Iterator[Block]:
        """Make the weights block by block, without gradients; each lasts until the next."""
        scratch, spare = (Scratch(self.logits.dtype, self.logits.device) for _ in range(2))
        logits = self.logits
        if isinstance(logits, Similarities):
            height, width = self._size(logits)
            logits = replace(logits, k=logits.k.contiguous())
            for run in _cut(rows, height):
                for strip in logits.strips(run, width, scratch):
                    yield self._block(run, strip, spare if keep_logits else None)
            return
        for run in self._runs(rows):
            columns = logits.reach(run)
            strip = Strip(columns, slice(None), slice(None), logits.tile(run, columns).detach())
            yield self._block(run, strip, spare if keep_logits else None)

    def _size(self, logits: Similarities) -> tuple[int, int]:
        """Rows of a block, and key/value heads: narrow bands get taller blocks."""
        queries = logits.shape[-2]
        probes = (range(at, at + 1) for at in (queries // 2, queries - 1) if queries)
        widest = max((len(logits.reach(probe)) for probe in probes), default=1)
        groups = logits.q.shape[1] // logits.k.shape[1]
        return block_size(queries, widest, groups)

    def _runs(self, rows: range) -> Iterator[range]:
        batch, heads, _, keys = self.logits.shape
        return _cut(rows, max(1, PAIRS // max(1, batch * heads * keys)))

    def _empty(self, answer: Tensor, rows: int) -> Tensor:
        return answer.new_empty(*self.logits.shape[:2], rows, *answer.shape[3:])

    def _block(self, rows: range, strip: Strip, spare: Scratch | None) -> Block:
        """Turn logits into weights, in place; what lies below m goes to the spare memory."""
        columns, examples, heads, weights, is_open = strip
        highest, below, lse = _highest(weights), None, None
        reaches = highest > -torch.inf
        if spare is not None:
            m = highest.masked_fill(~reaches, 0.0)[..., None]
            below = torch.sub(weights, m, out=spare.take(*weights.shape))
            below = below if is_open else below.clamp_(min=LEAST)
        torch.softmax(weights if below is None else below, -1, out=weights)
        if not reaches.all():
            weights.masked_fill_(~reaches[..., None], 0.0)
        if self.sinks is not None:
            alone = torch.where(reaches, highest + _above(weights), -torch.inf)
            sinks = self._sinks_of(rows)[examples, heads]
            lse = torch.logaddexp(alone, sinks)
            weights.mul_(torch.sigmoid(alone - sinks)[..., None])  # the share that is left
        return Block(rows, columns, examples, heads, weights, highest, below, lse)

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
        everything = slice(None)
        return Block(rows, columns, everything, everything, weights, highest, below, lse)

    def _sinks_of(self, rows: range) -> Tensor:
        assert self.sinks is not None
        return self.sinks if self.sinks.shape[-1] == 1 else self.sinks[..., rows.start : rows.stop]


def _cut(rows: range, height: int) -> Iterator[range]:
    """Cut rows into runs; no rows are one run, so that an answer has its axes."""
    if not rows:
        yield rows
    for run in runs(len(rows), height):
        yield range(rows.start + run.start, rows.start + run.stop)


def _highest(logits: Tensor) -> Float[Tensor, "examples heads rows"]:
    if logits.shape[-1] == 0:
        return logits.new_full(logits.shape[:-1], -torch.inf)
    return logits.amax(-1)


def _above(weights: Tensor) -> Float[Tensor, "examples heads rows"]:
    """lse − m = −ln p where the logit is m: exact, as p is no small number there."""
    if weights.shape[-1] == 0:
        return weights.new_zeros(weights.shape[:-1])
    return -weights.amax(-1).log()
