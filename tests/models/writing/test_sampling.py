"""What may be drawn, against Hugging Face's filters in float64, and that it is drawn rightly."""

import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import Tensor

from qkv.errors import ArgumentError
from qkv.models.writing.sampling import (
    FEW,
    Candidates,
    Sampling,
    best,
    draw,
    likely,
    min_p,
    top_k,
    top_p,
)

SIZES = [(5, 97), (7, 7), (1, 2)]


def numbers(rows: int, size: int) -> Tensor:
    """Draw logits; a few tokens are forbidden already, but not all of a row."""
    logits = 3 * torch.randn(rows, size, dtype=torch.float64)
    forbidden = torch.rand(rows, size) < 0.1
    forbidden[:, 0] = False
    return logits.masked_fill(forbidden, -torch.inf)


def dense(few: Candidates, size: int) -> Tensor:
    """Put candidates back where they stand in the vocabulary, −∞ elsewhere."""
    if few.ids is None:
        return few.logits
    return torch.full((len(few.logits), size), -torch.inf).double().scatter(1, few.ids, few.logits)


def same(few: Candidates, theirs: Tensor) -> None:
    torch.testing.assert_close(dense(few, theirs.shape[1]), theirs, rtol=0, atol=1e-12)


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("k", [1, 3, 50, 200])
def test_top_k_keeps_what_hugging_faces_keeps(sizes: tuple[int, int], k: int) -> None:
    from transformers import TopKLogitsWarper

    logits = numbers(*sizes)
    same(top_k(Candidates(logits), k), TopKLogitsWarper(k)(None, logits))


@pytest.mark.parametrize("sizes", [*SIZES, (3, 2 * FEW + 1)])
@pytest.mark.parametrize("p", [1e-9, 0.3, 0.9, 0.999])
def test_top_p_keeps_what_hugging_faces_keeps(sizes: tuple[int, int], p: float) -> None:
    from transformers import TopPLogitsWarper

    logits = numbers(*sizes)
    same(top_p(Candidates(logits), p), TopPLogitsWarper(p)(None, logits))


def test_top_p_looks_at_more_tokens_where_the_first_are_not_likely_enough() -> None:
    from transformers import TopPLogitsWarper

    flat = 0.01 * torch.randn(2, 3 * FEW, dtype=torch.float64)
    flat[1] *= 1000
    few = top_p(Candidates(flat), 0.9)
    assert few.logits[0].isfinite().sum() > FEW
    same(few, TopPLogitsWarper(0.9)(None, flat))


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("p", [1e-9, 0.05, 0.5, 1.0])
def test_min_p_keeps_what_hugging_faces_keeps(sizes: tuple[int, int], p: float) -> None:
    from transformers import MinPLogitsWarper

    logits = numbers(*sizes)
    same(min_p(Candidates(logits), p), MinPLogitsWarper(p)(None, logits))


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 0.6},
        {"temperature": 1.7, "top_k": 20, "top_p": 0.8},
        {"temperature": 1.7, "top_k": 20, "min_p": 0.3},
        {"temperature": 0.8, "top_p": 0.7, "min_p": 0.2},
        {"temperature": 2.5, "top_k": 31, "top_p": 0.9, "min_p": 0.1},
        {"temperature": 1.0, "top_k": 5, "top_p": 1.0},
    ],
)
def test_the_filters_come_in_hugging_faces_order(options: dict[str, Any]) -> None:
    from transformers import GenerationConfig, LogitsProcessorList
    from transformers.generation import GenerationMixin

    config = GenerationConfig(**({"do_sample": True, "top_k": None} | options))
    config._eos_token_tensor = None
    mixin = GenerationMixin()
    theirs: LogitsProcessorList = mixin._get_logits_processor(config, input_ids_seq_length=1)
    logits = numbers(11, 97)
    wanted = theirs(torch.zeros(11, 1).long(), logits)
    same(likely(logits, Sampling(**options)), wanted - wanted.amax(-1, keepdim=True))


@pytest.mark.parametrize("options", [{}, {"top_k": 4}, {"top_p": 0.8}, {"min_p": 0.1}])
def test_tokens_are_drawn_as_often_as_they_are_likely(options: dict[str, Any]) -> None:
    sampling = Sampling(temperature=1.3, **options)
    logits = numbers(1, 13)
    times = 10_000
    even = [(i + 0.5) / times for i in range(times)]
    drawn = draw(logits.expand(times, -1), sampling, even)
    probabilities = dense(likely(logits, sampling), 13).softmax(-1)[0]
    counts = torch.bincount(drawn, minlength=13)
    assert (counts - times * probabilities).abs().max() < 1  # an even net of numbers misses by 1


def test_rows_are_drawn_by_their_own_numbers() -> None:
    logits = torch.log(torch.tensor([[0.5, 0.5, 0.0], [0.25, 0.25, 0.5], [0.0, 0.0, 1.0]]))
    sampling = Sampling(temperature=1.0)
    assert draw(logits, sampling, [0.0, 0.3, 0.0]).tolist() == [0, 1, 2]
    assert draw(logits, sampling, [0.6, 0.6, 0.6]).tolist() == [1, 2, 2]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_is_forbidden_is_never_drawn_at_the_ends_of_the_numbers(dtype: torch.dtype) -> None:
    logits = torch.tensor([[-torch.inf, 0.1, -torch.inf, 0.7, -torch.inf]], dtype=dtype)
    for options in ({}, {"top_k": 4}, {"top_p": 0.99}):
        sampling = Sampling(temperature=0.7, **options)
        for number in (0.0, 1 - 2**-53, 1e-300):
            assert draw(logits, sampling, [number]).item() in (1, 3)


def test_the_best_token_is_that_of_the_highest_logit() -> None:
    logits = numbers(5, 97)
    assert best(logits).tolist() == [max(range(97), key=row.__getitem__) for row in logits.tolist()]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_tokens": 0}, "max_tokens is 0; wanted a whole number, 1 or more"),
        ({"max_tokens": True}, "max_tokens is True; wanted a whole number, 1 or more"),
        ({"beams": 0}, "beams is 0; wanted a whole number, 1 or more"),
        ({"beams": 2.0}, "beams is 2.0; wanted a whole number, 1 or more"),
        ({"chunk": -1}, "chunk is -1; wanted a whole number, 1 or more"),
        ({"top_k": 0}, "top_k is 0; wanted a whole number, 1 or more"),
        ({"seed": 0.5}, "seed is 0.5; wanted a whole number"),
        ({"temperature": -0.1}, "temperature is -0.1; wanted a number 0 or more"),
        ({"temperature": float("nan")}, "temperature is nan; wanted a number 0 or more"),
        ({"temperature": float("inf")}, "temperature is inf; wanted a number 0 or more"),
        ({"temperature": "1"}, "temperature is '1'; wanted a number 0 or more"),
        ({"temperature": True}, "temperature is True; wanted a number 0 or more"),
        ({"temperature": 10**400}, "temperature is 1000"),
        ({"top_p": "x"}, "top_p is 'x'; wanted a number above 0"),
        ({"stop": 5}, "stop is 5; wanted texts of a character or more"),
        ({"top_p": 0.0}, "top_p is 0.0; wanted a number above 0, up to 1, or None"),
        ({"top_p": 1.1}, "top_p is 1.1; wanted a number above 0, up to 1, or None"),
        ({"min_p": -0.1}, "min_p is -0.1; wanted a number above 0, up to 1, or None"),
        ({"repetition_penalty": 0.0}, "repetition_penalty is 0.0; wanted a number above 0"),
        (
            {"length_penalty": float("inf")},
            "length_penalty is inf; wanted a number from -100",
        ),
        ({"length_penalty": 400, "beams": 2}, "length_penalty is 400; wanted a number from"),
        ({"stop": "end"}, "stop is 'end'; wanted a tuple of texts: ('end',)"),
        ({"stop": ("a", "")}, "stop is ('a', ''); wanted texts of a character or more"),
        (
            {"beams": 4, "temperature": 0.7},
            "beams is 4 and temperature is 0.7: a beam search draws nothing; say beams=1 to draw, "
            "or temperature=0 to search",
        ),
        (
            {"top_p": 0.9},
            "top_p is 0.9, but at temperature 0 nothing is drawn; say temperature=1.0, or leave "
            "top_p out",
        ),
        (
            {"length_penalty": 2.0},
            "length_penalty is 2.0, but one beam has none to be compared with; say beams=4, or "
            "leave length_penalty out",
        ),
    ],
)
@pytest.mark.usefixtures("as_shipped")
def test_numbers_out_of_range_and_without_effect_are_refused(
    options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ArgumentError) as error:
        Sampling(**options)
    assert str(error.value).startswith(message)


def test_stop_texts_may_be_any_sequence() -> None:
    assert Sampling(stop=["a", "b"]).stop == ("a", "b")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("temperature", [1e-38, 1e-45, 5e-324])
@pytest.mark.parametrize("options", [{}, {"top_k": 3}, {"top_p": 0.9}, {"min_p": 0.1}])
def test_a_temperature_near_0_draws_the_best(
    dtype: torch.dtype, temperature: float, options: dict[str, Any]
) -> None:
    logits = numbers(7, 13).to(dtype) + 50
    few = likely(logits, Sampling(temperature=temperature, **options))
    assert not few.logits.isnan().any()
    drawn = draw(logits, Sampling(temperature=temperature, **options), [0.0, 0.5, 0.99] + [0.3] * 4)
    assert drawn.tolist() == best(logits).tolist()


def test_an_option_that_there_is_not_is_refused_by_name() -> None:
    with pytest.raises(ArgumentError, match="no option max_new_tokens; known are max_tokens, temp"):
        Sampling.of({"max_tokens": 3, "max_new_tokens": 5})
    assert Sampling.of({"max_tokens": 3}) == Sampling(max_tokens=3)


def test_options_are_checked_without_pytorch() -> None:
    code = "import sys, qkv.models.writing.options; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
