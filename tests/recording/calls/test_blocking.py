"""What a mask hides, in numbers and in words."""

import pytest
import torch
from torch import Tensor

from qkv.core.mask import Mask
from qkv.core.mask_parts import Band
from qkv.recording.calls.blocking import Blocking
from qkv.recording.calls.masks import Added, Forbidden, narrowed, recognised
from tests.recording.programs import real, triangle


def read(visible: Tensor, queries: int, keys: int) -> Blocking:
    mask = recognised(narrowed(visible), torch.logical_not, queries, keys)
    assert mask is not None
    return Blocking.of(mask, queries, keys)


def window(keys: int, before: int, after: int) -> Tensor:
    distance = torch.arange(keys) - torch.arange(keys)[:, None]
    return ((distance >= -before) & (distance <= after))[None, None]


@pytest.mark.parametrize(
    ("visible", "words"),
    [
        (triangle(4, 4), "causal"),
        (triangle(4, 6), "causal (the last query sees the last key)"),
        (triangle(4, 6, 0), "causal (query 1 sees key 1)"),
        (triangle(4, 8, 2), "causal (query 1 sees up to key 3)"),
        (triangle(6, 6) & window(6, 2, 9), "causal, window of 2 before"),
        (real([6, 6], 6), "all open"),
        (real([4, 4], 6), "2 keys hidden"),
        (triangle(6, 6) & real([6, 4], 6), "causal, 0 to 2 keys hidden"),
    ],
)
def test_blocking_says_in_words_what_is_hidden(visible: Tensor, words: str) -> None:
    queries, keys = max(visible.shape[-2], 4), visible.shape[-1]
    assert str(read(visible, queries, keys)) == words


def test_blocking_of_no_mask_is_all_open() -> None:
    assert str(Blocking.of(None, 3, 5)) == "all open"


def test_what_is_not_recognised_is_said_to_be_so() -> None:
    hidden = torch.rand(1, 1, 5, 5) < 0.5
    bias = torch.randn(1, 2, 5, 5)
    blocking = Blocking.of(Mask((Forbidden(hidden), Added(bias))), 5, 5)
    assert str(blocking) == "pairs hidden one by one, numbers added"


def test_the_numbers_are_those_of_the_mask() -> None:
    blocking = read(triangle(6, 9) & real([9, 7], 9), 6, 9)
    assert (blocking.causal, blocking.offset, blocking.window) == (True, 3, None)
    assert blocking.padding is not None
    assert blocking.padding.sum(-1).tolist() == [0, 2]
    assert (blocking.queries, blocking.keys) == (6, 9)
    assert not blocking.biased
    assert not blocking.other


def test_a_window_that_is_causal_is_both() -> None:
    blocking = read(window(9, 3, 0), 9, 9)
    assert (blocking.causal, blocking.offset, blocking.window) == (True, 0, (3, 0))


@pytest.mark.parametrize(
    ("mask", "words", "hidden"),
    [
        (Mask.keys(torch.tensor([True, False, True])), "1 keys hidden", [[1]]),
        (Mask.keys(torch.tensor([[[True, False, True]]])), "1 keys hidden", [[1]]),
        (Mask.padding([2, 3]), "0 to 1 keys hidden", [[2], []]),
        (Mask.padding([2, 3], "left") & Mask.causal(), "causal, 0 to 1 keys hidden", [[0], []]),
        (Mask.padding([2, 1]) | Mask.padding([1, 1], "left"), "0 to 1 keys hidden", [[], [1]]),
    ],
)
def test_keys_hidden_by_any_kind_of_part_are_padding(
    mask: Mask, words: str, hidden: list[list[int]]
) -> None:
    blocking = Blocking.of(mask, 3, 3)
    assert str(blocking) == words
    assert blocking.padding is not None
    assert [row.nonzero().flatten().tolist() for row in blocking.padding] == hidden


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        (None, 3, "window of all before and 3 after"),
        (2, 20, "window of 2 before and all after"),
        (0, 0, "causal, window of the own key alone"),
        (2, 0, "causal, window of 2 before"),
        (0, 3, "window of 3 after"),
    ],
)
def test_a_side_without_an_edge_is_seen_whole(before: int | None, after: int, words: str) -> None:
    assert str(Blocking.of(Mask((Band(before, after),)), 9, 9)) == words


def test_pairs_that_differ_by_query_and_head_are_no_padded_queries() -> None:
    rows = Mask.allow(torch.tensor([True, True, False])[:, None])
    assert str(Blocking.of(rows, 3, 3)) == "pairs hidden one by one"


def test_pairs_hidden_one_by_one_are_said_to_differ_by_head_or_example() -> None:
    padding = Mask.padding([2, 3])  # which differs by example, and is something else
    for axes, words in (
        ((1, 1), ""),
        ((2, 1), " (for each example)"),
        ((1, 4), " (for each head)"),
        ((2, 4), " (for each example and for each head)"),
    ):
        mask = Mask.allow(torch.rand(*axes, 3, 3) < 0.5) & padding
        assert str(Blocking.of(mask, 3, 3)) == f"0 to 1 keys hidden, pairs hidden one by one{words}"
