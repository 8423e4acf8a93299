"""Where a chain begins and ends: products and softmaxes, and softmaxes written as exp over sum."""

from typing import Any

import torch
from torch import Tensor

from qkv.core.laid import rows
from qkv.recording.observing.matching import Matcher
from qkv.recording.observing.nodes import Kind, Node, Step
from qkv.recording.observing.operations import HANDLERS, followed, handles, known
from qkv.recording.observing.provenance import view_of


@handles("bmm.default", "mm.default", "bmm.out", "mm.out")
def _product(m: Matcher, args: Any, kwargs: Any, out: Any) -> None:
    m.product(args[0], args[1], out)


@handles("mv.default")
def _product_with_vector(m: Matcher, args: Any, kwargs: Any, out: Any) -> None:
    m.product(args[0], args[1], out, vector=True)


@handles("addmm.default", "baddbmm.default", "baddbmm.out", "addmm.out")
def _product_added(m: Matcher, args: Any, kwargs: Any, out: Any) -> None:
    """Beta · added + alpha · left @ right."""
    alpha, beta = float(kwargs.get("alpha", 1)), float(kwargs.get("beta", 1))
    steps = [] if alpha == 1 else [Step("multiply", number=alpha)]
    if beta:
        linear = args[0].dim() == 1  # a layer's bias: nothing to hold
        steps.append(Step("add", m.provenance.remember(args[0], not linear), beta))
    m.product(args[1], args[2], out, tuple(steps))


def _linear(m: Matcher, args: Any, kwargs: Any, out: Any) -> None:
    """oneDNN's inner product: X Wᵀ + b, of any number of axes."""
    x, W, b = args[:3]
    if W.layout is not torch.strided:
        W = rows(W)
    if W is None:  # packed by somebody else: only what it read can be told
        m.provenance.node(out).source = m.provenance.node(x).mark
        return
    m.provenance.node(x)  # views that are taken here do not know their base
    of_W = view_of(W.mT, m.provenance.node(W))
    steps = () if b is None else (Step("add", m.provenance.remember(b, False), 1),)
    m.product(x.flatten(0, -2), W.mT, out.flatten(0, -2), steps, of_right=of_W)


def _laid_out(m: Matcher, args: Any, kwargs: Any, out: Any) -> None:
    """A parameter's blocks: what is multiplied by them says so, in `_linear`."""


if hasattr(torch.ops.mkldnn, "_linear_pointwise"):
    HANDLERS[torch.ops.mkldnn._linear_pointwise.default] = _linear
    HANDLERS[torch.ops.mkldnn._reorder_linear_weight.default] = _laid_out


@handles("_softmax.default")
def _softmax(m: Matcher, args: Any, kwargs: Any, out: Any) -> None:
    m.softmax(known(m, args[0]), out, args[1])


@handles("_safe_softmax.default")
def _safe_softmax(m: Matcher, args: Any, kwargs: Any, out: Any) -> None:
    m.softmax(known(m, args[0]), out, args[1], empty_is_zero=True)


@handles("_softmax.out", "softmax.int_out")
def _softmax_into(m: Matcher, args: Any, kwargs: Any, out: Any) -> None:
    m.softmax(known(m, args[0]), out, args[1])


@handles("_masked_softmax.default")
def _masked_softmax(m: Matcher, args: Any, kwargs: Any, out: Any) -> None:
    """PyTorch's fast path: True hides; one mask a sentence (type 1) is over keys."""
    mask, kind = args[1], args[3] if len(args) > 3 else kwargs.get("mask_type")
    if mask.dim() == 2 and kind == 1:
        mask = mask[:, None, None]
    _hidden_softmax(m, args[0], out, mask)


@handles("_nested_tensor_softmax_with_shape.default")
def _nested_softmax(m: Matcher, args: Any, kwargs: Any, out: Any) -> None:
    """PyTorch's fast path over sentences without their padding."""
    lengths = torch.tensor([sentence.shape[0] for sentence in args[1].unbind()])
    padding = (torch.arange(out.shape[-1]) >= lengths[:, None])[:, None, None]
    _hidden_softmax(m, args[0], out, padding, padding.mT)  # queries of padding are left at 0


@handles("_transform_bias_rescale_qkv.default")
def _transformed(m: Matcher, args: Any, kwargs: Any, out: Any) -> None:
    """PyTorch's fast path: q / √d_k, k and v of one tensor, one after the other in memory."""
    q = out[0]
    whole = q.as_strided((3, *q.shape), (q.numel(), *q.stride()), 0)
    node = Node("leaf", whole)
    node.source, node.rescaled = object(), q.shape[-1] ** -0.5
    node.split_heads(1 + 1, 1 + 3)
    m.provenance.put(whole, node)


def _hidden_softmax(m: Matcher, x: Tensor, out: Tensor, *hidden: Tensor) -> None:
    node = known(m, x)
    if node is not None and followed(node):
        for mask in hidden:
            filled = Node("step", out, (node,))
            filled.left, filled.strong, filled.source = node.left, node.strong, node.source
            filled.step = Step("fill", m.provenance.hold(mask), float("-inf"))
            node = filled
    m.softmax(node, out, -1, empty_is_zero=True)


@handles("_log_softmax.default")
def _log_softmax(m: Matcher, args: Any, kwargs: Any, out: Any) -> None:
    node = known(m, args[0])
    if node is not None and followed(node):
        m.provenance.follow("log weights", out, node).dim = args[1]


@handles("exp.default", "exp_.default")
def _exponential(m: Matcher, args: Any, kwargs: Any, out: Any) -> None:
    node = known(m, args[0])
    if node is None or not followed(node):
        return
    if node.kind == "log weights":
        m.softmax(node.parents[0], out, node.dim)
    else:
        m.provenance.follow("exponential", out, node)


@handles("amax.default", "max.dim")
def _row_maximum(m: Matcher, args: Any, kwargs: Any, out: Any) -> None:
    _reduced(m, "row maximum", args, kwargs, out)


@handles("sum.dim_IntList")
def _row_sum(m: Matcher, args: Any, kwargs: Any, out: Any) -> None:
    _reduced(m, "row sum", args, kwargs, out)


@handles("logsumexp.default")
def _logsumexp(m: Matcher, args: Any, kwargs: Any, out: Any) -> None:
    _reduced(m, "logsumexp", args, kwargs, out)


def _reduced(m: Matcher, kind: Kind, args: Any, kwargs: Any, out: Any) -> None:
    node = known(m, args[0])
    if node is None or not followed(node):
        return
    dim = args[1] if len(args) > 1 else kwargs.get("dim")
    if isinstance(dim, list | tuple) and len(dim) == 1:
        dim = dim[0]
    if isinstance(dim, int):
        reduced = out if isinstance(out, Tensor) else out[0]
        made = Node(kind, reduced, (node,))
        made.dim = dim % args[0].dim()
        m.provenance.put(reduced, made)
