"""Steps in words: every operation has an equation, and numbers are spelled out as on paper."""

import pytest
import torch

from qkv import SelfAttention
from qkv.core.operations import INPUTS, SELECTING, Operation
from qkv.core.working import Working
from qkv.show.spelling import _SPELLED, EQUATIONS, equation, number, spelled

C = torch.tensor([[1.16, 0.23], [0.57, 1.36], [4.41, -2.16]])


@pytest.fixture
def calculation():
    torch.manual_seed(42)
    return SelfAttention(2).explain(C, tokens=["draw", "a", "map"])


def test_every_operation_of_the_closed_set_has_an_equation():
    assert set(EQUATIONS) == set(Operation) - INPUTS


def test_every_operation_that_calculates_can_be_spelled_out():
    moves = {
        Operation.TRANSPOSE, Operation.CONCATENATE, Operation.ROTATE_HALVES,
        Operation.ROTATE_PAIRS,
    }  # fmt: skip
    assert set(_SPELLED) == set(Operation) - INPUTS - SELECTING - moves


@pytest.mark.parametrize(
    ("step", "wanted"),
    [
        ("queries", "Q = X WQᵀ"),
        ("similarities", "Q Kᵀ"),
        ("scaled", "S = Q Kᵀ / √d_k"),
        ("maximum", "m = largest of each row of S"),
        ("exponentials", "U = e^(S - m)"),
        ("sums", "z = sum of each row of U"),
        ("weights", "P = U / z"),
        ("output", "P V"),
        ("encodings", "X"),
    ],
)
def test_the_equations_of_attention(calculation, step, wanted):
    assert equation(calculation.step(step), calculation) == wanted


def test_the_first_query_number_is_spelled_as_the_article_spells_it(calculation):
    told = spelled(calculation.step("queries"), calculation)
    assert told == "1.1600 × 0.5406 + 0.2300 × 0.5869 = 0.7621"


def test_any_entry_can_be_spelled_and_negative_numbers_stand_in_brackets(calculation):
    told = spelled(calculation.step("keys"), calculation, row=2, column=1)
    assert told == "4.4100 × (-0.3443) + (-2.1600) × 0.4153 = -2.4152"


def test_what_is_given_is_not_spelled(calculation):
    assert spelled(calculation.step("encodings"), calculation) is None


def test_long_sums_say_how_many_terms_they_have():
    w = Working("long")
    x = w.given("x", torch.ones(1, 7), symbol="X")
    w.step(Operation.ROW_SUM, "sum", x, symbol="z")
    c = w.finish()
    assert spelled(c.step("sum"), c) == "1.0000 + 1.0000 + 1.0000 + … (7 terms) = 7.0000"


def test_a_sum_as_a_factor_stands_in_brackets():
    w = Working("brackets")
    x, y = (w.given(s, torch.ones(2, 2), symbol=s) for s in "XY")
    added = w.step(Operation.ADD, "added", x, y, symbol="X + Y")
    w.step(Operation.PRODUCT_TRANSPOSED, "p", y, added, symbol="R")
    c = w.finish()
    assert equation(c.step("p"), c) == "R = Y (X + Y)ᵀ"


@pytest.mark.parametrize(
    ("x", "wanted"),
    [(-1e23, "-∞"), (float("-inf"), "-∞"), (-0.0, "0.0000"), (1.5, "1.5000"), (2e9, "2.0000e+09")],
)
def test_numbers_are_printed_the_same_everywhere(x, wanted):
    assert number(x) == wanted
