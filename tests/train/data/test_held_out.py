"""What is held out: by the seed, as many as wanted, never beside its like."""

from typing import Any

import numpy as np
import pytest

from qkv.errors import ArgumentError
from qkv.train.data.held_out import held_out
from qkv.train.data.pictures import DigitPictures


@pytest.mark.parametrize(
    ("wanted", "number"), [(0.1, 10), (7, 7), (1, 1), (0.999, 100), (100, 100)]
)
def test_as_many_are_held_out_as_wanted(wanted: float, number: int) -> None:
    training, apart = held_out(101, wanted, 0) if number < 100 else held_out(101, 100, 0)
    assert len(apart) == number
    assert sorted([*training, *apart]) == list(range(101))
    assert list(training) == sorted(training)


def test_the_seed_decides_which() -> None:
    first, again, other = (held_out(1000, 100, seed)[1] for seed in (3, 3, 4))
    assert list(first) == list(again)
    assert list(first) != list(other)


def test_every_example_is_as_likely() -> None:
    met = np.zeros(13)
    for seed in range(2000):
        met[held_out(13, 3, seed)[1]] += 1
    assert abs(met / 2000 - 3 / 13).max() < 0.04


def test_alike_are_on_one_side(seed: int) -> None:
    texts = [f"text {n}" for n in np.random.default_rng(seed).integers(0, 150, size=500)]
    training, apart = held_out(500, 0.2, seed, alike=texts)
    assert not {texts[i] for i in training} & {texts[i] for i in apart}
    assert 100 <= len(apart) < 115


def test_of_each_stratum_the_same_share_is_held_out() -> None:
    labels = ["many"] * 200 + ["few"] * 50 + ["two"] * 2
    _, apart = held_out(252, 0.2, 1, strata=labels)
    assert [labels[i] for i in apart] == ["many"] * 40 + ["few"] * 10
    alike = [n % 126 for n in range(252)]  # mostly of two labels
    training, apart = held_out(252, 0.2, 1, strata=labels, alike=alike)
    assert set(training % 126) == set(range(126)) - set(apart % 126)
    assert len(apart) >= 50


@pytest.mark.parametrize("wanted", [0, 10, 11, -1, 0.0, 1.0, float("nan"), True])
def test_none_or_all_are_refused(wanted: float) -> None:
    with pytest.raises(ArgumentError, match="of 10 examples; wanted some, and not all"):
        held_out(10, wanted, 0)


@pytest.mark.parametrize("seed", [-1, 1.5, True, "0"])
@pytest.mark.usefixtures("as_shipped")
def test_a_seed_that_is_none_is_named(seed: Any) -> None:
    for divide in (lambda: held_out(9, 3, seed), lambda: DigitPictures.open(seed)):
        with pytest.raises(ArgumentError, match=f"seed is {seed!r}; wanted a whole number"):
            divide()


def test_what_leaves_nothing_is_refused() -> None:
    with pytest.raises(ArgumentError, match="wanted is 1 of 0 examples"):
        held_out(0, 1, 0)
    with pytest.raises(ArgumentError, match="leaves nothing held out"):
        held_out(4, 0.1, 0)
    with pytest.raises(ArgumentError, match="leaves nothing to train on"):
        held_out(4, 2, 0, alike=["the same"] * 4)
    with pytest.raises(ArgumentError, match=r"strata is of shape \(3,\); wanted \(4,\)"):
        held_out(4, 2, 0, strata=[1, 2, 3])
