"""What each operation does to a chain that leads from a product to a softmax and on.

Views are absent: their axes follow from strides. Whatever else is absent ends a chain.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from qkv.recording.observing.matching import Matcher
from qkv.recording.observing.nodes import Kind, Node, Step
from qkv.recording.observing.provenance import covers

Handler = Callable[[Matcher, tuple[Any, ...], dict[str, Any], Any], None]
"""Told of an operation after it ran: its arguments and its result."""

HANDLERS: dict[Any, Handler] = {}
"""By operation; those of higher order by name, for they need not have been loaded."""


def handles(*names: str) -> Callable[[Handler], Handler]:
    """Register a handler for operations by name, those that this PyTorch has."""

    def register(handler: Handler) -> Handler:
        for name in names:
            packet, overload = name.split(".")
            operation = getattr(getattr(torch.ops.aten, packet, None), overload, None)
            if operation is not None:
                HANDLERS[operation] = handler
        return handler

    return register


def known(m: Matcher, x: object) -> Node | None:
    """Return what is known of an argument."""
    return m.provenance.find(x) if isinstance(x, Tensor) else None


def followed(node: Node | None) -> bool:
    """Say whether a chain goes through it."""
    return node is not None and (node.left > 1 or node.softmax is not None)


def add_step(
    m: Matcher, out: Tensor, node: Node, kind: str, operand: Any = None, **more: Any
) -> None:
    """Something was done to the similarities, or to the weights."""
    strong = node.strong or node.softmax is not None
    made = known(m, operand)
    if made is not None and made.of_product is not None and made.of_product is node.root:
        m.provenance.follow("unknown", out, node).reason = made.reason
        return
    cells = [
        m.provenance.remember(x, strong) if isinstance(x, Tensor) else None
        for x in (operand, more.pop("other", None))
    ]
    m.provenance.follow("step", out, node).step = Step(kind, cells[0], other=cells[1], **more)


def _number(x: Any) -> float | None:
    """Return a number, or the one number in a tensor."""
    if not isinstance(x, Tensor):
        return float(x)
    return float(x.item()) if x.numel() == 1 else None


def _chain(m: Matcher, x: Any, y: Any) -> tuple[Node | None, Any]:
    """Return which of two operands the chain goes through, and the other operand."""
    of_x, of_y = known(m, x), known(m, y)
    both = ((of_x, y), (of_y, x))
    candidates = [(n, other) for n, other in both if n is not None and followed(n)]
    if not candidates:
        return None, None
    return max(candidates, key=lambda c: (c[0].softmax is not None, c[0].left))


@handles("clone.default", "_to_copy.default")
def _copied(m: Matcher, args: Any, kwargs: Any, out: Any) -> None:
    if out.is_floating_point() and out.dim() > 1:
        node = m.provenance.node(args[0])
        made = m.provenance.follow("same", out, node)
        made.found = node.found
        made.learned = node.learned and out.dim() == 2  # autocast; not queries that are learned


@handles("copy_.default", "index_copy_.default", "index_copy.default")
def _written(m: Matcher, args: Any, kwargs: Any, out: Any) -> None:
    source = known(m, args[-1])
    if source is None:
        return
    if len(args) == 2 and covers(args[0]) and args[0].shape == args[1].shape:
        m.provenance.follow("same", out, source).found = source.found
    else:
        m.provenance.refill(out, source)


@handles("native_layer_norm.default", "_fused_rms_norm.default")
def _normalised(m: Matcher, args: Any, kwargs: Any, out: Any) -> None:
    m.provenance.follow("normalised", out[0], m.provenance.node(args[0]))


@handles("addcmul.default", "addcmul_.default")
def _added_product(m: Matcher, args: Any, kwargs: Any, out: Any) -> None:
    """X + Y Z, as positions are rotated: of the same source, and no step of a program."""
    node = next((n for x in args if (n := known(m, x)) is not None and followed(n)), None)
    if node is not None:
        m.provenance.follow("normalised", out, node)


def _taken_by(operation: str) -> None:
    def handler(m: Matcher, args: Any, kwargs: Any, out: Any) -> None:
        node = known(m, args[0])
        if node is not None:
            m.provenance.take(out, node, operation.partition(".")[0])

    handles(operation)(handler)


for _operation in (
    "index.Tensor", "index_select.default", "gather.default", "roll.default", "flip.default",
    "repeat.default", "constant_pad_nd.default", "convolution.default",
):  # fmt: skip
    _taken_by(_operation)


def _changed_by(operation: str) -> None:
    def handler(m: Matcher, args: Any, kwargs: Any, out: Any) -> None:
        for x in args:
            node = known(m, x)
            if node is not None and (node.strong or node.softmax is not None):
                changed = out if isinstance(out, Tensor) else out[0]
                m.provenance.take(changed, node, operation.partition(".")[0].rstrip("_"))
                return

    handles(operation)(handler)


for _operation in (
    "topk.default", "sort.default", "sort.stable", "scatter.src", "scatter_.src", "scatter.value",
    "scatter_.value", "scatter_add.default", "scatter_add_.default", "masked_scatter.default",
    "pow.Tensor_Scalar", "sqrt.default", "log.default", "abs.default", "cumsum.default",
    "relu.default", "relu_.default", "sigmoid.default", "sigmoid_.default", "gelu.default",
    "silu.default", "elu.default", "softplus.default", "leaky_relu.default", "threshold.default",
    "nan_to_num.default", "nan_to_num_.default",
):  # fmt: skip
    _changed_by(_operation)
"""No chain of an attention goes through these: what they change is named where it is missed."""


@handles("mul.Tensor", "mul.Scalar", "mul_.Tensor", "mul_.Scalar")
def _multiplied(m: Matcher, args: Any, kwargs: Any, out: Any) -> None:
    x, y = args[:2]
    number = _number(y)
    if number is None and _number(x) is not None:
        x, y, number = y, x, _number(x)
    if number is not None:
        _scaled(m, x, number, out)
        return
    noise = next((t for t in (x, y) if (n := known(m, t)) is not None and n.kind == "noise"), None)
    if noise is None:
        node, operand = _chain(m, x, y)
        if node is not None:
            add_step(m, out, node, "multiply", operand)
        return
    node = known(m, y if noise is x else x)
    if node is not None and node.softmax is not None:
        made = m.provenance.follow("dropout", out, node)
        made.step = Step("multiply", m.provenance.hold(noise))
        made.number = m.provenance.node(noise).number


@handles("div.Tensor", "div.Scalar", "div_.Tensor", "div_.Scalar")
def _divided(m: Matcher, args: Any, kwargs: Any, out: Any) -> None:
    x, y = args[:2]
    number = _number(y)
    if number is not None:
        if isinstance(x, Tensor):
            _scaled(m, x, 1 / number if number else float("inf"), out)
        return
    node, of_y = known(m, x), known(m, y)
    total = None if of_y is None else of_y.owner
    if node is not None and node.kind == "exponential" and _taken_of(node, total, "row sum", x, y):
        m.softmax(node.parents[0], out, 0 if total is None else total.dim)
        return
    if node is not None and followed(node):
        add_step(m, out, node, "multiply", y, change=torch.reciprocal)


def _scaled(m: Matcher, x: Tensor, number: float, out: Tensor) -> None:
    """x · number; a dropout's noise is divided by what it keeps."""
    node = known(m, x)
    if node is None:
        if out.dim() < 3 or not out.is_floating_point():
            return
        node = m.provenance.node(x)
    if node.kind == "noise":
        made = Node("noise", out)
        made.number = node.number
        m.provenance.put(out, made)
    elif out.dtype.is_floating_point:
        m.provenance.follow("scale", out, node).number = number


def _taken_of(node: Node, reduced: Node | None, kind: Kind, x: Tensor, y: Any) -> bool:
    """Say whether y is a reduction of this kind of just x, and each row meets its own.

    Without `keepdim` a row would meet another one's.
    """
    if reduced is None or reduced.kind != kind:
        return False
    if not isinstance(y, Tensor) or y.dim() != x.dim() or y.shape[reduced.dim] != 1:
        return False
    of = reduced.parents[0]
    return of is node or (of.owner is node.owner and of.layout == node.layout)


@handles("add.Tensor", "add.Scalar", "add_.Tensor", "add_.Scalar")
def _added(m: Matcher, args: Any, kwargs: Any, out: Any) -> None:
    _sum(m, args, kwargs, out, 1.0)


@handles("sub.Tensor", "sub.Scalar", "sub_.Tensor", "sub_.Scalar")
def _subtracted(m: Matcher, args: Any, kwargs: Any, out: Any) -> None:
    node, taken = known(m, args[0]), known(m, args[1])
    other = None if taken is None else taken.owner
    if node is None or other is None:
        _sum(m, args, kwargs, out, -1.0)
    elif _taken_of(node, other, "row maximum", *args[:2]):
        m.provenance.follow("shifted", out, node).dim = other.dim
    elif _taken_of(node, other, "logsumexp", *args[:2]):
        m.provenance.follow("log weights", out, node).dim = other.dim
    else:
        _sum(m, args, kwargs, out, -1.0)


def _sum(m: Matcher, args: Any, kwargs: Any, out: Any, sign: float) -> None:
    x, y = args[:2]
    factor = sign * float(kwargs.get("alpha", args[2] if len(args) > 2 else 1))
    node, operand = _chain(m, x, y)
    if node is None:
        return
    if operand is x and not (isinstance(y, Tensor) and factor == 1.0):
        return  # something minus the similarities: no chain that attention takes
    number = _number(operand) if not isinstance(operand, Tensor) else None
    if number is not None:
        add_step(m, out, node, "add", number=factor * number)
    else:
        add_step(m, out, node, "add", operand, number=factor)


@handles("masked_fill.Scalar", "masked_fill.Tensor", "masked_fill_.Scalar", "masked_fill_.Tensor")
def _filled(m: Matcher, args: Any, kwargs: Any, out: Any) -> None:
    node = known(m, args[0])
    if node is not None and followed(node):
        add_step(m, out, node, "fill", args[1], number=_number(args[2]))


@handles("index_put_.default")
def _put(m: Matcher, args: Any, kwargs: Any, out: Any) -> None:
    x, indices, values = args[:3]
    node, number = known(m, x), _number(values)
    whole = len(indices) == 1 and indices[0] is not None and indices[0].dtype == torch.bool
    if node is not None and followed(node) and node.strong:
        if whole and indices[0].dim() == x.dim() and number is not None:
            add_step(m, out, node, "fill", indices[0], number=number)
    else:
        m.provenance.refill(out, known(m, values))


@handles("where.self")
def _chosen(m: Matcher, args: Any, kwargs: Any, out: Any) -> None:
    condition, x, y = args
    node, other = _chain(m, x, y)
    if node is None:
        return
    change = None if other is y else torch.logical_not
    number = _number(other)
    if number is not None:
        add_step(m, out, node, "where" if change is None else "fill", condition, number=number)
    else:
        add_step(m, out, node, "where", condition, other=other, change=change)


@handles("maximum.default")
def _maximum(m: Matcher, args: Any, kwargs: Any, out: Any) -> None:
    node, other = _chain(m, *args[:2])
    if node is not None:
        add_step(m, out, node, "maximum", other)


@handles("tanh.default", "tanh_.default")
def _tanh(m: Matcher, args: Any, kwargs: Any, out: Any) -> None:
    node = known(m, args[0])
    if node is not None and followed(node):
        add_step(m, out, node, "tanh")


@handles("neg.default", "neg_.default")
def _negated(m: Matcher, args: Any, kwargs: Any, out: Any) -> None:
    node = known(m, args[0])
    if node is not None and followed(node):
        add_step(m, out, node, "negate")


@handles("clamp.default", "clamp_.default")
def _clamped(m: Matcher, args: Any, kwargs: Any, out: Any) -> None:
    lower, upper = (
        args[place] if len(args) > place else kwargs.get(name)
        for place, name in ((1, "min"), (2, "max"))
    )
    _limited(m, args[0], out, (lower, upper))


@handles("clamp_min.default")
def _raised(m: Matcher, args: Any, kwargs: Any, out: Any) -> None:
    _limited(m, args[0], out, (args[1], None))


@handles("clamp_max.default")
def _lowered(m: Matcher, args: Any, kwargs: Any, out: Any) -> None:
    _limited(m, args[0], out, (None, args[1]))


def _limited(m: Matcher, x: Tensor, out: Tensor, limits: tuple[Any, Any]) -> None:
    node = known(m, x)
    if node is not None and followed(node):
        add_step(m, out, node, "clamp", limits=limits)


@handles("cat.default")
def _joined(m: Matcher, args: Any, kwargs: Any, out: Any) -> None:
    """Sinks are appended to the similarities; rows to a cache, halves to a rotated query."""
    pieces = [piece for piece in args[0] if piece.numel()]
    dim = (args[1] if len(args) > 1 else kwargs.get("dim", 0)) % (out.dim() or 1)
    nodes = [known(m, piece) for piece in pieces]
    if len(pieces) == 1 and nodes[0] is not None:
        m.provenance.follow("same", out, nodes[0]).found = nodes[0].found
        return
    strong = [n for n, node in enumerate(nodes) if node and node.strong and followed(node)]
    if len(pieces) == 2 and strong:
        similarities, sinks = pieces[strong[0]], pieces[1 - strong[0]]
        made = m.provenance.follow("append", out, m.provenance.node(similarities))
        made.step, made.dim = Step("add", m.provenance.hold(sinks)), dim
        made.number = sinks.shape[dim] if strong[0] else 0
        return
    last = next((node for node in reversed(nodes) if node is not None and node.left > 1), None)
    if last is not None:
        m.provenance.follow("join", out, last).dim = dim


@handles("bernoulli_.float")
def _noise(m: Matcher, args: Any, kwargs: Any, out: Any) -> None:
    node = Node("noise", out)
    kept = args[1] if len(args) > 1 else kwargs.get("p", 0.5)
    node.number = round(1 - kept, 12)  # 1 − (1 − p) is p but for rounding
    m.provenance.put(out, node)


@handles("native_dropout.default")
def _dropped(m: Matcher, args: Any, kwargs: Any, out: Any) -> None:
    node = known(m, args[0])
    if node is not None and node.softmax is not None and args[1] < 1:
        made = m.provenance.follow("dropout", out[0], node)
        keeps = 1 - args[1]
        made.number = args[1]
        made.step = Step("multiply", m.provenance.hold(out[1]), change=lambda kept: kept / keeps)
