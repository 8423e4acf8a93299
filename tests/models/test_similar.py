"""Cosines and groups, beside NumPy and beside every grouping that there is."""

import itertools

import numpy as np
import pytest
import torch

from qkv.errors import ArgumentError
from qkv.models import similar
from qkv.models.similar import groups, nearest, similarities


@pytest.mark.parametrize(("texts", "n_embed"), [(7, 5), (6, 6), (2, 3), (1, 4)])
def test_similarities_are_the_cosines_of_numpy(texts: int, n_embed: int) -> None:
    x = torch.randn(texts, n_embed) * torch.rand(texts, 1) * 9
    rows = x.double().numpy()
    norms = np.linalg.norm(rows, axis=1)
    wanted = rows @ rows.T / np.outer(norms, norms)
    np.testing.assert_allclose(similarities(x).numpy(), wanted, atol=1e-12)


@pytest.mark.parametrize("block", [1, 40, 1 << 22])
@pytest.mark.parametrize(("texts", "most"), [(13, 3), (13, 99), (2, 1)])
def test_the_nearest_are_the_largest_cosines_but_not_the_row_itself(
    monkeypatch: pytest.MonkeyPatch, block: int, texts: int, most: int
) -> None:
    monkeypatch.setattr(similar, "BLOCK", block)
    x = torch.randn(texts, 5)
    cosines, places = nearest(x, most)
    assert cosines.shape == places.shape == (texts, min(most, texts - 1))
    all_of_them = similarities(x).numpy()
    for i in range(texts):
        order = [j for j in np.argsort(-all_of_them[i], kind="stable") if j != i][:most]
        assert places[i].tolist() == order
        np.testing.assert_allclose(cosines[i].numpy(), all_of_them[i, order], atol=1e-12)


def test_of_copies_the_first_is_the_nearest() -> None:
    _, places = nearest(torch.ones(4, 3), 2)
    assert places.tolist() == [[1, 2], [0, 2], [0, 1], [0, 1]]


@pytest.mark.parametrize(("texts", "most"), [(1, 1), (3, 0)])
def test_one_row_has_no_nearest(texts: int, most: int) -> None:
    with pytest.raises(ArgumentError, match="wanted 2 and 1, or more"):
        nearest(torch.randn(texts, 3), most)


def fit(x: np.ndarray, labels: tuple[int, ...]) -> float:
    """Σ |Σ x_i| over the groups: that is Σ x_i · centre."""
    return sum(
        np.linalg.norm(x[[i for i, own in enumerate(labels) if own == c]].sum(axis=0))
        for c in set(labels)
    )


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("number", [1, 2, 3])
def test_no_other_grouping_fits_better(seed: int, number: int) -> None:
    x = torch.randn(7, 4, generator=torch.Generator().manual_seed(seed))
    found = groups(x * 4, number)  # a power of two: no rounding
    rows = (x.double() / x.double().norm(dim=-1, keepdim=True)).numpy()
    every = itertools.product(range(number), repeat=7)
    best = max(fit(rows, labels) for labels in every if len(set(labels)) == number)
    assert sum(sum(group.cosines) for group in found) == pytest.approx(best, abs=1e-9)


def test_groups_that_lie_apart_are_found_whatever_their_order() -> None:
    middles = torch.eye(5)[:3]
    own = torch.tensor([0] * 11 + [1] * 7 + [2] * 5)[torch.randperm(23)]
    found = groups(middles[own] + 0.1 * torch.randn(23, 5), 3)
    assert [len(group.members) for group in found] == [11, 7, 5]
    for group, which in zip(found, range(3), strict=True):
        assert {int(own[i]) for i in group.members} == {which}
        assert list(group.cosines) == sorted(group.cosines, reverse=True)


def test_cosines_are_those_with_the_mean_of_the_members() -> None:
    x = torch.nn.functional.normalize(torch.randn(9, 4).double(), dim=-1)
    for group in groups(x, 2):
        members = x[list(group.members)]
        centre = torch.nn.functional.normalize(members.sum(dim=0), dim=-1)
        assert group.cosines == pytest.approx((members @ centre).tolist(), abs=1e-12)


def test_the_same_rows_give_the_same_groups_and_torchs_own_numbers_stay() -> None:
    x = torch.randn(40, 6)
    before = torch.get_rng_state()
    assert groups(x, 5) == groups(x, 5)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("number", [1, 2, 3, 5])
def test_copies_are_grouped_and_no_group_is_empty(number: int) -> None:
    found = groups(torch.ones(5, 3), number)
    assert sorted(i for group in found for i in group.members) == list(range(5))
    assert len(found) == number
    assert all(group.members for group in found)


@pytest.mark.parametrize("number", [0, -1, 5])
def test_more_groups_than_texts_are_refused(number: int) -> None:
    with pytest.raises(ArgumentError, match=f"number is {number} for 4 texts; wanted 1 to 4"):
        groups(torch.randn(4, 3), number)
