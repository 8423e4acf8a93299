"""Short texts that train in bfloat16, against the formula in float64."""

import pytest
import torch
from torch import Tensor

from qkv import Mask, attention
from qkv.core import short
from tests.reference import agree, array

SIZES = [(1, 1), (5, 5), (64, 64), (65, 65), (131, 131), (256, 256)]
OPEN = [(3, 70), (70, 3), (1, 256), (300, 200)]


@pytest.fixture(autouse=True)
def _with_such_products(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(short, "BFLOAT16", True)


def drawn(queries: int, keys: int, d_v: int = 6) -> tuple[Tensor, ...]:
    """Return queries, keys and values whose heads lie side by side in memory."""
    shapes = ((2, queries, 3, 8), (2, keys, 3, 8), (2, keys, 3, d_v))
    return tuple(torch.randn(shape).bfloat16().transpose(1, 2).requires_grad_() for shape in shapes)


def formula(q: Tensor, k: Tensor, v: Tensor, scale: float, causal: bool) -> Tensor:
    similarities = q @ k.mT * scale
    if causal:
        ahead = torch.ones(q.shape[-2], k.shape[-2]).triu(1).bool()
        similarities = similarities.masked_fill(ahead, -torch.inf)
    return similarities.softmax(-1) @ v


@pytest.mark.parametrize(
    ("queries", "keys", "causal"),
    [*((*size, True) for size in SIZES), *((*size, False) for size in SIZES + OPEN)],
)
@pytest.mark.parametrize("scale", [None, 0.7, 0.0, -0.3])
def test_outputs_and_gradients_are_those_of_the_formula(
    queries: int, keys: int, causal: bool, scale: float | None
) -> None:
    """A bfloat16 has 8 bits: sums of some hundred rounded numbers agree to a few hundredths."""
    operands = drawn(queries, keys)
    out = attention(*operands, Mask.causal() if causal else None, scale=scale)
    assert out.grad_fn is not None
    assert "_Attention" in type(out.grad_fn).__name__
    change = torch.randn(out.shape).bfloat16()
    out.backward(change)
    wide = [tensor.detach().double().requires_grad_() for tensor in operands]
    exact = formula(*wide, 8**-0.5 if scale is None else scale, causal)
    exact.backward(change.double())
    agree(out, array(exact), 0.03)
    for ours, wanted in zip(operands, wide, strict=True):
        top = float(wanted.grad.abs().max())
        agree(ours.grad, array(wanted.grad), 0.02 * max(1.0, top))


def test_what_does_not_learn_gets_no_gradient_and_the_rest_does() -> None:
    q, k, v = drawn(5, 5)
    q, k = q.detach(), k.detach()
    attention(q, k, v).sum().backward()
    assert v.grad is not None
    assert q.grad is None


@pytest.mark.parametrize(
    "case", ["no gradient", "long", "float32", "grouped", "padding", "window", "dropout", "rows"]
)
def test_everything_else_stays_with_the_kernel(case: str) -> None:
    q, k, v = drawn(257, 257) if case == "long" else drawn(20, 20)
    mask: Mask | None = Mask.causal()
    match case:
        case "no gradient":
            q, k, v = (tensor.detach() for tensor in (q, k, v))
        case "float32":
            q, k, v = (tensor.detach().float().requires_grad_() for tensor in (q, k, v))
        case "grouped":
            k, v = k[:, :1], v[:, :1]
        case "padding":
            mask = Mask.causal() & Mask.padding([20, 7])
        case "window":
            mask = Mask.window(5)
        case "rows":
            q = q[:, :, :10]
    out = attention(q, k, v, mask, dropout=0.1 if case == "dropout" else 0.0)
    assert "_Attention" not in type(out.grad_fn).__name__
