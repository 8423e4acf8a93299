"""The article's other calculations, with its numbers."""

import numpy as np
import pytest

from qkv.errors import ArgumentError
from qkv.explaining.examples import EXAMPLES, GUESTS, explain_example


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_example_proves_itself(name):
    told = explain_example(name)
    told.verify()
    assert told.by_hand(4).drift < 0.05


def test_desserts_has_the_articles_numbers():
    told = explain_example("desserts")
    np.testing.assert_allclose(told["by the sum/shares"], [[1.0, 0.5, -0.5]], rtol=1e-6)
    powers = [[7.389, 2.718, 0.368]]
    np.testing.assert_allclose(told["softmax/exponentials"], powers, atol=5e-4)
    np.testing.assert_allclose(told["softmax/sums"], [[10.475]], atol=5e-4)
    shares = np.exp([[2, 1, -1]]) / np.exp([2, 1, -1]).sum()  # 70.5 %, 26.0 %, 3.5 %
    np.testing.assert_allclose(told["softmax/weights"], shares, atol=1e-6)
    np.testing.assert_allclose(told["hard max/weights"], [[1, 0, 0]])


def test_the_clerk_finds_mercers_room():
    told = explain_example("hotel")
    guests = list(GUESTS)
    for section in ("attention", "sharper attention"):
        assert told.step(f"{section}/weights").columns == tuple(guests)
        assert told[f"{section}/weights"].argmax() == guests.index("Mercer")
    assert round(float(told.result[0, 0])) == 537


def test_the_cosine_tells_names_apart_that_the_dot_product_does_not():
    told = explain_example("hotel")
    dot, cosine = told["dot products"][0], told["cosines"][0]
    berger, brettner = (list(GUESTS).index(name) for name in ("Berger", "Brettner"))
    assert dot[berger] == dot[brettner]
    assert cosine[berger] > cosine[brettner]
    np.testing.assert_allclose(cosine[0], 9 / 10, rtol=1e-6)  # m 1, e 2, r 2 of norms √10, √10


def test_cross_attention_has_spanish_queries_and_english_keys():
    weights = explain_example("cross").step("weights")
    assert weights.rows == ("<start>", "el", "cielo", "es", "azul")
    assert weights.columns == ("the", "sky", "is", "blue")


def test_looking_up_gives_a_word_one_row_and_attending_gives_it_two():
    told = explain_example("lookup")
    np.testing.assert_array_equal(told["found"][0], told["found"][-1])
    assert not np.allclose(told.result[0], told.result[-1], atol=1e-2)


def test_an_unknown_example_lists_those_there_are():
    with pytest.raises(ArgumentError, match="example is 'x'; there are: desserts, hotel, self"):
        explain_example("x")
