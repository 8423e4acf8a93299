"""RMSNorm by either way against the formula in float64."""

import pytest
import torch
from torch import nn

from qkv.core.product import FEW
from qkv.nn.norm import RMSNorm
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
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(2, 5)
    ours(x).sum().backward()
    theirs(x).sum().backward()
    assert torch.equal(ours.weight.grad, theirs.weight.grad)


@torch.no_grad()
def test_without_an_eps_it_is_the_dtypes() -> None:
    x = torch.randn(3, 5)
    agree(RMSNorm(5)(x), array(nn.RMSNorm(5)(x)), 1e-6)
