"""The cheapest path against all paths there are, and heads that were made to follow or not."""

import itertools
from functools import cache

import numpy as np
import pytest
import torch
from torch import Tensor

from qkv.errors import ArgumentError
from qkv.models.hearing.alignment import evidence, follows, smoothed, standardised, starts, warp

STEPS = {(1, 1), (1, 0), (0, 1)}


def every_path(rows: int, columns: int) -> list[list[tuple[int, int]]]:
    """All monotone ways from the first to the last corner."""

    @cache
    def to(i: int, j: int) -> list[list[tuple[int, int]]]:
        if (i, j) == (0, 0):
            return [[(0, 0)]]
        before = [(i - a, j - b) for a, b in STEPS if i >= a and j >= b]
        return [[*path, (i, j)] for at in before for path in to(*at)]

    return to(rows - 1, columns - 1)


def total(cost: Tensor, path: list[tuple[int, int]]) -> float:
    return sum(float(cost[at]) for at in path)


# --- the path -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rows", "columns"), [(1, 1), (1, 5), (5, 1), (2, 2), (3, 5), (5, 3), (5, 5), (4, 6)]
)
def test_the_path_is_the_cheapest_of_all(rows: int, columns: int) -> None:
    paths = every_path(rows, columns)
    for _ in range(10):
        cost = torch.randn(rows, columns, dtype=torch.float64)
        assert warp(cost) == min(paths, key=lambda path: total(cost, path))


def test_costs_of_whole_numbers_with_ties_are_no_dearer_than_the_cheapest() -> None:
    paths = every_path(4, 5)
    for _ in range(50):
        cost = torch.randint(-2, 3, (4, 5)).double()
        assert total(cost, warp(cost)) == min(total(cost, path) for path in paths)


def test_a_long_path_is_whole_and_monotone() -> None:
    path = warp(torch.randn(97, 499))
    assert path[0] == (0, 0)
    assert path[-1] == (96, 498)
    assert {(b[0] - a[0], b[1] - a[1]) for a, b in itertools.pairwise(path)} <= STEPS


def test_a_long_path_costs_what_dynamic_programming_in_plain_python_says() -> None:
    cost = torch.randn(31, 101, dtype=torch.float64)
    least = np.full((32, 102), np.inf)
    least[0, 0] = 0
    for i in range(31):
        for j in range(101):
            before = min(least[i, j], least[i, j + 1], least[i + 1, j])
            least[i + 1, j + 1] = float(cost[i, j]) + before
    assert abs(total(cost, warp(cost)) - least[31, 101]) < 1e-10


def test_where_all_cost_the_same_the_path_is_the_shortest() -> None:
    assert warp(torch.ones(3, 3)) == [(0, 0), (1, 1), (2, 2)]
    assert len(warp(torch.ones(3, 7))) == 7


@pytest.mark.parametrize(
    "cost", [torch.zeros(0, 3), torch.zeros(3, 0), torch.tensor([[torch.nan]])]
)
def test_nothing_and_nan_have_no_path(cost: Tensor) -> None:
    with pytest.raises(ArgumentError, match=r"cost is \(.*\); wanted finite numbers, one or more"):
        warp(cost)


# --- what speaks for a token ----------------------------------------------------------------------


def test_every_frame_is_standardised_over_its_tokens() -> None:
    weights = torch.randn(3, 5, 7).softmax(-1)
    x = standardised(weights).numpy()
    w = weights.numpy()
    expected = (w - w.mean(axis=1, keepdims=True)) / w.std(axis=1, keepdims=True)
    np.testing.assert_allclose(x, expected, atol=1e-5)


def test_what_all_tokens_look_at_alike_counts_for_nothing() -> None:
    weights = torch.rand(2, 5, 7)
    weights[:, :, 3] = 0.5
    assert (standardised(weights)[:, :, 3] == 0).all()
    assert (standardised(torch.rand(2, 1, 7)) == 0).all()


@pytest.mark.parametrize("width", [1, 3, 7])
@pytest.mark.parametrize("frames", [7, 11, 23])
def test_the_median_filter_equals_numpys_medians(width: int, frames: int) -> None:
    x = torch.randn(3, 5, frames)
    around = np.pad(x.numpy(), ((0, 0), (0, 0), (width // 2, width // 2)), mode="reflect")
    windows = np.lib.stride_tricks.sliding_window_view(around, width, axis=-1)
    np.testing.assert_array_equal(smoothed(x, width).numpy(), np.median(windows, axis=-1))


def test_fewer_frames_than_the_filter_is_wide_are_smoothed_as_far_as_they_go() -> None:
    x = torch.tensor([[3.0, 1.0, 2.0]])
    assert smoothed(x, 7).tolist() == [[2.0, 1.0, 2.0]]  # of 21312, 13121, 31213
    assert smoothed(torch.tensor([[5.0]]), 7).tolist() == [[5.0]]


@pytest.mark.parametrize("width", [0, 2, -1])
def test_a_filter_without_a_middle_is_refused(width: int) -> None:
    with pytest.raises(ArgumentError, match=f"width is {width}; wanted an odd number"):
        smoothed(torch.zeros(2, 3), width)


def test_the_evidence_is_the_mean_over_heads() -> None:
    weights = torch.rand(3, 5, 29)
    alone = [evidence(weights[i : i + 1]) for i in range(3)]
    torch.testing.assert_close(evidence(weights), sum(alone) / 3)


# --- when each token begins, and which heads know it ----------------------------------------------


def following(begins: list[int], frames: int, noise: float) -> Tensor:
    """Weights of a head whose token i looks at its own stretch of frames."""
    ends = [*begins[1:], frames]
    similarities = noise * torch.randn(len(begins), frames)
    for i, (a, b) in enumerate(zip(begins, ends, strict=True)):
        similarities[i, a:b] += 4
    return similarities.softmax(-1)


BEGINS = [0, 11, 40, 53, 97, 120]


def test_tokens_begin_where_the_heads_begin_to_look() -> None:
    heads = torch.stack([following(BEGINS, 151, 0.5) for _ in range(3)])
    assert np.abs(np.array(starts(heads)) - BEGINS).max() <= 2
    assert starts(heads)[0] == 0


def test_a_head_that_always_rests_on_one_frame_does_not_disturb() -> None:
    heads = torch.stack([following(BEGINS, 151, 0.5) for _ in range(3)])
    heads[:, :, 77] = 5.0
    assert np.abs(np.array(starts(heads)) - BEGINS).max() <= 2


def test_no_heads_have_no_starts() -> None:
    with pytest.raises(ArgumentError, match=r"weights are \(0, 5, 7\); wanted one head or more"):
        starts(torch.zeros(0, 5, 7))


def test_a_head_that_follows_is_told_from_those_that_do_not() -> None:
    tokens, frames = 31, 601
    begins = torch.linspace(0, frames - 20, tokens).long().tolist()
    head = following(begins, frames, 0.5)
    resting = (0.2 * torch.randn(tokens, frames) + 6 * (torch.arange(frames) == 77)).softmax(-1)
    measures = {
        "follows": follows(head),
        "backwards": follows(head.flip(0)),
        "rests": follows(resting),
        "everywhere": follows(torch.rand(tokens, frames).softmax(-1)),
        "in any order": follows(head[torch.randperm(tokens)]),
    }
    assert measures.pop("follows") > 0.8
    assert max(measures.values()) < 0.5, measures


def test_the_measure_is_a_share() -> None:
    assert follows(torch.eye(7)) == 1.0
    assert follows(torch.full((5, 7), 1 / 7)) == 0.0
    assert 0 <= follows(torch.rand(5, 200), within=0) < follows(torch.rand(5, 200)) <= 1


@pytest.mark.parametrize("shape", [(1, 7), (0, 7), (3, 0)])
def test_one_token_alone_cannot_follow(shape: tuple[int, int]) -> None:
    with pytest.raises(ArgumentError, match="wanted two tokens or more"):
        follows(torch.rand(shape))
