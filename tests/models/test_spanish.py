"""The translator that is shipped: small, made by a command that is told, and right."""

import json
from pathlib import Path
from typing import Any

import pytest

import qkv
from qkv.models.named import find
from qkv.train.data.frames import Pair
from qkv.train.data.phrasebook import PhraseBook, Split
from qkv.train.translation.corpus import EACH, MOST, Corpus
from qkv.train.translation.spelling import plain
from tests.train.unchecked import unchecked

SKY = "the sky is blue"


@pytest.fixture(scope="module")
def record() -> dict[str, Any]:
    return json.loads((find("en-es") / "training.json").read_text("utf-8"))  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def corpus(record: dict[str, Any]) -> Corpus:
    """What it was trained on, read again as the record tells."""
    told = record["about"]["data"]
    with unchecked():
        return Corpus.open(list(told["sets"]), seed=told["split"])


@pytest.fixture(scope="module")
def trained(corpus: Corpus) -> set[str]:
    return {plain(pair.source) for pair in corpus.training()}


@pytest.fixture(scope="module")
def split(record: dict[str, Any]) -> Split:
    with unchecked():
        return PhraseBook.read().split(record["about"]["data"]["split"], each=EACH, held_out=MOST)


@pytest.fixture(scope="module")
def model() -> Any:
    return qkv.load("en-es")


def test_it_is_small_and_its_making_is_told(record: dict[str, Any]) -> None:
    folder = find("en-es")
    files = {path.name: path.stat().st_size for path in folder.iterdir()}
    assert set(files) == {"config.json", "model.safetensors", "tokenizer.json", "training.json"}
    assert sum(files.values()) <= 8_000_000
    assert record["task"] == "translate"
    assert record["command"].startswith("qkv train translate --out ")
    values = record["measured"]  # as it lies here, in half precision
    assert values.get("exact phrasebook", values["exact"]) >= 0.95
    assert record["about"]["data"]["sets"]["phrasebook"]["sha256"]


def test_the_sky_is_blue_in_any_spelling(model: Any) -> None:
    for text in (SKY, "The sky is blue.", "THE SKY IS BLUE!"):
        assert model.translate(text, beams=4)[0].text == "el cielo es azul"


@pytest.mark.slow
def test_what_it_was_trained_on_is_told_and_the_sky_was_not_blue_there(
    record: dict[str, Any], corpus: Corpus, trained: set[str]
) -> None:
    assert json.loads(json.dumps(corpus.describe())) == record["about"]["data"]
    assert SKY in {pair.source for pair in corpus.held_out}
    assert len(trained) > 50_000
    assert not any(SKY in text for text in trained)  # nor in a longer sentence


@pytest.mark.slow
def test_held_out_combinations_are_nearly_all_exactly_right(
    model: Any, split: Split, trained: set[str]
) -> None:
    """500 combinations of noun, adjective and frame, none of whose nouns met its adjective."""
    pairs = combinations(split)[:500]
    assert len(pairs) == 500
    seen = {combination for pair in split.training for combination in pair.combinations}
    assert all(set(pair.combinations) - seen for pair in pairs)
    assert not {pair.english for pair in pairs} & trained
    found = model.translate([pair.english for pair in pairs], batch_size=100, max_tokens=40)
    right = sum(one.text == plain(pair.spanish) for one, pair in zip(found, pairs, strict=True))
    assert right / len(pairs) >= 0.95


def combinations(split: Split) -> list[Pair]:
    """Of the held-out sentences, the first of each combination of nouns, adjectives and frame."""
    found: dict[tuple[Any, str], Pair] = {}
    for pair in split.held_out:
        if pair.english != SKY:
            found.setdefault((pair.combinations, pair.frame), pair)
    return list(found.values())


def test_it_lies_in_the_package() -> None:
    assert find("en-es") == Path(qkv.__file__).parent / "models" / "spanish"
