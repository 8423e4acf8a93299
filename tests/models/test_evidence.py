"""What the embeddings are good for, beside Hugging Face's: read from the packages of the texts."""

import os
from collections.abc import Callable

import pytest
from benchmarks import embeddings as measured

Measure = Callable[[measured.Embed], float]


@pytest.fixture(autouse=True)
def texts(minilm_folder: object) -> None:
    """The texts of others, from the packages that carry them."""
    try:
        measured.lee(), measured.reviews()
    except FileNotFoundError as error:
        if os.environ.get("QKV_REQUIRE_MODELS"):
            raise
        pytest.skip(str(error))


@pytest.mark.slow
def test_similar_for_minilm_is_similar_for_people() -> None:
    ours = measured.correlation(measured.ours())
    assert ours >= measured.PEARSON
    assert ours == pytest.approx(measured.correlation(measured.theirs()), abs=1e-4)


@pytest.mark.slow
def test_a_regression_on_our_embeddings_is_as_good_as_on_hugging_faces() -> None:
    ours, theirs = (measured.accuracy(e, some=500) for e in (measured.ours(), measured.theirs()))
    assert ours >= max(0.7, theirs - measured.HALF_A_POINT)
