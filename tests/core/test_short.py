"""Short texts that train in bfloat16, against the formula in float64."""

import pytest
import torch
from torch import Tensor

from qkv import Mask, attention
from qkv.core import short
from tests.dispatch import watched
from tests.reference import agree, array

SIZES = [(1, 1), (5, 5), (33, 33)]
OPEN = [(3, 33), (33, 3), (1, 9), (40, 20)]


@pytest.fixture(autouse=True)
def _with_such_products(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(short, "BFLOAT16", True)
    monkeypatch.setattr(short, "MUCH", 1)


def drawn(queries: int, keys: int, spread: float = 1.0) -> tuple[Tensor, Tensor, Tensor]:
    """Return queries, keys and values whose heads lie side by side in memory."""
    shapes = ((2, queries, 3, 9), (2, keys, 3, 9), (2, keys, 3, 6))
    q, k, v = (torch.randn(shape).bfloat16().transpose(1, 2) for shape in shapes)
    return (q * spread).requires_grad_(), k.requires_grad_(), v.requires_grad_()


def formula(q: Tensor, k: Tensor, v: Tensor, scale: float, causal: bool) -> Tensor:
    similarities = q @ k.mT * scale
    if causal:
        ahead = torch.ones(q.shape[-2], k.shape[-2]).triu(1).bool()
        similarities = similarities.masked_fill(ahead, -torch.inf)
    return similarities.softmax(-1) @ v


def fused(*operands: Tensor, mask: Mask | None = None, dropout: float = 0.0) -> bool:
    return bool(watched(lambda: attention(*operands, mask, dropout=dropout), grad=True).kernels)


@pytest.mark.parametrize(
    ("queries", "keys", "causal"),
    [*((*size, True) for size in SIZES), *((*size, False) for size in SIZES + OPEN)],
)
@pytest.mark.parametrize("scale", [None, 0.7, 0.0, -0.3])
@pytest.mark.parametrize("spread", [1.0, 4.0])
def test_outputs_and_gradients_are_those_of_the_formula(
    queries: int, keys: int, causal: bool, scale: float | None, spread: float
) -> None:
    """A bfloat16 has 8 bits; a similarity is rounded to them, and is the larger the further off."""
    operands, mask = drawn(queries, keys, spread), Mask.causal() if causal else None
    assert not fused(*operands, mask=mask)
    for tensor in operands:
        tensor.grad = None
    out = attention(*operands, mask, scale=scale)
    change = torch.randn(out.shape).bfloat16()
    out.backward(change)
    wide = [tensor.detach().double().requires_grad_() for tensor in operands]
    exact = formula(*wide, 9**-0.5 if scale is None else scale, causal)
    exact.backward(change.double())
    agree(out, array(exact), 0.03 * spread)
    for ours, wanted in zip(operands, wide, strict=True):
        assert wanted.grad is not None
        top = float(wanted.grad.abs().max())
        agree(ours.grad, array(wanted.grad), 0.02 * spread * max(1.0, top))


def test_what_comes_later_has_no_influence_not_even_nan() -> None:
    q, k, v = drawn(7, 7)
    with torch.no_grad():
        k[:, :, -1], v[:, :, -1] = torch.nan, 0.0
    out = attention(q, k, v, Mask.causal())
    assert out[:, :, :-1].isfinite().all()


@pytest.mark.parametrize(
    "case",
    ["no gradient", "long", "little", "float32", "grouped", "padding", "window", "dropout", "rows"],
)
def test_everything_else_stays_with_the_kernel(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v = drawn(37, 37) if case == "long" else drawn(20, 20)
    mask: Mask | None = Mask.causal()
    match case:
        case "no gradient":
            with torch.no_grad():
                assert watched(lambda: attention(q, k, v, mask)).kernels
            return
        case "little":
            monkeypatch.setattr(short, "MUCH", 1 << 40)
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
    if case == "dropout":  # PyTorch itself forms the weights then
        monkeypatch.setattr(short, "attention", None)
        attention(q, k, v, mask, dropout=0.1)
    else:
        assert fused(q, k, v, mask=mask)
