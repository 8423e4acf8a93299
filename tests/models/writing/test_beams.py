"""Beam search: Hugging Face's texts and scores, and the best text of all where beams are many."""

import itertools
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from qkv.models.language import LanguageModel, WritingRules
from qkv.models.writing.written import Written
from tests.models import writers
from tests.models.writers import (
    END,
    Fake,
    byte_tokenizer,
    prompts,
    theirs_writes,
    whimsical,
)

MAKERS = {"llama": writers.llama, "gpt2": writers.gpt2}
ENDS = {"one end": END, "many ends": [END, *range(10, 22)], "no end": None}
LENGTHS = [7, 3, 11, 7, 2]


@pytest.fixture(params=MAKERS)
def maker(request: pytest.FixtureRequest, as_shipped: None) -> Any:
    """Makes our model and Hugging Face's; shapes unchecked, which takes long."""
    return MAKERS[request.param]


def ids(written: list[Written]) -> list[tuple[int, ...]]:
    return [row.ids for row in written]


def same(found: list[Written], theirs: tuple[Any, list[tuple[int, ...]]]) -> None:
    """Hugging Face adds up in float32, whatever the model."""
    assert ids(found) == theirs[1]
    expected = theirs[0].sequences_scores.tolist()
    assert [row.score for row in found] == pytest.approx(expected, rel=1e-6, abs=1e-5)


# --- Hugging Face's texts -------------------------------------------------------------------------


@pytest.mark.parametrize("length_penalty", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("ends", ENDS)
def test_4_beams_find_hugging_faces_texts(
    maker: Any, tmp_path: Path, ends: str, length_penalty: float
) -> None:
    ours, theirs = maker(tmp_path, eos_token_id=ENDS[ends])
    rows = prompts(LENGTHS)
    found = ours.generate(rows, max_tokens=32, beams=4, length_penalty=length_penalty)
    options = {"num_beams": 4, "length_penalty": length_penalty, "early_stopping": False}
    same(found, theirs_writes(theirs, rows, max_new_tokens=32, **options))
    if ends == "many ends" and length_penalty == 1:
        assert len({len(row.ids) for row in found}) > 1


@pytest.mark.parametrize("beams", [2, 3, 7])
@pytest.mark.parametrize("length_penalty", [-1.0, 0.0])
def test_other_beams_and_penalties_are_hugging_faces(
    maker: Any, tmp_path: Path, beams: int, length_penalty: float
) -> None:
    ours, theirs = maker(tmp_path, eos_token_id=ENDS["many ends"])
    rows = prompts([5, 5, 9])
    found = ours.generate(rows, max_tokens=12, beams=beams, length_penalty=length_penalty)
    options = {"num_beams": beams, "length_penalty": length_penalty}
    same(found, theirs_writes(theirs, rows, max_new_tokens=12, **options))


def test_the_penalty_on_repetitions_is_hugging_faces(maker: Any, tmp_path: Path) -> None:
    ours, theirs = maker(tmp_path, eos_token_id=ENDS["many ends"])
    rows = prompts(LENGTHS)
    found = ours.generate(rows, max_tokens=16, beams=4, repetition_penalty=1.4)
    options = {"num_beams": 4, "repetition_penalty": 1.4}
    same(found, theirs_writes(theirs, rows, max_new_tokens=16, **options))


@pytest.mark.parametrize("most", [1, 5, 20])
@pytest.mark.parametrize("length_penalty", [0.6, 1.0])
def test_a_translation_is_hugging_faces_with_its_forced_end(
    tmp_path: Path, most: int, length_penalty: float
) -> None:
    ours, theirs = writers.marian(tmp_path)
    lengths = [5, 9, 2]
    rows = [torch.tensor(row) for row in prompts(lengths, seed=5)]
    source = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=100)
    real = torch.arange(source.shape[1]) < torch.tensor(lengths)[:, None]
    options: dict[str, Any] = {"num_beams": 4, "length_penalty": length_penalty}
    options |= {"source": {"input_ids": source, "attention_mask": real.long()}}
    found = ours.generate(
        [[]] * 3, cache=ours.read(source, lengths), max_tokens=most, beams=4,
        length_penalty=length_penalty,
    )  # fmt: skip
    same(found, theirs_writes(theirs, [[0]], max_new_tokens=most, **options))


# --- all texts there are --------------------------------------------------------------------------


def best_of_all(fake: Fake, prompt: list[int], most: int, alpha: float) -> tuple[Any, float]:
    """Score every text that there can be; return the best."""
    size, texts = len(fake.choose(prompt)), []
    for n in range(1, most + 1):
        for text in itertools.product(range(size), repeat=n):
            ended = text[-1] in fake.rules.ends
            if any(token in fake.rules.ends for token in text[:-1]) or (n < most and not ended):
                continue
            total = 0.0
            for i, token in enumerate(text):
                logits = torch.tensor(fake.choose([*prompt, *text[:i]]), dtype=torch.float64)
                total += logits.log_softmax(0)[token].item()
            texts.append((total / n**alpha, text))
    score, text = max(texts)
    return text, score


@pytest.mark.parametrize("alpha", [0.5, 1.0, 2.0])
def test_as_many_beams_as_there_are_texts_find_the_best_of_all(alpha: float) -> None:
    for seed in range(4):
        fake = Fake(whimsical(3, seed), rules=WritingRules(ends=frozenset({0})))
        rows = [[1, 2], [2], [2, 2, 1]]
        found = fake.generate(rows, max_tokens=4, beams=81, length_penalty=alpha)
        for row, prompt in zip(found, rows, strict=True):
            text, score = best_of_all(fake, prompt, 4, alpha)
            assert row.ids == text
            assert row.score == pytest.approx(score, abs=1e-12)


def test_more_beams_than_tokens_are_taken() -> None:
    fake = Fake(whimsical(2), rules=WritingRules(ends=frozenset({0})))
    (found,) = fake.generate([[1]], max_tokens=6, beams=5)
    assert found.score == pytest.approx(best_of_all(fake, [1], 6, 1.0)[1], abs=1e-12)


# --- rows, ends, stop texts -----------------------------------------------------------------------


def test_a_row_does_not_depend_on_the_others(maker: Any, tmp_path: Path) -> None:
    ours, _ = maker(tmp_path, eos_token_id=ENDS["many ends"])
    rows = prompts(LENGTHS)
    together = ours.generate(rows, max_tokens=16, beams=3, chunk=4)
    alone = [ours.generate([row], max_tokens=16, beams=3)[0] for row in rows]
    assert ids(together) == ids(alone)
    scores = [row.score for row in alone]
    assert [row.score for row in together] == pytest.approx(scores, abs=1e-9)


def test_each_row_ends_where_the_model_has_no_more_positions(
    tmp_path: Path, as_shipped: None
) -> None:
    ours: LanguageModel = writers.llama(tmp_path, max_position_embeddings=20, eos_token_id=None)[0]
    rows = prompts([20, 20, 20, 13, 18])
    found = ours.generate(rows, max_tokens=32, beams=4)
    assert [len(row.ids) for row in found] == [1, 1, 1, 8, 3]
    assert ids(found) == [ids(ours.generate([row], max_tokens=32, beams=4))[0] for row in rows]


def test_a_memory_moves_where_as_many_beams_stay_as_there_were_rows(
    tmp_path: Path, as_shipped: None
) -> None:
    ours, _ = writers.marian(tmp_path, max_position_embeddings=12)
    source = torch.tensor(prompts([6, 6, 6]))
    starts = prompts([12, 12, 4], seed=2)  # the first two may write one token: one row goes on
    found = ours.generate(starts, cache=ours.read(source), max_tokens=9, beams=3)
    alone = ours.generate(starts[2:], cache=ours.read(source[2:]), max_tokens=9, beams=3)
    assert found[2].ids == alone[0].ids
    assert found[2].score == pytest.approx(alone[0].score, abs=1e-9)
    assert [len(row.ids) for row in found[:2]] == [1, 1]


def test_a_stop_text_ends_a_beam_as_an_end_does() -> None:
    rules = WritingRules(ends=frozenset({1}))
    tokenizer = byte_tokenizer("t h", "th e")
    a, b = (tokenizer(letter).ids[0] for letter in "ab")

    def choose(read: list[int]) -> list[float]:
        """Like ab best, then aa; stop texts are as good an end as the end itself."""
        logits = [-math.inf] * tokenizer.size
        written = read[1:]
        logits[a], logits[b], logits[1] = (1.0, 2.0, -9.0) if written else (5.0, 0.0, -9.0)
        return logits

    fake = Fake(choose, rules=rules, tokenizer=tokenizer)
    (found,) = fake.generate([[0]], max_tokens=5, beams=2, stop=("ab",))
    assert (found.reason, found.ids, found.text) == ("stop", (a, b), "")
    (longer,) = fake.generate([[0]], max_tokens=5, beams=2, stop=("bb",))
    assert (longer.text, longer.reason) == ("a", "stop")
    (free,) = fake.generate([[0]], max_tokens=5, beams=2)
    assert (free.text, free.reason) == ("abbbb", "length")


def test_beams_that_all_stop_leave_a_text() -> None:
    tokenizer = byte_tokenizer()
    letters = [tokenizer(letter).ids[0] for letter in "abcd"]
    logits = [-50.0] * tokenizer.size
    for i, letter in enumerate(letters):
        logits[letter] = float(i)
    fake = Fake(lambda read: logits, tokenizer=tokenizer)
    found = fake.generate([[0], [5]], max_tokens=5, beams=2, stop=("a", "b", "c", "d"))
    assert [(row.text, row.reason, row.ids) for row in found] == [("", "stop", (letters[3],))] * 2
