"""RMSNorm by either way against the formula in float64."""

import pytest
import torch
from torch import nn

from qkv.nn.norm import FEW, RMSNorm
from tests.reference import agree, array

WITHIN = {torch.float32: 2e-6, torch.float64: 1e-13, torch.bfloat16: 4e-2}


@pytest.mark.parametrize("dtype", WITHIN)
@pytest.mark.parametrize("rows", [(1,), (2, 3), (FEW,), (FEW + 1,), (0,), ()])
@pytest.mark.parametrize("gradient", [False, True])
def test_every_row_has_its_root_mean_square_taken_away(
    dtype: torch.dtype, rows: tuple[int, ...], gradient: bool
) -> None:
    x = (3 * torch.randn(*rows, 7) + 2).to(dtype)  # a mean that is not 0: none is taken away
    norm = RMSNorm(7, eps=0.3, dtype=dtype)
    with torch.no_grad():
        norm.weight.normal_()
    wide, weight = x.double(), norm.weight.detach().double()
    wanted = wide / (wide.square().mean(-1, keepdim=True) + 0.3).sqrt() * weight
    with torch.set_grad_enabled(gradient):
        y = norm(x)
    assert y.dtype == dtype
    agree(y, array(wanted), WITHIN[dtype])


def test_it_trains_and_loads_as_pytorchs() -> None:
    ours, theirs = RMSNorm(5, eps=1e-6), nn.RMSNorm(5, eps=1e-6)
    with torch.no_grad():
        theirs.weight.normal_()
    ours.load_state_dict(theirs.state_dict())
    x, change = torch.randn(2, 3, 5), torch.randn(2, 3, 5)
    inputs = [x.clone().requires_grad_() for _ in range(2)]
    for norm, given in zip((ours, theirs), inputs, strict=True):
        norm(given).backward(change)
    agree(inputs[0].grad, array(inputs[1].grad), 1e-5)
    agree(ours.weight.grad, array(theirs.weight.grad), 1e-5)


def test_gradients_equal_finite_differences_twice() -> None:
    x = (torch.randn(2, 3, 5).double() + 1).requires_grad_()
    norm = RMSNorm(5, eps=0.3, dtype=torch.float64)
    gain = torch.randn(5).double().requires_grad_()

    def normalised(x: torch.Tensor, gain: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(norm, {"weight": gain}, (x,))

    assert torch.autograd.gradcheck(normalised, (x, gain))
    assert torch.autograd.gradgradcheck(normalised, (x, gain))
    assert torch.autograd.gradcheck(lambda x: normalised(x, gain.detach()), (x,))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_trains_as_pytorchs(dtype: torch.dtype) -> None:
    """Sums over thousands of rows, and of squares beyond what float16 holds."""
    x = (5 * torch.randn(4096, 700)).to(dtype)
    found = []
    for norm in (RMSNorm(700, eps=1e-6, dtype=dtype), nn.RMSNorm(700, eps=1e-6, dtype=dtype)):
        given = x.clone().requires_grad_()
        y = norm(given)
        y.backward(torch.ones_like(y))
        found.append((y, given.grad, norm.weight.grad))
    for ours, theirs in zip(*found, strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("norm", [RMSNorm(4, eps=1e-6, elementwise_affine=False),
                                  RMSNorm((3, 4), eps=1e-6)])  # fmt: skip
def test_what_pytorchs_takes_it_takes(norm: RMSNorm) -> None:
    x = torch.randn(2, 3, 4, requires_grad=True)
    theirs = nn.RMSNorm(norm.normalized_shape, 1e-6, norm.elementwise_affine)
    agree(norm(x), array(theirs(x)), 1e-6)


def test_rows_of_zeros_have_finite_gradients() -> None:
    x = torch.zeros(2, 5, requires_grad=True)
    RMSNorm(5, eps=1e-6)(x).sum().backward()
    agree(x.grad, array(torch.full((2, 5), 1e3)), 1e-2)


@torch.no_grad()
def test_without_an_eps_it_is_the_dtypes() -> None:
    x = torch.randn(3, 5)
    agree(RMSNorm(5)(x), array(nn.RMSNorm(5)(x)), 1e-6)
