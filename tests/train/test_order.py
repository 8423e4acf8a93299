"""The order of examples: all of them, in an order of chance that only seed and step decide."""

from itertools import islice, pairwise

import numpy as np
import pytest

from qkv.errors import ArgumentError
from qkv.train.order import OfLikeLength, Order, Shuffled

LENGTHS = np.random.default_rng(5).integers(1, 30, size=997)

ORDERS = {
    "shuffled": lambda seed=2: Shuffled(61, 7, seed),
    "of like length": lambda seed=2: OfLikeLength(LENGTHS, 128, seed),
}


@pytest.fixture(params=ORDERS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def taken(order: Order, step: int, count: int) -> list[list[int]]:
    return [batch.tolist() for batch in islice(order.batches(step), count)]


def test_from_any_step_on_it_is_as_if_it_had_begun_at_the_first(kind: str) -> None:
    order = ORDERS[kind]()
    whole = taken(order, 0, 400)
    for step in (0, 1, 7, 8, 9, 80, 250):
        assert taken(ORDERS[kind](), step, 100) == whole[step : step + 100]


def test_another_epoch_and_another_seed_are_another_order(kind: str) -> None:
    order, other = ORDERS[kind](), ORDERS[kind](3)
    first = [batch.tolist() for batch in order.epoch(0)]
    assert first != [batch.tolist() for batch in order.epoch(1)]
    assert first != [batch.tolist() for batch in other.epoch(0)]
    assert first == [batch.tolist() for batch in ORDERS[kind]().epoch(0)]


@pytest.mark.parametrize("epoch", [0, 1])
def test_shuffled_takes_each_example_once_but_for_what_fills_no_batch(epoch: int) -> None:
    batches = Shuffled(61, 7, 2).epoch(epoch)
    numbers = np.concatenate(batches)
    assert [len(batch) for batch in batches] == [7] * 8
    assert len(set(numbers.tolist())) == 56
    assert numbers.min() >= 0
    assert numbers.max() < 61


def test_what_is_left_out_changes_from_epoch_to_epoch() -> None:
    order = Shuffled(61, 7, 2)
    seen = {n for epoch in range(6) for batch in order.epoch(epoch) for n in batch.tolist()}
    assert seen == set(range(61))


def test_fewer_examples_than_a_batch_are_one_batch() -> None:
    assert sorted(Shuffled(3, 7, 2).epoch(0)[0].tolist()) == [0, 1, 2]


def test_of_like_length_takes_each_example_once() -> None:
    batches = OfLikeLength(LENGTHS, 128, 2).epoch(0)
    assert sorted(np.concatenate(batches).tolist()) == list(range(len(LENGTHS)))


def test_a_batch_of_like_length_holds_no_more_tokens_than_wanted() -> None:
    for batch in OfLikeLength(LENGTHS, 128, 2).epoch(0):
        assert len(batch) * LENGTHS[batch].max() <= 128


def test_little_of_a_batch_of_like_length_is_padding() -> None:
    batches = OfLikeLength(LENGTHS, 128, 2).epoch(0)
    padded = sum(len(batch) * int(LENGTHS[batch].max()) for batch in batches)
    assert LENGTHS.sum() / padded > 0.95


def test_batches_of_like_length_come_in_no_order_of_length() -> None:
    longest = [int(LENGTHS[batch].max()) for batch in OfLikeLength(LENGTHS, 128, 2).epoch(0)]
    rises = sum(a <= b for a, b in pairwise(longest))
    assert 0.3 < rises / (len(longest) - 1) < 0.7


def test_an_example_that_is_longer_than_a_batch_is_one_by_itself() -> None:
    batches = OfLikeLength([5, 200, 6, 7], 20, 0).epoch(0)
    assert [1] in [batch.tolist() for batch in batches]


@pytest.mark.parametrize("make", [lambda: Shuffled(0, 7, 2), lambda: OfLikeLength([], 7, 2)])
def test_no_examples_are_refused(make: type) -> None:
    with pytest.raises(ArgumentError, match="no examples to train on; wanted 1 or more"):
        make()


def test_examples_without_tokens_are_refused() -> None:
    with pytest.raises(ArgumentError, match="example 2 has 0 tokens; wanted 1 or more"):
        OfLikeLength([3, 1, 0, 0], 7, 2)
