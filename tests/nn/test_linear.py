"""`Linear` is `torch.nn.Linear`: drawn, saved, trained and copied alike."""

import copy

import pytest
import torch
from torch import nn

from qkv.nn.linear import Linear
from tests.reference import agree, array


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("rows", [(), (1,), (2, 3), (40,)])
def test_the_same_seed_gives_pytorchs_weights_and_numbers(
    bias: bool, rows: tuple[int, ...]
) -> None:
    torch.manual_seed(5)
    theirs = nn.Linear(7, 3, bias)
    torch.manual_seed(5)
    ours = Linear(7, 3, bias)
    assert ours.state_dict().keys() == theirs.state_dict().keys()
    x = torch.randn(*rows, 7)
    for grad in (True, False):
        with torch.set_grad_enabled(grad):
            agree(ours(x), array(theirs(x)), 1e-6)
    ours.load_state_dict(theirs.state_dict())
    copied = copy.deepcopy(ours)
    with torch.no_grad():
        copied.weight.zero_()
        agree(ours(x), array(theirs(x)), 1e-6)
