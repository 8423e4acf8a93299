"""The learning rate: a line up, half a cosine down."""

import math
from itertools import pairwise

import pytest

from qkv.train.schedule import learning_rate
from qkv.train.settings import Settings


def rates(**changes: float) -> list[float]:
    settings = Settings(**{"steps": 30, "batch": 1, "learning_rate": 0.4, "warmup": 10} | changes)
    return [learning_rate(step, settings) for step in range(settings.steps)]


def test_it_rises_in_equal_steps_from_nothing_and_then_falls() -> None:
    found = rates()
    assert found[:10] == pytest.approx([0.04 * t for t in range(1, 11)])
    assert all(a > b for a, b in pairwise(found[9:]))


def test_half_way_down_it_is_the_mean_of_the_largest_and_the_last() -> None:
    assert rates(final_share=0.2)[19] == pytest.approx((0.4 + 0.08) / 2)


def test_a_third_of_the_way_down_the_cosine_is_that_of_sixty_degrees() -> None:
    found = rates(warmup=0, final_share=0.0)
    assert found[9] == pytest.approx(0.4 * (1 + math.cos(math.pi / 3)) / 2)


def test_the_last_is_the_smallest_share() -> None:
    assert rates(final_share=0.25)[-1] == pytest.approx(0.1)
    assert rates(final_share=1.0)[-1] == pytest.approx(0.4)


@pytest.mark.parametrize("warmup", [30, 31, 100])
def test_a_warm_up_that_lasts_to_the_end_never_falls(warmup: int) -> None:
    assert rates(warmup=warmup) == pytest.approx([0.4 * t / warmup for t in range(1, 31)])


def test_one_step_without_a_warm_up_is_the_last() -> None:
    assert rates(steps=1, warmup=0, final_share=0.5) == pytest.approx([0.2])
