"""What a translation looked at, as words and as a calculation: of every system that looks."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from openpyxl import load_workbook

from qkv.errors import ArgumentError
from qkv.explaining.aligned import END, WordAlignment, aligned, weighed, word_alignment
from qkv.explaining.alignments import alignment_steps, joined
from qkv.models.family import Family
from qkv.models.formats.files import Unwritten
from qkv.models.marian import MARIAN, MarianConfig
from qkv.models.recurrent import RECURRENT, RecurrentConfig
from qkv.models.text.tokenizer import Tokenizer
from qkv.train.translation.spelling import spelling

TEXT = "the small sky is blue"
TEXTS = ["the sky is blue", "el niño corrió", "mañana el cielo es azul", "small is blue"]
TOKENS = {"decoder_start_token_id": 0, "pad_token_id": 0, "eos_token_id": 1}


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return spelling(TEXTS, 275)  # few words are one token


def made(family: Family[Any, Any], config: Any, tokenizer: Tokenizer) -> Any:
    torch.manual_seed(5)
    model = family.build(config, Unwritten(tokenizer)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.5)
    return model


@pytest.fixture(scope="module", params=["additive", "dot", "transformer"])
def model(request: pytest.FixtureRequest, tokenizer: Tokenizer) -> Any:
    if request.param == "transformer":
        config = MarianConfig(
            vocab_size=tokenizer.size, d_model=12, encoder_layers=2, decoder_layers=3,
            encoder_attention_heads=2, decoder_attention_heads=3, encoder_ffn_dim=7,
            decoder_ffn_dim=5, max_position_embeddings=60, **TOKENS,
        )  # fmt: skip
        return made(MARIAN, config, tokenizer)
    config = RecurrentConfig(tokenizer.size, 6, 8, attention=request.param, **TOKENS)
    return made(RECURRENT, config, tokenizer)


@pytest.fixture
def ids(tokenizer: Tokenizer) -> tuple[int, ...]:
    return (*tokenizer.plain("mañana el cielo"), 1)


def test_words_are_letters_and_every_row_sums_to_one(model: Any, ids: tuple[int, ...]) -> None:
    found = word_alignment(model, TEXT, ids)
    assert found.source == (*TEXT.split(), END)
    assert found.written == ("mañana", "el", "cielo")
    assert found.weights.shape == (3, 6)
    np.testing.assert_allclose(found.weights.sum(axis=1), 1, atol=1e-6)


def test_a_words_weights_are_those_of_its_tokens(
    model: Any, ids: tuple[int, ...], tokenizer: Tokenizer
) -> None:
    found = word_alignment(model, TEXT, ids)
    read = tokenizer(TEXT).ids
    whole = weighed(model, read, [0, *ids[:-2]])
    tokens = [len(tokenizer.plain(word)) for word in TEXT.split()]
    assert max(tokens) > 1
    edges = np.cumsum([0, *tokens])
    first = len(tokenizer.plain("mañana"))
    row = whole[:first].mean(axis=0)
    wanted = [row[a:b].sum() for a, b in pairwise(edges)]
    np.testing.assert_allclose(found.weights[0], [*wanted, row[edges[-1] :].sum()], atol=1e-9)


def test_it_agrees_with_what_the_command_prints(model: Any, ids: tuple[int, ...]) -> None:
    found, looks = word_alignment(model, TEXT, ids), aligned(model, TEXT, ids)
    assert [look.word for look in looks] == list(found.written)
    for look, row in zip(looks, found.weights, strict=True):
        assert look.weight == pytest.approx(row[:-1].max(), abs=1e-6)
        assert look.source == found.source[int(row[:-1].argmax())]


def test_the_calculation_holds_and_its_weights_are_those_that_ran(
    model: Any, ids: tuple[int, ...], tokenizer: Tokenizer
) -> None:
    told = alignment_steps(model, TEXT, ids)
    told.verify()
    weights = told.step("weights").value
    whole = weighed(model, tokenizer(TEXT).ids, [0, *ids[:-2]])
    assert weights.shape == whole.shape
    if not isinstance(model.config, MarianConfig):
        np.testing.assert_allclose(weights, whole, atol=1e-6)


def test_several_calculations_join_to_one_workbook(
    tokenizer: Tokenizer, ids: tuple[int, ...], tmp_path: Path
) -> None:
    parts = {}
    for kind in ("additive", "dot"):
        config = RecurrentConfig(tokenizer.size, 6, 8, attention=kind, **TOKENS)
        parts[kind] = alignment_steps(made(RECURRENT, config, tokenizer), TEXT, ids)
    whole = joined("Both", parts)
    whole.verify()
    for kind, part in parts.items():
        assert [step.name for step in whole[kind]] == [step.name for step in part]  # type: ignore[union-attr]
        np.testing.assert_array_equal(whole[f"{kind}/weights"], part["weights"])
    assert len(whole.observed) == sum(len(part.observed) for part in parts.values())
    whole.to_excel(tmp_path / "both.xlsx")
    book = load_workbook(tmp_path / "both.xlsx")
    formulas = [c for sheet in book for row in sheet.iter_rows() for c in row
                if isinstance(c.value, str) and c.value.startswith("=")]  # fmt: skip
    assert len(formulas) > 200


def test_what_is_large_begins_with_the_similarities(
    tokenizer: Tokenizer, ids: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = RecurrentConfig(tokenizer.size, 6, 8, attention="additive", **TOKENS)
    model = made(RECURRENT, config, tokenizer)
    whole = alignment_steps(model, TEXT, ids)
    monkeypatch.setattr("qkv.explaining.alignments.CELLS", 100)
    short = alignment_steps(model, TEXT, ids)
    assert len(short) < len(whole)
    short.verify()
    assert short.step("similarities").is_input
    np.testing.assert_array_equal(short["weights"], whole["weights"])
    np.testing.assert_array_equal(short.result, whole.result)


def test_a_model_without_attention_looked_at_nothing(tokenizer: Tokenizer, ids: Any) -> None:
    config = RecurrentConfig(tokenizer.size, 6, 8, **TOKENS)
    for of in (word_alignment, alignment_steps):
        with pytest.raises(ArgumentError, match="has no attention"):
            of(made(RECURRENT, config, tokenizer), TEXT, ids)


@pytest.mark.parametrize("ids", [(), (1,)])
def test_nothing_written_looked_at_nothing(model: Any, ids: tuple[int, ...]) -> None:
    found = word_alignment(model, TEXT, ids)
    assert (found.written, found.weights.shape, found.looks()) == ((), (0, 6), [])
    with pytest.raises(ArgumentError, match="no token but what ends a text"):
        alignment_steps(model, TEXT, ids)


def test_no_calculations_are_joined_to_none() -> None:
    with pytest.raises(ArgumentError, match="parts are none; wanted one calculation or more"):
        joined("None", {})


def test_behind_two_tokens_that_begin_it_each_word_is_told_by_the_one_before(
    model: Any, ids: tuple[int, ...], tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model, "rules", replace(model.rules, starts=(0, 5)))
    found = word_alignment(model, TEXT, ids)
    rows = weighed(model, tokenizer(TEXT).ids, [0, 5, *ids[:-2]])[1:]
    first = len(tokenizer.plain("mañana"))
    columns = len(tokenizer.plain("the"))
    assert found.weights[0, 0] == pytest.approx(rows[:first, :columns].sum(axis=1).mean())
    told = alignment_steps(model, TEXT, ids)
    told.verify()
    assert told.step("weights").value.shape == (len(ids), rows.shape[1])
    names = told.step("weights").rows
    assert names is not None
    assert len(names) == len(ids)


def test_the_end_is_no_word_to_look_at() -> None:
    weights = np.array([[0.1, 0.3, 0.6], [0.5, 0.2, 0.3]])
    looks = WordAlignment(("a", "b", END), ("x", "y"), weights).looks()
    assert [(one.word, one.source, one.weight) for one in looks] == [
        ("x", "b", 0.3), ("y", "a", 0.5),
    ]  # fmt: skip
