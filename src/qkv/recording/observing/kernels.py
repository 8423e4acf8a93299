"""Fused attention, by the names of its operations."""

import weakref
from collections.abc import Sequence
from functools import cached_property
from typing import Any

from torch import Tensor

from qkv.recording.calls.held import Held
from qkv.recording.calls.operands import Operands, Operation
from qkv.recording.observing.axes import Axes, Axis, UnclearError, axis, laid_out, resolved, unify
from qkv.recording.observing.layout import Laid, Projected
from qkv.recording.observing.matching import Matcher
from qkv.recording.observing.nodes import Node
from qkv.recording.observing.operations import HANDLERS, Handler, handles
from qkv.recording.observing.provenance import Provenance
from qkv.recording.observing.written import same_source


class Fused:
    """One call of a fused operation; lays out its operands when called.

    Args:
        name: the operation's name.
        operands: queries, keys, values, axes (batch, heads, tokens, width).
        out: its output.
        mask: True lets, or numbers that are added.
        causal, dropout, scale: as the operation got them.
        keep: holds what the attention needs.
        steps: what is done to the scaled similarities besides.
        cells: tensors that these steps read.
    """

    def __init__(
        self,
        name: str,
        operands: tuple[Tensor, Tensor, Tensor],
        out: Tensor,
        keep: Provenance,
        *,
        mask: Tensor | None = None,
        causal: bool = False,
        dropout: float = 0.0,
        scale: float | None = None,
        steps: tuple[Operation, ...] = (),
        cells: Sequence[Held] = (),
    ) -> None:
        """Hold the operands."""
        self.projected: Projected | None = None
        self._name, self._causal, self._dropout = name, causal, dropout
        self._steps = steps
        self._scale = operands[0].shape[-1] ** -0.5 if scale is None else scale
        q, *shared = operands
        self._operands = [_Operand(tensor, keep) for tensor in (q, *map(_once, shared))]
        self._output = keep.hold(out)
        self._mask = None if mask is None else keep.hold(mask)
        self._out = Node("output", out)
        self._same_source = same_source(*(operand.node for operand in self._operands[:2]))
        self.cells = [operand.held for operand in self._operands] + [self._output]
        self.cells += [*cells] if self._mask is None else [self._mask, *cells]

    @property
    def out(self) -> Node:
        """How the output was made."""
        return self._out

    def __call__(self) -> Operands:
        """Lay everything out."""
        q, k, v = (operand() for operand in self._operands)
        groups, output, mask = self._groups, self._output.tensor, self._mask
        rows = [] if groups is None else self._operands[0].node.axes
        if groups is not None:
            q = laid_out(q, rows, (*groups, rows[3]))
            output = laid_out(output, self._out.axes, (*groups, self._out.axes[3]))
        factor = self._operands[0].factor * self._operands[1].factor
        scores = [Operation("multiply", number=self._scale * factor)]
        if mask is not None:
            scores.append(_masked(mask, None if groups is None else (rows, groups, k.shape[-2])))
        if self._causal:
            scores.append(Operation("causal"))
        scores += self._steps
        return Operands(
            q=q,
            k=k,
            v=v,
            output=output,
            scores=tuple(scores),
            dropout=self._dropout,
            empty_is_zero=True,
            how=self._name,
            same_source=self._same_source,
            projection=self._projection,
        )

    def _projection(self) -> Tensor | None:
        if self.projected is None:
            return None
        _, heads, _, width = self._out.axes
        return self.projected.laid_out(heads if self._groups is None else self._groups[1], width)

    @cached_property
    def _groups(self) -> tuple[Axis, Axis, Axis] | None:
        """Batch, heads and queries where heads that share keys were folded into the rows."""
        node = self._operands[0].node
        try:
            batch, heads, rows, width = (resolved(factors) for factors in node.axes)
        except UnclearError:
            return None
        lineage = frozenset().union(*(factor.lineage for factor in width))
        folded = [factor for factor in rows if factor.lineage & lineage]
        alone = folded == rows and any(factor.lineage & lineage for factor in heads)
        if not folded or self._causal or self._steps or (len(folded) == len(rows) and not alone):
            return None
        for mine, theirs in zip(self._out.axes[:3], (batch, heads, rows), strict=True):
            unify(mine, theirs)
        return batch, heads + folded, [factor for factor in rows if factor not in folded]


class _Operand:
    """An operand of a fused operation, or what it was repeated or scaled from."""

    def __init__(self, tensor: Tensor, keep: Provenance) -> None:
        self.node = keep.node(tensor)
        self.factor, self._laid = 1.0, None
        origin, of_origin, factor = keep.origin(tensor, self.node)
        if origin is not tensor:
            laid = Laid(Held(origin), of_origin.axes, self.node.axes,
                        repeated=self.node.repeated, grouped=1)  # fmt: skip
            if _fits(laid, tensor):
                self._laid, self.factor = laid, factor
        self.held = Held(tensor) if self._laid is None else self._laid.held
        keep.guard(self.held)

    def __call__(self) -> Tensor:
        return self.held.tensor if self._laid is None else self._laid()


def _once(tensor: Tensor) -> Tensor:
    """Return keys or values that one head has and all repeat with that head alone."""
    return tensor[:, :1] if tensor.stride(1) == 0 else tensor


def _fits(laid: Laid, tensor: Tensor) -> bool:
    """Say whether an origin can stand for an operand: with fewer heads at most."""
    try:
        x = laid()
    except (UnclearError, RuntimeError):
        return False
    return (*x.shape[:1], *x.shape[2:]) == (*tensor.shape[:1], *tensor.shape[2:])


Folded = tuple[Axes, tuple[Axis, Axis, Axis], int]
"""Axes of the queries, the groups that they are laid out in, the number of keys."""


class _Masked:
    __slots__ = ("folded", "held")

    def __init__(self, held: Held, folded: Folded | None) -> None:
        self.held, self.folded = held, folded

    def __call__(self) -> Tensor:
        mask = self.held.tensor
        mask = mask[(None,) * (4 - mask.dim())]
        if self.folded is None:
            return mask
        axes, groups, keys = self.folded
        columns = axis(keys)
        return laid_out(mask, [*axes[:3], columns], (*groups, columns))


def _masked(held: Held, folded: Folded | None) -> Operation:
    if held.tensor.is_floating_point():
        return Operation("add", _Masked(held, folded), 1.0)
    return Operation("where", _Masked(held, folded), float("-inf"))


def _fused(name: str, mask_at: int | None, dropout_at: int, causal_at: int) -> None:
    """Register a fused operation: where its arguments stand, besides (q, k, v)."""

    def handler(m: Matcher, args: Any, kwargs: Any, out: Any) -> None:
        place = m.wanted()
        if place is None:
            return

        def given(at: int | None, keyword: str, default: Any) -> Any:
            return args[at] if at is not None and len(args) > at else kwargs.get(keyword, default)

        output = out if isinstance(out, Tensor) else out[0]
        attention = Fused(
            name,
            args[:3],
            output,
            m.provenance,
            mask=given(mask_at, "attn_mask" if mask_at is None else "attn_bias", None),
            causal=given(causal_at, "is_causal", False),
            dropout=given(dropout_at, "dropout_p", 0.0),
            scale=kwargs.get("scale"),
        )
        attention.out.found = weakref.ref(attention)
        m.provenance.put(output, attention.out)
        m.found(attention, place)

    handles(f"{name}.default")(handler)


_fused("_scaled_dot_product_flash_attention_for_cpu", None, 3, 4)
_fused("_scaled_dot_product_flash_attention", None, 3, 4)
_fused("_scaled_dot_product_efficient_attention", 3, 5, 6)
_fused("_scaled_dot_product_cudnn_attention", 3, 5, 6)
_fused("_scaled_dot_product_fused_attention_overrideable", 3, 4, 5)

__all__ = ["HANDLERS", "Fused", "Handler"]
