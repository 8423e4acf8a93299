"""What is filled in or added, and which of it is meant to hide."""

from math import inf

import pytest
import torch

from qkv.recording.calls.masks import Forbidden
from qkv.recording.calls.terms import Filled, Summand
from tests.recording.programs import LEAST, added, triangle

VISIBLE = triangle(6, 8)


@pytest.mark.parametrize("number", [-inf, LEAST, -1e30, -1e9, -10000.0])
def test_what_is_low_is_meant_to_hide_and_what_is_left_is_no_bias(number: float) -> None:
    summand = Summand(added(VISIBLE, number), 1.0)
    assert torch.equal(summand.closed(summand.values), ~VISIBLE)
    assert summand.spread == 0
    assert summand.finite == (number > -inf)


def test_numbers_beside_what_hides_are_a_bias() -> None:
    bias = torch.rand(1, 3, 6, 8) * 5 - 2
    summand = Summand(bias.masked_fill(~VISIBLE, LEAST), 1.0)
    assert torch.equal(summand.closed(summand.values), (~VISIBLE).expand(1, 3, 6, 8))
    assert summand.spread == pytest.approx(float(bias.masked_fill(~VISIBLE, 0).abs().max()))


def test_small_numbers_hide_nothing() -> None:
    summand = Summand(torch.randn(1, 3, 6, 8) * 10, 1.0)
    assert not summand.closed(summand.values).any()
    assert not summand.finite


def test_the_factor_decides_what_hides() -> None:
    """XLNet takes 1E+30 times a mask of ones away."""
    ones = (~VISIBLE).float()
    assert torch.equal(Summand(ones, -1e30).closed(ones), ~VISIBLE)
    assert not Summand(ones, -1.0).closed(ones).any()


def test_infinity_beside_a_finite_number_is_told() -> None:
    mask = added(VISIBLE, -inf)
    mask[..., 0, 7] = LEAST
    assert Summand(mask, 1.0).finite


@pytest.mark.parametrize("when", [True, False])
def test_a_filled_mask_is_handed_on_by_reference(when: bool) -> None:
    values = ~VISIBLE if when else VISIBLE
    filled = Filled(values, when, -inf)
    assert torch.equal(filled.closed(values), ~VISIBLE)
    part = filled.by_reference
    assert part.values.data_ptr() == values.data_ptr()
    assert isinstance(part, Forbidden) == when
