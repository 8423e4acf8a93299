"""A sentence without a model."""

import numpy as np
import pytest
import torch

from qkv.errors import ArgumentError
from qkv.explaining.text import cut, embed, explain_words, words


def test_the_articles_words_have_the_articles_encodings_and_output():
    told = explain_words(["draw", "a", "map"])
    np.testing.assert_allclose(told["encodings"], [[1.16, 0.23], [0.57, 1.36], [4.41, -2.16]])
    wanted = [[1.0100, 1.0641], [0.2040, 0.7057], [3.4989, 2.2427]]
    np.testing.assert_allclose(told.result, wanted, atol=5e-5)


def test_other_words_are_drawn_and_get_their_position_as_steps():
    told = explain_words(words("dogs chase dogs"))
    dogs, _, again = told["embeddings"]
    np.testing.assert_array_equal(dogs, again)
    position = [[np.sin(p), np.cos(p)] for p in range(3)]
    np.testing.assert_allclose(told["positions"], position, atol=1e-7)
    np.testing.assert_allclose(told["encodings"], told["embeddings"] + position, atol=1e-6)
    told.verify()


def test_the_seed_decides_and_the_world_outside_keeps_its_own_random_numbers():
    state = torch.get_rng_state()
    first, second = (explain_words(["x", "y"], seed=7).result for _ in range(2))
    np.testing.assert_array_equal(first, second)
    assert not np.allclose(first, explain_words(["x", "y"], seed=8).result)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(embed(["x"], 7), embed(["x"], 7))


def test_words_and_marks_are_tokens():
    assert words("don't stop: it's 5 o'clock!") == [
        "don't",
        "stop",
        ":",
        "it's",
        "5",
        "o'clock",
        "!",
    ]


@pytest.mark.parametrize("text", ["", "  \n"])
def test_text_without_a_word_is_refused(text):
    with pytest.raises(ArgumentError, match="wanted at least one word"):
        words(text)


@pytest.mark.parametrize(("chosen", "wanted"), [("1:3", "bc"), (":2", "ab"), ("2:", "cde")])
def test_a_window_takes_tokens_as_a_slice_does(chosen, wanted):
    assert cut(list("abcde"), chosen) == list(wanted)


@pytest.mark.parametrize("chosen", ["x", "1", "-1:2", "3:3", "9:12", "", "9" * 5000 + ":"])
def test_a_window_that_takes_nothing_is_refused(chosen):
    with pytest.raises(ArgumentError, match="tokens is"):
        cut(list("abcde"), chosen)


def test_more_words_than_anybody_reads_are_refused_before_anything_is_computed():
    with pytest.raises(ArgumentError, match=r"2001 × 2001 weights; .* --tokens 0:100"):
        explain_words(["x"] * 2001)
    with pytest.raises(ArgumentError, match="1500 × 1500 weights in each of 2 heads"):
        explain_words(["x"] * 1500, num_heads=2)
