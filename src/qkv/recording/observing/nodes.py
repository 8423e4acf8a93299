"""How a tensor's content was made: a node, its operands, and the axes that follow from it."""

import weakref
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor

from qkv.recording.calls.held import Held
from qkv.recording.observing.axes import Axes, Axis, Factor, Layout, axis, of_view, resolved, unify

Kind = Literal[
    "leaf", "view", "same", "scale", "step", "append", "join", "normalised", "product", "linear",
    "softmax", "row maximum", "row sum", "logsumexp", "shifted", "log weights", "exponential",
    "dropout", "noise", "output", "unknown",
]  # fmt: skip
"""How a node's content was made."""


class Seen:
    """A tensor that is not kept: it can be had again while its storage lives."""

    __slots__ = ("dtype", "layout", "storage")

    def __init__(
        self,
        storage: weakref.ref[torch.UntypedStorage],
        layout: Layout,
        dtype: torch.dtype,
    ) -> None:
        """Remember where it lies."""
        self.storage, self.layout, self.dtype = storage, layout, dtype

    @classmethod
    def of(cls, tensor: Tensor) -> "Seen":
        """Remember where a tensor lies."""
        return cls(weakref.ref(tensor.untyped_storage()), Layout.of(tensor), tensor.dtype)

    def __call__(self) -> Tensor | None:
        """Return the tensor, or None once its storage is gone."""
        storage = self.storage()
        return None if storage is None else on_storage(storage, self.layout, self.dtype)


Cell = Held | Seen


def on_storage(storage: torch.UntypedStorage, layout: Layout, dtype: torch.dtype) -> Tensor:
    """Return a tensor that lies in a storage."""
    tensor = torch.empty(0, dtype=dtype, device=storage.device)
    return tensor.set_(storage, layout.offset, layout.shape, layout.stride)


class Step:
    """One operation on the similarities: what `Operation` says, its tensors not yet laid out.

    `change` is what becomes of the operand before it acts: a divisor's reciprocal, a condition's
    opposite.
    """

    __slots__ = ("change", "kind", "limits", "number", "operand", "other")

    def __init__(
        self,
        kind: Any,
        operand: Cell | None = None,
        number: float | None = None,
        *,
        other: Cell | None = None,
        limits: tuple[float | None, float | None] | None = None,
        change: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        """Keep it as it is."""
        self.kind = kind
        self.operand = operand
        self.number = number
        self.other = other
        self.limits = limits
        self.change = change


class Product:
    """The two operands of a product, and the axes of its rows and columns.

    Rows and columns are copies of the operands' factors: queries and keys may be of one tensor.
    """

    __slots__ = (
        "added", "columns", "columns_of", "left", "mark", "right", "rows", "rows_of", "vector",
        "width",
    )  # fmt: skip

    def __init__(self, left: Cell, right: Cell, added: tuple[Step, ...], vector: bool) -> None:
        """Its axes are found by `unified`."""
        self.left = left
        self.right = right
        self.added = added
        self.vector = vector
        self.mark = object()
        self.rows_of: Axis = []
        self.columns_of: Axis = []
        self.rows: Axis = []
        self.columns: Axis = []
        self.width: Axis = []

    @property
    def lineage(self) -> frozenset[object]:
        """The marks of the axis that the product sums over."""
        return frozenset().union(*(factor.lineage for factor in resolved(self.width)))

    def unified(self, left: Axes, right: Axes) -> Axes:
        """Return the product's axes; its batch and contraction axes become one."""
        batch = len(left) - 2
        for mine, other in zip(left[:batch], right[:batch], strict=False):
            unify(mine, other)
        unify(left[-1], right[0] if self.vector else right[-2])
        self.width = left[-1]
        self.rows_of = resolved(left[-2])
        self.columns_of = [] if self.vector else resolved(right[-1])
        self.rows = [Factor(factor.size, factor.lineage) for factor in self.rows_of]
        self.columns = [Factor(factor.size, factor.lineage) for factor in self.columns_of]
        out = [*left[:batch], self.rows]
        return out if self.vector else [*out, self.columns]


class Node:
    """How a tensor's content was made.

    Attributes:
        kind, parents: the operation and what it read; the first parent gives the axes.
        dim: the axis that a softmax, a reduction or a concatenation works on.
        number: a factor (scale), a probability (dropout, noise), how much stands before (append).
        step: for a step, what it does; for what is appended, what.
        product: for a product, its operands.
        operands: for a product with a parameter, its operands, of which little is kept.
        left: operations that are still followed; 0 where no product leads here.
        strong: whether tensors on the way are held.
        learned: whether the content is a parameter's.
        source: a mark of the tensor that the product with a parameter before it read.
        softmax: the softmax whose weights these are.
        of_product: a mark of the product whose similarities something unknown was made of.
        found: the attention whose output this is, weakly: it holds that output.
        storage: where it lies, weakly, once that is known.
        last_view: of a parameter, how it was read last.
        rescaled: what the queries that lie first in it were multiplied by (PyTorch's fast path).
        reason: for what is unknown, why.
    """

    dim = 0
    number = 0.0
    step: Step | None = None
    product: Product | None = None
    operands: tuple[Cell, Cell, tuple[Step, ...]] | None = None
    left = 0
    strong = learned = False
    rescaled = 1.0
    last_view: "Node | None" = None
    source: object | None = None
    softmax: Any = None
    of_product: object | None = None
    found: weakref.ref[Any] | None = None
    storage: "Key | None" = None
    reason = ""
    _axes: Axes | None = None
    _repeated: Axis | None = None
    _mark: object | None = None

    def __init__(self, kind: Kind, tensor: Tensor, parents: tuple["Node", ...] = ()) -> None:
        """Describe a tensor; what is particular to its kind is set afterwards."""
        self.kind = kind
        self.parents = parents
        self.layout = Layout(tensor.shape, tensor.stride(), tensor.storage_offset())
        self.dtype = tensor.dtype

    @property
    def axes(self) -> Axes:
        """The factors of each axis, found when asked for."""
        if self._axes is None:
            self._axes = self._find_axes()
        return self._axes

    @property
    def repeated(self) -> Axis:
        """The factors over which the content only repeats."""
        return (self._repeated or []) if self.axes else []

    @property
    def mark(self) -> object:
        """A mark of the tensor that was copied, normalised or projected into this one."""
        node = self
        while node.source is None and node.kind in ("view", "same", "normalised"):
            node = node.parents[0]
        if node.source is not None:
            return node.source
        if node._mark is None:
            node._mark = object()
        return node._mark

    @property
    def owner(self) -> "Node":
        """The node of the whole storage, for a view."""
        return self.parents[0] if self.kind == "view" else self

    @property
    def root(self) -> object | None:
        """A mark of the product that its chain began with."""
        node = self
        while node.product is None and node.parents:
            node = node.parents[0]
        return None if node.product is None else node.product.mark

    @property
    def content(self) -> str:
        """What it holds, in a word."""
        if self.softmax is not None:
            return "weights"
        return "similarities" if self.strong else "tensor"

    def seen(self, tensor: Tensor) -> Seen:
        """Remember where its tensor lies."""
        return (
            Seen.of(tensor) if self.storage is None else Seen(self.storage, self.layout, self.dtype)
        )

    def split_heads(self, heads: int, width: int) -> None:
        """Say that two of its axes were one before."""
        axes = self.axes
        related = Factor(1).lineage
        for place in (heads, width):
            axes[place] = [Factor(factor.size, related) for factor in axes[place]]

    def begin(self, left: Tensor, right: Tensor) -> None:
        """Take a product with a parameter for the beginning of a chain after all."""
        if self.operands is not None and self.product is None:
            (*cells, added), axes = self.operands, self.axes
            self.product = Product(cells[0], cells[1], added, len(axes) == 1)
            self.parents = (Node("leaf", left), Node("leaf", right))
            before = self.product.unified(self.parents[0].axes, self.parents[1].axes)
            for mine, theirs in zip(axes, before, strict=True):  # rows and columns are these now
                unify(theirs, mine)

    def _find_axes(self) -> Axes:
        shape = self.layout.shape
        if not self.parents:
            return [axis(length) for length in shape]
        parent = self.parents[0]
        if self.product is not None:
            return self.product.unified(parent.axes, self.parents[1].axes)
        if self.kind == "view":
            axes, repeated = of_view(self.layout, parent.layout, parent.axes)
            self._repeated = [*parent.repeated, *repeated]
            return axes
        before = len(shape) - len(parent.layout.shape)
        axes = [list[Factor]() for _ in range(before)] + parent.axes
        had = (1,) * before + tuple(parent.layout.shape)
        if self.kind in ("same", "scale"):
            self._repeated = parent.repeated
        return [
            mine if old == new else _resized(new, mine)
            for mine, old, new in zip(axes, had, shape, strict=True)
        ]


def _resized(length: int, before: Axis) -> Axis:
    """Return an axis that was broadcast or lengthened: it stays a piece of the same one."""
    if length == 1:
        return []
    pieces = resolved(before)
    return [Factor(length, pieces[-1].lineage if pieces else None)]


class Key(weakref.ref[torch.UntypedStorage]):
    """A weak reference to a storage that knows where it stands in the table."""

    __slots__ = ("place",)
    place: int
