"""Calls that continue each other over a cache are one matrix; others are not."""

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from qkv.recording.calls.call import Call
from qkv.recording.calls.operands import Operation
from qkv.recording.memory.joining import Joining, why_apart
from qkv.recording.memory.rows import CHUNK
from tests.recording import generations
from tests.recording.generations import beams, call, dynamic, sequence, static, windowed

EXACT = 1e-12
"""Everything is in float64, and of the order of 1."""


def taken(calls: Sequence[Call]) -> Joining:
    joining = Joining()
    for one in calls:
        joining.take(one)
    return joining


def band(queries: int, window: int | None = None) -> Tensor:
    i = torch.arange(queries)
    far = queries if window is None else window
    return (i[:, None] >= i) & (i > i[:, None] - far)


CACHES: dict[str, tuple[Callable[[generations.Sequence], list[Call]], int | None]] = {
    "keys are appended": (lambda whole: dynamic(whole, 4), None),
    "three at a time": (lambda whole: dynamic(whole, 5, 3), None),
    "constant size": (lambda whole: static(whole, 4, 17), None),
    "a window shorter than the prompt": (lambda whole: windowed(whole, 7, 5), 5),
    "a window longer than the prompt": (lambda whole: windowed(whole, 2, 3), 3),
}


@pytest.mark.parametrize("cache", CACHES)
def test_a_generation_is_the_matrix_of_the_whole_sequence(cache: str) -> None:
    make, window = CACHES[cache]
    whole = sequence(11)
    calls = make(whole)
    joining = taken(calls)
    (generation,) = joining.of(calls)
    joined, open_ = generation.joined, band(11, window)
    assert joined.shape == (2, 4, 11, 11)
    expected = generations.weights(whole.q, whole.k, open_)
    torch.testing.assert_close(joined.weights.dense(), expected, rtol=0, atol=EXACT)
    output = generations.attended(whole.q, whole.k, whole.v, open_)
    torch.testing.assert_close(joined.output, output, rtol=0, atol=EXACT)
    assert joined.error < EXACT
    assert set(joining.runs().values()) == {0}


@pytest.mark.parametrize("cache", CACHES)
def test_steps_answer_as_they_did_before_they_were_joined(cache: str) -> None:
    make, _ = CACHES[cache]
    whole = sequence(9)
    calls, again = make(whole), make(whole)
    taken(calls)
    for joined, alone in zip(calls, again, strict=True):
        torch.testing.assert_close(
            joined.weights.dense(), alone.weights.dense(), rtol=0, atol=EXACT
        )
        seen = alone.weights.dense().sum(dim=(0, 1, 2)) > 0  # rows not written yet are hidden
        assert torch.equal(joined.k[..., seen, :], alone.k[..., seen, :])
        assert torch.equal(joined.v[..., seen, :], alone.v[..., seen, :])


def test_only_the_keys_of_the_last_step_are_kept() -> None:
    whole = sequence(40, batch=1)
    calls = dynamic(whole, 4)
    taken(calls)
    memory = {one.k.untyped_storage().data_ptr() for one in calls}
    assert memory == {calls[-1].k.untyped_storage().data_ptr()}
    held = {one.q.untyped_storage().data_ptr() for one in calls[:-1]}
    assert len(held) == 1  # rows of one tensor of their own, not of whatever the model had
    assert calls[0].q.untyped_storage().nbytes() == CHUNK * whole.q[..., 0, :].nbytes


def test_a_mask_that_steps_of_one_run_share_is_kept_once() -> None:
    whole, mask = sequence(6), torch.rand(1, 1, 1, 6) > 0.3

    def made(path: str, run: int, rows: range) -> Call:
        q = whole.q[..., rows.start : rows.stop, :]
        k, v = (x[..., : rows.stop, :].clone() for x in (whole.k, whole.v))
        hides = mask[..., : rows.stop]
        hidden = Operation("fill", lambda: hides, -torch.inf)
        one = call(q, k, v, ~hides[0, 0].expand(len(rows), -1), run, hidden)
        one.place = one.place._replace(path=path)
        return one

    calls = [made(path, run, rows) for run, rows in enumerate(generations.steps(6, 4))
             for path in ("first", "second")]  # fmt: skip
    taken(calls)
    operands = [one.operands.scores[1].operand for one in calls[2:4]]
    first, second = (lazy() for lazy in operands if lazy is not None)
    assert first.data_ptr() == second.data_ptr()
    assert first.data_ptr() != mask.data_ptr()  # what the model does to it later changes nothing


def test_the_keys_of_an_encoder_stay_the_same() -> None:
    whole = sequence(9)
    k, v = whole.k[..., :5, :], whole.v[..., :5, :]
    open_ = torch.ones(1, 5, dtype=torch.bool)
    calls = [call(whole.q[..., i : i + 1, :], k, v, open_, i) for i in range(9)]
    (generation,) = taken(calls).of(calls)
    expected = generations.weights(whole.q, k, open_)
    torch.testing.assert_close(generation.joined.weights.dense(), expected, rtol=0, atol=EXACT)


def test_the_same_input_again_is_another_run() -> None:
    whole = sequence(5)
    calls = [*dynamic(whole, 5), *dynamic(whole, 5)]
    calls[1].run = 1
    assert [len(generation) for generation in taken(calls).of(calls)] == [1, 1]


def test_another_text_after_a_generation_begins_another_one() -> None:
    calls = [*dynamic(sequence(8), 4), *dynamic(sequence(6), 3)]
    for run, one in enumerate(calls):
        one.run = run
    joining = taken(calls)
    assert [len(generation) for generation in joining.of(calls)] == [5, 4]
    assert set(joining.runs().values()) == {0, 5}
    assert why_apart(joining.of(calls)) == "its calls do not continue each other over a cache"


def test_calls_of_one_run_are_never_steps() -> None:
    calls = dynamic(sequence(6), 4)
    for index, one in enumerate(calls):
        one.run, one.index = 0, index
    assert [len(generation) for generation in taken(calls).of(calls)] == [1, 1, 1]


def test_reordered_beams_are_not_joined_and_it_says_which() -> None:
    calls = beams(sequence(9, batch=3), 4, {3: [0, 0, 1]})
    generations_ = taken(calls).of(calls)
    assert [len(generation) for generation in generations_] == [3, 3]
    assert why_apart(generations_) == (
        "in run 3, beams were reordered (1 goes on from 0, 2 goes on from 1)"
    )


def test_beams_that_differ_in_one_early_token_are_told_apart() -> None:
    whole = sequence(9, batch=2)
    for x in whole:
        x[1] = x[0]
    whole.k[1, :, 4] += 1.0  # all that the second beam has of its own
    calls = beams(whole, 4, {4: [1, 0]})
    assert [len(generation) for generation in taken(calls).of(calls)] == [4, 2]


def test_beams_that_stay_in_place_are_joined() -> None:
    calls = beams(sequence(9, batch=3), 4, {3: [0, 1, 2]})
    assert [len(generation) for generation in taken(calls).of(calls)] == [6]


def test_a_cache_that_was_cut_back_is_not_joined() -> None:
    whole = sequence(9)
    calls = dynamic(whole, 4)[:3]
    k, v = (torch.cat((x[..., :4, :], x[..., 7:9, :]), -2) for x in (whole.k, whole.v))
    calls.append(call(whole.q[..., 8:9, :], k, v, torch.ones(1, 6, dtype=torch.bool), 9))
    assert [len(generation) for generation in taken(calls).of(calls)] == [3, 1]


def test_other_keys_of_the_shape_of_a_step_are_refused() -> None:
    whole, other = sequence(9), sequence(9)
    calls = dynamic(whole, 4)[:3]
    k, v = other.k[..., :7, :], other.v[..., :7, :]
    calls.append(call(whole.q[..., 6:7, :], k, v, torch.ones(1, 7, dtype=torch.bool), 9))
    found = taken(calls).of(calls)
    assert [len(generation) for generation in found] == [3, 1]
    assert why_apart(found).startswith("in run 9, its keys are not those of the run before")
