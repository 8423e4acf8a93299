"""Attention written out in plain operations: of what a softmax and its products were made."""

from torch import Tensor

from qkv.recording.calls.held import Held
from qkv.recording.calls.operands import Operands, Operation
from qkv.recording.observing.axes import Axis, Factor, UnclearError, axis, pairs, resolved
from qkv.recording.observing.layout import Changed, Laid, Projected, roles
from qkv.recording.observing.nodes import Cell, Node, Product, Step
from qkv.recording.observing.provenance import Provenance


class Softmax:
    """A softmax: the way that led to it from a product, or why there is none.

    Attributes:
        input: what it was applied to, without sinks.
        dim: the axis that it runs over.
        steps: what was done to the similarities, in order, with the node of each.
        first: the product, and its operands.
        sinks: what was appended before it.
        empty_is_zero: whether rows without a key give 0.
        reason: why it belongs to no attention.
    """

    def __init__(self, node: Node, dim: int, empty_is_zero: bool) -> None:
        """Nothing is traced yet."""
        self.input = node
        self.dim = dim
        self.empty_is_zero = empty_is_zero
        self.reason = ""
        self.steps: list[tuple[Step, Node]] = []
        self.sinks: Node | None = None
        self.first: Node | None = None
        self.operands: tuple[Held, Held] | None = None


class WrittenOut:
    """An attention between two products; lays out its operands when called.

    Args:
        softmax: between them, its way traced.
        second: the second product.
        weights: the second product's operand that the softmax gave.
        values, out: the second product's other operand, and its result.
        keep: holds what the attention needs.

    Attributes:
        cells: every tensor that is held.
        projected: the product of the output with a parameter, once it was seen.

    Raises:
        UnclearError: it is no attention, and why.
    """

    def __init__(
        self,
        softmax: Softmax,
        second: Node,
        weights: Node,
        values: Tensor,
        out: Tensor,
        keep: Provenance,
    ) -> None:
        """Restore the axes, and hold the operands."""
        if softmax.first is None or softmax.first.product is None or second.product is None:
            raise UnclearError("its input does not come from a product")
        self.projected: Projected | None = None
        self.cells: list[Held] = []
        self._keep = keep
        second.axes  # noqa: B018  found now: it makes the keys of both products one
        self._by_left = weights is second.parents[0]
        self._roles, by_rows = roles(softmax.input, softmax.dim, softmax.first.product)
        contracted = weights.axes[_summed(second.product, self._by_left)]
        if resolved(contracted) != resolved(self._roles.keys) and softmax.sinks is None:
            raise UnclearError("the product is not over the axis of the softmax")
        if softmax.sinks is not None and not _of_keys(softmax.sinks, weights):
            raise UnclearError("what was appended before it was not left out after it")
        number = self._queries_and_keys(softmax, softmax.first, by_rows)
        self._values_and_output(second, second.product, values, out)
        self._program(softmax, weights, number)
        self()  # what cannot be laid out is no attention
        del self._keep

    def __call__(self) -> Operands:
        """Lay everything out."""
        return Operands(
            q=self._q(),
            k=self._k(),
            v=self._v(),
            output=self._output(),
            scores=self._scores,
            after=self._after,
            sinks=self._sinks,
            noise=self._noise,
            dropout=self._dropout,
            empty_is_zero=self._empty_is_zero,
            same_source=self._same_source,
            projection=self._projection,
        )

    def _queries_and_keys(self, softmax: Softmax, first: Node, by_rows: bool) -> float:
        """Hold q and k as they were before copies, repeats and factors; return the factors."""
        product, number, sources = first.product, 1.0, list[Node]()
        if product is None or softmax.operands is None:
            raise UnclearError("its input does not come from a product")
        laid = list[Laid | Changed]()
        for held, node, of, copies in zip(
            softmax.operands,
            first.parents,
            (product.rows_of, product.columns_of),
            (product.rows, product.columns),
            strict=True,
        ):
            free = (
                self._roles.queries
                if (held is softmax.operands[0]) == by_rows
                else self._roles.keys
            )
            groups = (self._roles.batch, self._roles.heads, free, product.width)
            view, factor = self._operand(held.tensor, node, groups, pairs(of, copies))
            laid.append(view)
            sources.append(node)
            number *= factor
        self._q, self._k = laid if by_rows else laid[::-1]
        self._same_source = same_source(*sources)
        return number

    def _values_and_output(
        self, second: Node, product: Product, values: Tensor, out: Tensor
    ) -> None:
        batch, heads, queries, _ = self._roles
        rows, columns = (product.rows_of, product.rows), (product.columns_of, product.columns)
        (mine, copies), (of, free) = (rows, columns) if self._by_left else (columns, rows)
        node = second.parents[1 if self._by_left else 0]
        keys = node.axes[_summed(product, not self._by_left)]
        self._v, _ = self._operand(values, node, (batch, heads, keys, of), [], scaled=False)
        instead = [(copy, factor) for factor, copy in pairs(mine, copies)]
        self._width = free
        self._output = self._held(out, second, (batch, heads, queries, free), instead=instead)

    def _operand(
        self,
        tensor: Tensor,
        node: Node,
        groups: tuple[Axis, ...],
        instead: list[tuple[Factor, Factor]],
        scaled: bool = True,
    ) -> tuple[Laid | Changed, float]:
        """Hold an operand's origin where that can be laid out, else the operand."""
        origin, of_origin, factor = self._keep.origin(tensor, node)
        repeated = node.repeated
        if origin is not tensor and (scaled or factor == 1.0):
            try:
                laid = self._held(origin, of_origin, groups, repeated, instead, 1)
                laid()
                return laid, factor
            except (UnclearError, RuntimeError):
                self.cells.pop()
        laid, factor = self._held(tensor, node, groups, repeated, instead, 1), node.owner.rescaled
        if factor != 1.0 and not node.layout.offset:
            return Changed(laid, lambda q: q / factor), factor
        return laid, 1.0

    def _held(
        self,
        tensor: Tensor,
        node: Node,
        groups: tuple[Axis, ...],
        repeated: Axis | None = None,
        instead: list[tuple[Factor, Factor]] | None = None,
        grouped: int | None = None,
    ) -> Laid:
        held = Held(tensor)
        self._keep.guard(held)
        self.cells.append(held)
        return Laid(held, node.axes, groups, repeated=repeated, instead=instead, grouped=grouped)

    def _program(self, softmax: Softmax, weights: Node, number: float) -> None:
        """What is done to the similarities, and to the weights."""
        dtype = None if softmax.first is None else softmax.first.dtype
        scale = [] if number == 1.0 else [Operation("multiply", number=number, dtype=dtype)]
        self._scores = (*scale, *(self._operation(step, node) for step, node in softmax.steps))
        self._sinks = self._noise = None
        self._dropout, after = 0.0, list[Operation]()
        if softmax.sinks is not None and softmax.sinks.step is not None:
            self._sinks = self._beside(softmax.sinks.step.operand, softmax.input, softmax.dim)
        while weights.kind != "softmax":
            if weights.kind == "dropout" and weights.step is not None:
                self._noise = self._laid(weights.step.operand, weights)
                self._dropout = weights.number
            elif weights.kind == "scale":
                after.append(Operation("multiply", number=weights.number))
            elif weights.kind == "step" and weights.step is not None:
                after.append(self._operation(weights.step, weights))
            elif weights.kind not in ("view", "same"):
                raise UnclearError(weights.reason or f"{weights.kind} follows it")
            weights = weights.parents[0]
        self._after = tuple(after[::-1])
        self._empty_is_zero = softmax.empty_is_zero

    def _operation(self, step: Step, node: Node) -> Operation:
        operand = None if step.operand is None else self._laid(step.operand, node)
        return Operation(
            step.kind,
            operand if operand is None or step.change is None else Changed(operand, step.change),
            step.number,
            None if step.other is None else self._laid(step.other, node),
            step.limits,
            dtype=node.dtype,
        )

    def _beside(self, cell: Cell | None, node: Node, dim: int) -> Laid:
        """Lay sinks out: they have columns of their own."""
        laid = self._laid(cell, node)
        own, axes = axis(laid.held.tensor.shape[dim]), list(node.axes)
        axes[dim] = own
        return Laid(laid.held, axes, (*self._roles[:3], own))

    def _laid(self, cell: Cell | None, node: Node) -> Laid:
        if not isinstance(cell, Held):
            raise UnclearError("one of its operands was gone")
        self.cells.append(cell)
        laid = Laid(cell, node.axes, self._roles)
        laid.check()
        return laid

    def _projection(self) -> Tensor | None:
        if self.projected is None:
            return None
        return self.projected.laid_out(self._roles.heads, self._width)


def _of_keys(sinks: Node, weights: Node) -> bool:
    """Say whether of the weights just those of keys were taken, and none of what was appended."""
    while weights.kind != "softmax":
        whole = weights.parents[0]
        if weights.kind == "view" and weights.layout.places() < whole.layout.shape.numel():
            rows, first = whole.layout, int(weights.layout.offset) - int(whole.layout.offset)
            wanted = sinks.parents[0].layout.shape[sinks.dim] * rows.shape.numel()
            taken = weights.layout.shape.numel() * rows.shape[sinks.dim]
            return taken == wanted and first == int(sinks.number) * rows.stride[sinks.dim]
        weights = whole
    return False


def _summed(product: Product, left: bool) -> int:
    """Return which axis of an operand a product sums over."""
    if left:
        return -1
    return 0 if product.vector else -2


def same_source(q: Node, k: Node) -> bool | None:
    """Say whether queries and keys were made of one tensor; None where that is unknown."""
    if q.source is not None and k.source is not None:
        return q.source is k.source
    if q.source is None and k.source is None and q.mark is k.mark:
        return True
    return None
