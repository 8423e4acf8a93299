"""The proof: NumPy redoes every step, and whatever was changed by anybody is found and named."""

import dataclasses

import numpy as np
import pytest
import torch

from qkv.core.calculation import Calculation
from qkv.core.operations import Operation
from qkv.core.proof import difference, replay
from qkv.core.steps import attend
from qkv.core.working import Working
from qkv.errors import ArgumentError, VerificationError
from tests.reference import agree

INF = float("inf")


def attention(dtype: torch.dtype = torch.float32, *, queries: int = 4) -> Calculation:
    """A masked attention with a row that may look at nothing."""
    w = Working("attention")
    q, k, v = (
        w.given(name, torch.randn(n, 3).to(dtype), symbol=name.upper())
        for name, n in (("q", queries), ("k", 5), ("v", 5))
    )
    blocked = torch.zeros(queries, 5).masked_fill(torch.rand(queries, 5) < 0.4, -INF)
    blocked[-1] = -INF
    mask = w.given("mask", blocked.to(dtype), symbol="M", blocks=True)
    out = attend(w, q, k, v, mask)
    return w.finish({out: w.tensor(out)})


def tampered(c: Calculation, name: str, by: float) -> Calculation:
    value = c[name].copy()
    row, column = np.argwhere(np.isfinite(value))[0]
    value[row, column] += by
    steps = [dataclasses.replace(s, value=value) if s.name == name else s for s in c]
    return dataclasses.replace(c, steps=tuple(steps))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_an_honest_record_is_confirmed_in_every_precision(dtype: torch.dtype) -> None:
    c = attention(dtype)
    proof = c.verify()
    assert proof.difference <= proof.tolerance <= 16 * torch.finfo(dtype).eps * 30
    assert proof.fused is not None
    assert proof.worst in [step.name for step in c]
    assert set(proof.recomputed) == {step.name for step in c}


@pytest.mark.parametrize(
    "name",
    ["similarities", "scaled", "masked", "maximum", "exponentials", "sums", "weights", "output"],
)
@pytest.mark.parametrize("by", [1e-3, -1e-3, float("nan"), INF])
def test_a_recorded_value_that_was_changed_is_named(name: str, by: float) -> None:
    c = tampered(attention(), name, by)
    with pytest.raises(VerificationError, match=f"^{name}: the recorded value is .* away from its"):
        c.verify()


def test_a_given_value_that_was_changed_shows_in_what_follows() -> None:
    with pytest.raises(VerificationError, match="the recorded value"):
        tampered(attention(), "v", 0.1).verify()


@pytest.mark.parametrize("by", [1e-3, float("nan")])
def test_an_observed_value_that_was_changed_is_named(by: float) -> None:
    c = attention()
    observed = {"output": c.observed["output"] + by}
    with pytest.raises(VerificationError, match=r"^output: the fused value is"):
        dataclasses.replace(c, observed=observed).verify()


def test_an_observed_value_of_another_shape_is_no_match() -> None:
    c = attention()
    with pytest.raises(VerificationError, match="the fused value is inf away"):
        dataclasses.replace(c, observed={"output": c.observed["output"][:1]}).verify()


def test_the_tolerance_may_be_said_and_is_held() -> None:
    c = tampered(attention(torch.float64), "output", 1e-4)
    c.verify(tolerance=2e-4)
    with pytest.raises(VerificationError, match=r"1\.00e-04 away .* 5\.00e-05 is allowed"):
        c.verify(tolerance=5e-5)
    with pytest.raises(VerificationError):
        attention().verify(tolerance=0.0)


def test_a_large_number_elsewhere_does_not_excuse_a_small_one() -> None:
    w = Working("two parts")
    w.given("large", torch.full((1, 1), 1e6), symbol="L")
    x = w.given("x", torch.ones(1, 1), symbol="X")
    w.step(Operation.TANH, "t", x, symbol="T")
    with pytest.raises(VerificationError, match=r"^t: "):
        tampered(w.finish(), "t", 1e-3).verify()


def test_recomputation_starts_from_the_given_matrices_alone() -> None:
    c = attention(torch.float64)
    wrong = tampered(tampered(c, "similarities", 5.0), "weights", 1.0)
    agree(replay(wrong.steps)["output"], c["output"], 1e-12)


def test_a_proof_prints_both_distances() -> None:
    text = str(attention().verify())
    assert text.startswith("recorded against NumPy in float64: ")
    assert "PyTorch's fused output against NumPy: at most " in text
    c = attention()
    assert "fused" not in str(dataclasses.replace(c, observed={}).verify())


def test_difference_of_infinities_and_of_shapes() -> None:
    a = np.array([[1.0, -INF]])
    assert difference(a, np.array([[1.5, -INF]])) == 0.5
    assert difference(a, np.array([[1.0, -1e30]])) == 0.0
    assert difference(a, np.array([[1.0, 0.0]])) == INF
    assert difference(a, np.array([[np.nan, -INF]])) == INF
    assert difference(np.full((1, 1), np.nan), np.full((1, 1), np.nan)) == INF
    assert difference(a, np.array([[1.0]])) == INF
    assert difference(np.zeros((0, 3)), np.zeros((0, 3))) == 0.0


def desserts() -> Calculation:
    w = Working("desserts")
    x = w.given("marks", torch.tensor([[2.0, 1.0, -1.0]], dtype=torch.float64), symbol="X")
    zero = w.constant("no shift", 0.0, symbol="0", like=x)
    e = w.step(Operation.EXPONENTIAL, "powers", x, zero, symbol="U")
    z = w.step(Operation.ROW_SUM, "total", e, symbol="z")
    w.step(Operation.DIVIDE, "shares", e, z, symbol="P")
    return w.finish()


def test_the_judges_desserts_by_hand_with_three_places_are_the_articles() -> None:
    hand = desserts().by_hand(places=3)
    agree(hand.calculation["powers"], [[7.389, 2.718, 0.368]], 1e-12)
    agree(hand.calculation["total"], [[10.475]], 1e-12)
    agree(hand.calculation["shares"], [[0.705, 0.259, 0.035]], 1e-12)
    assert 0 < hand.drift < 1e-3


def test_by_hand_rounds_the_given_numbers_and_every_step_but_no_constant() -> None:
    w = Working("by hand")
    x = w.given("x", torch.tensor([[1.25, -1.25]], dtype=torch.float64), symbol="X")
    third = w.constant("third", 1 / 3, symbol="1/3", like=x)
    w.step(Operation.MULTIPLY, "y", x, third, symbol="Y")
    c = w.finish({"y": w.tensor("y")})
    hand = c.by_hand(places=1)
    agree(hand.calculation["x"], [[1.3, -1.3]], 1e-12)
    assert hand.calculation["third"].item() == 1 / 3
    agree(hand.calculation["y"], [[0.4, -0.4]], 1e-12)
    assert hand.drift == pytest.approx(1.25 / 3 - 0.4, abs=1e-12)
    assert hand.places == 1
    assert str(hand) == "by hand with 1 places: the result drifts by at most 1.7e-02"
    assert not hand.calculation.observed
    assert hand.calculation.title == "by hand, by hand with 1 places"
    agree(c["x"], [[1.25, -1.25]], 0)


def test_a_blocked_row_stays_blocked_by_hand() -> None:
    c = attention(torch.float64)
    hand = c.by_hand(4)
    agree(hand.calculation["weights"][-1], np.zeros(5), 0)
    assert np.isneginf(hand.calculation["masked"][-1]).all()
    assert hand.drift < 1e-3


@pytest.mark.parametrize("places", [-1, 13])
def test_places_beyond_reason_are_refused(places: int) -> None:
    with pytest.raises(ArgumentError, match=f"places is {places}; wanted 0 to 12 decimal places"):
        desserts().by_hand(places)


def test_more_places_drift_less() -> None:
    c = attention(torch.float64)
    drifts = [c.by_hand(places).drift for places in (2, 4, 8, 12)]
    assert drifts == sorted(drifts, reverse=True)
    assert drifts[-1] < 1e-10
