"""A head as a Calculation: it holds the weights, and what the model went on with confirms it."""

from dataclasses import replace
from math import inf
from pathlib import Path

import pytest
import torch

from qkv.errors import ArgumentError, ShapeError, VerificationError
from qkv.recording.calls.operands import Operands, Operation
from tests.recording.programs import (
    BATCH,
    HEADS,
    KEYS,
    LEAST,
    QUERIES,
    Program,
    Scores,
    added,
    call,
    call_of,
    random_qkv,
    real,
    repeated,
    softmax_of,
    triangle,
)
from tests.reference import agree

# float32 against float64 with logits of about 10.
NEAR = 1e-5


def causal(s: Scores) -> None:
    s.multiply(5**-0.5)
    s.fill(~triangle(), -inf)


def capped(s: Scores) -> None:
    s.multiply(0.1)
    s.tanh()
    s.multiply(3.0)
    s.add(torch.randn(1, HEADS, QUERIES, KEYS, generator=torch.manual_seed(1)))


def scaled_by_query(s: Scores) -> None:
    s.multiply(torch.linspace(0.1, 2, QUERIES)[None, None, :, None])


def scaled_by_head(s: Scores) -> None:
    s.multiply(torch.linspace(0.1, 2, HEADS)[None, :, None, None])


def hidden_whole(s: Scores) -> None:
    s.multiply(0.4)
    s.add(added(triangle(offset=-2) & real([KEYS, KEYS - 1]), LEAST))


def curbed(s: Scores) -> None:
    s.multiply(0.4)
    s.clamp(-1.0, 1.0)
    s.fill(~triangle(), -inf)


@pytest.mark.parametrize(
    "program",
    [causal, capped, scaled_by_query, scaled_by_head, hidden_whole, curbed],
    ids=lambda p: p.__name__,
)
@pytest.mark.parametrize(("head", "batch"), [(0, 0), (HEADS - 1, 1)])
def test_the_calculation_ends_at_what_the_model_went_on_with(
    program: Program, head: int, batch: int
) -> None:
    q, k, v = random_qkv()
    seen = call_of(program, (q, k, v))
    calculation = seen.explain(head, batch)
    weights = softmax_of(program, q, k, torch.float64)[batch, head]
    agree(calculation["weights"], weights, NEAR)
    agree(calculation.result, seen.output[batch, head], NEAR)
    assert calculation.verify().fused is not None
    assert calculation.by_hand(6).drift < 1e-2


def test_steps_are_those_of_the_article() -> None:
    names = [step.name for step in call_of(causal, random_qkv()).explain(0)]
    assert names == [
        "queries", "keys", "values", "mask", "similarities", "√d_k", "scaled", "masked",
        "maximum", "exponentials", "sums", "weights", "output",
    ]  # fmt: skip


def test_an_output_that_differs_is_not_confirmed() -> None:
    seen = call_of(causal, random_qkv())
    wrong = call(replace(seen.operands, output=seen.output * 1.01))
    with pytest.raises(VerificationError, match="output"):
        wrong.explain(2).verify()


def test_sinks_noise_gain_and_masks_after_the_softmax_are_steps_too() -> None:
    q, k, v = random_qkv()
    sinks, noise = torch.ones(1, HEADS, 1, 1), (torch.rand(BATCH, HEADS, QUERIES, KEYS) < 0.8) / 0.8
    taken = torch.rand(BATCH, 1, QUERIES, KEYS) < 0.2
    after = (Operation("fill", lambda: taken, number=0.0), Operation("multiply", number=0.5))
    scores = Scores(q.double() @ repeated(k).double().mT)
    causal(scores)
    beside = sinks.double().expand(BATCH, HEADS, QUERIES, 1)
    weights = torch.cat([scores.x, beside], -1).softmax(-1)[..., :KEYS].masked_fill(taken, 0.0)
    output = (weights * noise * 0.5) @ repeated(v).double()
    seen = call(
        Operands(
            q,
            k,
            v,
            output.float(),
            tuple(scores.operations),
            after,
            sinks=lambda: sinks,
            noise=lambda: noise,
            dropout=0.2,
        )
    )
    assert seen.error_eps < 32
    calculation = seen.explain(4, 1)
    agree(calculation["weights"], weights[1, 4], NEAR)
    calculation.verify()
    names = [step.name for step in calculation]
    assert {"sinks", "with sinks", "kept", "dropout", "gain"} <= set(names)


def test_a_sink_takes_all_of_a_row_that_is_hidden_whole() -> None:
    q, k, v = random_qkv()
    sinks = torch.zeros(1, HEADS, 1, 1)
    logits = Scores(q.double() @ repeated(k).double().mT)
    hidden_whole(logits)
    beside = torch.zeros(BATCH, HEADS, QUERIES, 1).double()
    weights = torch.cat([logits.x, beside], -1).softmax(-1)[..., :KEYS]
    seen = call_of(hidden_whole, (q, k, v), sinks=lambda: sinks)
    seen = call(replace(seen.operands, output=(weights @ repeated(v).double()).float()))
    calculation = seen.explain(3, 1)
    assert float(torch.tensor(calculation["weights"])[0].abs().max()) == 0
    calculation.verify()


def test_unknown_noise_leaves_nothing_to_be_confirmed() -> None:
    calculation = call_of(causal, random_qkv(), dropout=0.3).explain(0)
    assert not calculation.observed


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_it_is_computed_in_the_precision_of_the_model(dtype: torch.dtype) -> None:
    q, k, v = (tensor.to(dtype) for tensor in random_qkv())
    calculation = call_of(causal, (q, k, v)).explain(1, 1)
    assert calculation.eps == torch.finfo(dtype).eps
    calculation.verify()


def test_queries_over_a_cache_are_the_last_tokens() -> None:
    words = [f"w{i}" for i in range(KEYS)]
    weights = call_of(causal, random_qkv()).explain(0, tokens=words).step("weights")
    assert weights.columns == tuple(words)
    assert weights.rows == tuple(words[-QUERIES:])


def test_keys_of_their_own_have_labels_of_their_own() -> None:
    asking, told = [f"q{i}" for i in range(QUERIES)], [f"k{i}" for i in range(KEYS)]
    weights = (
        call_of(causal, random_qkv()).explain(0, tokens=asking, key_tokens=told).step("weights")
    )
    assert (weights.rows, weights.columns) == (tuple(asking), tuple(told))


def test_wrong_numbers_of_labels_heads_and_examples_are_refused() -> None:
    seen = call_of(causal, random_qkv())
    with pytest.raises(ShapeError, match="labels"):
        seen.explain(0, tokens=["only", "two"])
    with pytest.raises(ArgumentError, match="head is 6; wanted one of the 6 heads"):
        seen.explain(HEADS)
    with pytest.raises(ArgumentError, match="batch is 2; wanted one of the 2 examples"):
        seen.contributions(0, batch=BATCH)


def test_a_workbook_is_written_without_more(tmp_path: Path) -> None:
    call_of(causal, random_qkv()).explain(0).to_excel(tmp_path / "head.xlsx")
    assert (tmp_path / "head.xlsx").stat().st_size > 5000
