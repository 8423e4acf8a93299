"""FlexAttention: a mask and a change of the scores given as functions of single pairs.

    softmax(where(mask_mod(b, h, i, j), score_mod(s, b, h, i, j), −∞)) V       s = q_i · k_j · scale

Recorded are the functions and the tensors that they read; what they say of the pairs is worked out
when it is asked for, tile by tile where that is enough.
"""

import weakref
from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.fx import GraphModule

from qkv.recording.calls.held import Held
from qkv.recording.calls.operands import Operation
from qkv.recording.observing.kernels import Fused
from qkv.recording.observing.matching import Matcher
from qkv.recording.observing.operations import HANDLERS

BOUNDLESS = 1 << 30
"""The size of a block of pairs that says that there is no mask."""


class _Function:
    """A function of single pairs, and the tensors that it reads.

    Args:
        function: of (b, h, i, j, *read), or of a score before these.
        read: what else it was given.
        examples, heads: what b and h run over.
    """

    def __init__(
        self, function: Callable[..., Tensor], read: tuple[Any, ...], examples: range, heads: range
    ) -> None:
        """Work nothing out."""
        self.function, self.read = function, read
        self.examples, self.heads = examples, heads

    def of(self, scores: tuple[Tensor, ...], rows: range, columns: range) -> Tensor:
        """Call it for every pair of a tile, as PyTorch does."""
        from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex
        from torch.nn.attention.flex_attention import _vmap_for_bhqkv

        read = [x.tensor if isinstance(x, Held) else x for x in self.read]
        device = next((x.device for x in (*scores, *read) if isinstance(x, Tensor)), None)
        each = _vmap_for_bhqkv(self.function, prefix=(0,) * len(scores), suffix=(None,) * len(read))
        places = (
            torch.arange(run.start, run.stop, device=device)
            for run in (self.examples, self.heads, rows, columns)
        )
        with TransformGetItemToIndex():
            out: Tensor = each(*scores, *places, *read)
        return out


class ScoreMod(_Function):
    """What a model's function makes of scaled similarities, tile by tile."""

    def __call__(
        self, x: Float[Tensor, "batch heads rows columns"], rows: range, columns: range
    ) -> Float[Tensor, "batch heads rows columns"]:
        """Return what it makes of them."""
        return self.of((x,), rows, columns)

    def narrow(self, batch: slice, heads: slice) -> "ScoreMod":
        """Return the same for some examples and heads."""
        return ScoreMod(self.function, self.read, self.examples[batch], self.heads[heads])


class Closed(_Function):
    """Pairs that a model's function hides.

    Args:
        function, read, examples, heads: see above; b and h of size 1 where all are alike.
        queries, keys: what i and j run over.
    """

    def __init__(
        self,
        function: Callable[..., Tensor],
        read: tuple[Any, ...],
        examples: range,
        heads: range,
        queries: int,
        keys: int,
    ) -> None:
        """Work nothing out."""
        super().__init__(function, read, examples, heads)
        self.queries, self.keys = queries, keys

    def __call__(self) -> Bool[Tensor, "#batch #heads queries keys"]:
        """Return all of them."""
        return self.part(range(self.queries), range(self.keys))

    def part(self, rows: range, columns: range) -> Bool[Tensor, "#batch #heads rows columns"]:
        """Return those of a tile."""
        return ~self.of((), rows, columns)

    def narrow(self, batch: slice, heads: slice) -> "Closed":
        """Return the same for some examples and heads."""
        examples = self.examples[batch] if len(self.examples) > 1 else self.examples
        among = self.heads[heads] if len(self.heads) > 1 else self.heads
        return Closed(self.function, self.read, examples, among, self.queries, self.keys)


def _flex_attention(m: Matcher, args: Any, kwargs: Any, out: Any) -> None:
    """Args: q, k, v, score_mod, block mask, scale, options, what the two functions read."""
    place = m.wanted()
    if place is None:
        return
    q, k, v, score_mod, block_mask, scale = args[:6]
    read = [
        tuple(m.provenance.hold(x) if isinstance(x, Tensor) else x for x in given)
        for given in (args[7:9] if len(args) > 8 else ((), ()))
    ]
    steps, (batch, heads, queries, _) = list[Operation](), q.shape
    if not _changes_nothing(score_mod):
        change = ScoreMod(score_mod, read[0], range(batch), range(heads))
        steps.append(Operation("function", function=change))
    if block_mask[-2] < BOUNDLESS:
        examples, among = (range(n) for n in block_mask[2].shape[:2])
        closed = Closed(block_mask[-1], read[1], examples, among, queries, k.shape[-2])
        steps.append(Operation("fill", closed, float("-inf")))
    attention = Fused(
        "flex_attention",
        (q, *(x.expand(batch, -1, -1, -1) for x in (k, v))),
        out[0],
        m.provenance,
        scale=scale,
        steps=tuple(steps),
        cells=[x for given in read for x in given if isinstance(x, Held)],
    )
    attention.out.found = weakref.ref(attention)
    m.provenance.put(out[0], attention.out)
    m.found(attention, place)


def _changes_nothing(score_mod: Callable[..., Tensor]) -> bool:
    """Say whether a function gives back the score that it gets."""
    if not isinstance(score_mod, GraphModule):
        return getattr(score_mod, "__name__", "") == "_identity"
    nodes = list(score_mod.graph.nodes)
    return nodes[-1].args[0] is nodes[0]


HANDLERS["flex_attention"] = _flex_attention
