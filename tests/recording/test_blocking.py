"""What a mask hides, in numbers and in words."""

import pytest
import torch
from torch import Tensor

from qkv.core.mask import Mask
from qkv.recording.blocking import Blocking
from qkv.recording.masks import Added, Forbidden, narrowed, recognised
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
