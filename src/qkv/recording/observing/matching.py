"""From a softmax back to the product before it, and on to the product after it: an attention."""

import weakref
from collections.abc import Callable
from typing import Protocol, runtime_checkable

from torch import Tensor

from qkv.errors import RecordingError
from qkv.recording.calls.call import Call
from qkv.recording.calls.held import Held
from qkv.recording.calls.operands import Operands
from qkv.recording.calls.place import Place
from qkv.recording.observing.axes import UnclearError
from qkv.recording.observing.layout import Projected
from qkv.recording.observing.misses import EMPTY, Misses
from qkv.recording.observing.nodes import Node, Product, Seen, Step
from qkv.recording.observing.places import Places
from qkv.recording.observing.provenance import ACTIVATIONS, LEARNED, Provenance
from qkv.recording.observing.written import Softmax, WrittenOut

PASSED = ("view", "same", "shifted")
"""What changes no similarity, or only by a row's constant."""


@runtime_checkable
class Found(Protocol):
    """An attention that was found: lays out its operands when called."""

    projected: Projected | None
    cells: list[Held]

    def __call__(self) -> Operands:
        """Lay everything out."""


class _Source:
    """Lays an attention out for its call; says which, where that cannot be done any more."""

    __slots__ = ("attention", "place")

    def __init__(self, attention: Found, place: Place) -> None:
        self.attention, self.place = attention, place

    def __call__(self) -> Operands:
        try:
            return self.attention()
        except UnclearError as unclear:
            path, file, line = self.place
            raise RecordingError(
                f"the attention of {path or 'the model'} ({file}:{line}) cannot be laid out as "
                f"(batch, heads, queries, keys): {unclear}; a later product made two axes one"
            ) from unclear


class Matcher:
    """Follows what operations do, and tells of every attention among them.

    Args:
        provenance: how each tensor was made.
        places: where the program is.
        misses: what comes near.
        on_call: told of each attention.
        only: asked with the module's path whether a call is wanted.
    """

    def __init__(
        self,
        provenance: Provenance,
        places: Places,
        misses: Misses,
        on_call: Callable[[Call], None],
        only: Callable[[str | None], bool] | None,
    ) -> None:
        """Keep what it reports to."""
        self.provenance = provenance
        self.misses = misses
        self._places = places
        self._on_call = on_call
        self._only = only

    def softmax(
        self, node: Node | None, out: Tensor, dim: int, *, empty_is_zero: bool = False
    ) -> None:
        """A softmax was computed of a node's content."""
        self.misses.softmaxes = True
        if not out.numel():
            self.misses.add("softmax", self._places.here(), out.shape, EMPTY)
            return
        known = node is not None and node.left > 0
        made = Node("softmax", out, (node,) if known and node is not None else ())
        dim %= out.dim() or 1
        softmax = made.softmax = Softmax(made if node is None else node, dim, empty_is_zero)
        try:
            if node is None or not known:
                reason = "" if node is None else node.reason
                raise UnclearError(reason or "its input does not come from a product")
            self._trace(softmax)
        except UnclearError as unclear:
            softmax.reason = str(unclear)
            self.misses.add("softmax", self._places.here(), out.shape, softmax.reason, near=False)
        self.provenance.put(out, made)

    def product(
        self,
        left: Tensor,
        right: Tensor,
        out: Tensor,
        added: tuple[Step, ...] = (),
        vector: bool = False,
        of_right: Node | None = None,
    ) -> None:
        """A product was computed; `of_right` where the right operand's tensor does not tell."""
        self.misses.empty |= not out.numel()
        keep = self.provenance
        of_left, of_right = keep.node(left), of_right or keep.node(right)
        node = Node("product", out, (of_left, of_right))
        weighs = of_left.softmax is not None or of_right.softmax is not None
        if of_left.learned or of_right.learned:
            activation = of_right if of_left.learned else of_left
            node.source, node.left = activation.mark, LEARNED
            if activation.found is not None:
                parameter = (left, of_left) if of_left.learned else (right, of_right)
                self._projected(activation, *parameter, activation is of_left)
            if not weighs:
                node.kind, node.parents = "linear", ()
                node.operands = (of_left.seen(left), of_right.seen(right), added)
                keep.put(out, node)
                return
        else:
            node.strong, node.left = True, ACTIVATIONS
        node.product = Product(
            keep.remember(left, node.strong), keep.remember(right, node.strong), added, vector
        )
        if weighs and self._match(node, left, right, out):
            return
        for operand in node.parents:
            kind = operand.owner.kind
            if kind == "exponential":
                self._miss("exp", operand, "it enters a product before it is divided by its sum")
            elif kind == "unknown" and operand.softmax is None and operand.of_product is not None:
                self._miss("similarities", operand, f"{operand.reason}, and no softmax")
        keep.put(out, node)

    def wanted(self) -> Place | None:
        """Return where the program is, or None where calls from there are not wanted."""
        place = self._places.here()
        if place is None or self._only is None or self._only(place.path):
            return place
        return None

    def found(self, attention: Found, place: Place) -> None:
        """Tell of an attention."""
        call = Call(place, self._places.run, _Source(attention, place))
        reader = weakref.WeakMethod(call.forget_layout)
        for cell in attention.cells:
            cell.reader = reader
        self._on_call(call)

    def _trace(self, softmax: Softmax) -> None:
        """Walk from a softmax back to its product."""
        node, steps, viewed = softmax.input, list[tuple[Step, Node]](), False
        while node.product is None:
            if node.operands is not None:
                node.begin(*(self._kept(cell).tensor for cell in node.operands[:2]))
                continue
            if node.kind == "scale":
                steps.append((Step("multiply", number=node.number), node))
            elif node.kind == "step" and node.step is not None:
                steps.append((node.step, node))
            elif node.kind == "append" and softmax.sinks is None and not steps:
                softmax.sinks, softmax.input = node, node.parents[0]
            elif node.kind == "unknown":
                raise UnclearError(node.reason)
            elif node.kind == "shifted" and not viewed and node.dim != softmax.dim:
                raise UnclearError("a maximum of another axis than the softmax's was taken off")
            elif node.kind not in PASSED:
                raise UnclearError(
                    f"{node.kind} stands between it and a product"
                    if node.parents
                    else "its input does not come from a product"
                )
            viewed = viewed or node.kind == "view"
            node = node.parents[0]
        softmax.first = node
        softmax.steps = [(step, node) for step in node.product.added] + steps[::-1]
        softmax.operands = self._kept(node.product.left), self._kept(node.product.right)
        for step, _ in softmax.steps:
            step.operand = None if step.operand is None else self._kept(step.operand)
            step.other = None if step.other is None else self._kept(step.other)

    def _kept(self, cell: Held | Seen | None) -> Held:
        if isinstance(cell, Held):
            return cell
        tensor = None if cell is None else cell()
        if tensor is None:
            raise UnclearError(
                "it comes from a product with a learned matrix, whose operands are gone"
            )
        held = Held(tensor)
        self.provenance.guard(held)
        return held

    def _match(self, second: Node, left: Tensor, right: Tensor, out: Tensor) -> bool:
        """Is one operand of this product a softmax's weights, and the product over its keys?"""
        for weights, values in zip(second.parents, (right, left), strict=True):
            softmax = weights.softmax
            if softmax is None:
                continue
            try:
                if softmax.reason or weights.reason:
                    raise UnclearError(softmax.reason or weights.reason)
                if all(node.softmax is softmax for node in second.parents):
                    raise UnclearError("it was multiplied with itself")
                place = self.wanted()
                if place is not None:
                    attention = WrittenOut(softmax, second, weights, values, out, self.provenance)
                    second.found = weakref.ref(attention)
                    self.found(attention, place)
            except UnclearError as unclear:
                self._miss("softmax", weights, str(unclear))
                continue
            second.kind, second.parents, second.product, second.left = "output", (), None, 0
            self.provenance.put(out, second)  # its axes are known; the weights are let go
            return True
        return False

    def _projected(self, output: Node, parameter: Tensor, node: Node, by_left: bool) -> None:
        """The output of an attention was multiplied with a parameter."""
        attention = None if output.found is None else output.found()
        if attention is not None and attention.projected is None:
            held = self.provenance.hold(parameter)
            attention.projected = Projected(held, output, node, by_left)

    def _miss(self, what: str, node: Node, reason: str) -> None:
        self.misses.add(what, self._places.here(), node.layout.shape, reason)
