"""Caption: batches, loss and measures recomputed, bad input, and a training from end to end."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import torch

from qkv.errors import ArgumentError
from qkv.models import load
from qkv.models.captioner import Captioner
from qkv.models.writing.written import Written
from qkv.train.data.pictures import RELATIONS, WORDS
from qkv.train.loop import train
from qkv.train.targets import IGNORED
from qkv.train.tasks.caption import (
    LONGEST,
    UNKNOWN,
    Caption,
    Endless,
    side_by_side,
    tokenizer,
    touched,
)

SMALL: dict[str, Any] = {"width": 16, "layers": 1, "heads": 2, "held_out": 13}
HERE = torch.device("cpu")


@pytest.fixture(scope="module")
def task() -> Caption:
    return Caption.open(**SMALL, dropout=0.0)


@pytest.fixture
def model(task: Caption) -> Captioner:
    return task.model().eval()


def numbers(count: int) -> Any:
    return Endless(count, seed=1).epoch(0)[0]


# The words.


def test_every_caption_is_words_and_comes_back_from_them_as_it_was(task: Caption) -> None:
    words, lengths = tokenizer(), set()
    for (count, _), relation in RELATIONS.items():
        for first in WORDS:
            text = relation.format(f"a {first}", *["an eight"] * (count - 1))
            ids = words(text, around=False).ids
            assert words.special[UNKNOWN] not in ids
            assert words.decode(ids) == text
            lengths.add(1 + len(ids))
    assert max(lengths) == LONGEST
    assert words.size == task.sizes.vocab_size


# Batches.


def test_a_batch_asks_for_the_word_after_each_until_the_end(task: Caption) -> None:
    which = numbers(11)
    batch = task.batch(which)
    examples = [task.pictures.training(int(number)) for number in which]
    np.testing.assert_array_equal(batch.pictures, np.stack([one.picture for one in examples]))
    lengths = []
    for one, ids, wanted in zip(examples, batch.ids, batch.wanted, strict=True):
        kept = wanted[wanted != IGNORED]
        lengths.append(len(kept))
        assert task.tokenizer.decode(kept.tolist()) == one.caption
        assert ids[0] == task.sizes.decoder_start_token_id
        assert kept[-1] == task.sizes.eos_token_id
        torch.testing.assert_close(ids[1 : len(kept)], kept[:-1])
        assert (wanted[len(kept) :] == IGNORED).all()
        assert (ids[len(kept) :] == task.sizes.pad_token_id).all()
    assert len(set(lengths)) > 1  # or nothing was padded
    assert batch.targets == sum(lengths)
    moved = batch.to(torch.device("meta"))
    assert {moved.pictures.device.type, moved.ids.device.type, moved.wanted.device.type} == {"meta"}


def test_batches_follow_from_seed_and_step_and_never_come_again() -> None:
    order = Endless(7, seed=5)
    ahead = order.batches()
    first = [next(ahead) for _ in range(Endless.STEPS + 30)]
    resumed = order.batches(Endless.STEPS - 3)
    for wanted in first[Endless.STEPS - 3 :]:
        np.testing.assert_array_equal(next(resumed), wanted)
    every = np.concatenate(first)
    assert len(np.unique(every)) == len(every)
    assert every.min() >= 0
    assert not np.isin(next(Endless(7, seed=6).batches()), every).any()


# Loss and measures.


@pytest.mark.parametrize("smoothing", [0.0, 0.3])
def test_the_loss_is_the_sum_over_the_words_of_every_caption_alone(
    task: Caption, smoothing: float
) -> None:
    model = task.model().double()
    batch = task.batch(numbers(5))
    total = 0.0
    for picture, ids, wanted in zip(batch.pictures, batch.ids, batch.wanted, strict=True):
        real = int((wanted != IGNORED).sum())
        logits = model(picture[None], ids[None, :real])[0].detach().numpy()
        for row, word in zip(logits, wanted[:real].tolist(), strict=True):
            chances = row - np.log(np.exp(row).sum())
            total -= (1 - smoothing) * chances[word] + smoothing * chances.mean()
    loss = task.loss(model, batch, smoothing)
    assert loss.dtype == torch.float64
    assert float(loss.detach()) == pytest.approx(total, rel=1e-12)


def test_under_autocast_the_loss_is_nearly_the_same(task: Caption, model: Captioner) -> None:
    batch = task.batch(numbers(9))
    with torch.no_grad():
        exact = float(task.loss(model, batch, 0.0))
        with torch.autocast("cpu", torch.bfloat16):
            short = task.loss(model, batch, 0.0)
    assert short.dtype == torch.float32
    assert float(short) == pytest.approx(exact, rel=0.02)


def test_every_parameter_gets_a_gradient(task: Caption) -> None:
    model = task.model()
    task.loss(model, task.batch(numbers(5)), 0.1).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert torch.isfinite(parameter.grad).all(), name


@torch.no_grad()
def test_measures_count_what_is_right(
    task: Caption, model: Captioner, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = [one.caption for one in task.held_out]
    said[3], said[7] = said[3] + " and", "a three"
    monkeypatch.setattr(
        model, "caption",
        lambda pictures: [Written((), "end", 0.0, text) for text in said[: len(pictures)]],
    )  # fmt: skip
    measured = task.measure(model)
    assert next(iter(measured)) == task.judged_by == "exact"
    assert measured["exact"] == 11 / 13
    right, total = 0, 0
    for one in task.held_out:
        batch = side_by_side([one], task.tokenizer)
        best = model(batch.pictures, batch.ids)[0].argmax(-1)
        right += int((best == batch.wanted[0]).sum())
        total += batch.targets
    assert measured["words"] == right / total
    samples = task.samples(model)
    assert samples[0] == said[0]
    assert samples[7] == f"a three (wrong: it is {task.held_out[7].caption})"


@torch.no_grad()
def test_attention_on_the_digits_is_what_counts_as_looking(
    task: Caption, model: Captioner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Maps are put in its place that rest on the last digit of each picture."""
    lasts = [one.digits[-1] for one in task.held_out]

    def looking(pictures: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        maps = torch.zeros(len(ids), 2, ids.shape[1], 7, 7)
        for i, digit in enumerate(lasts):
            maps[i, :, :, (digit.top + 4) // 4, (digit.left + 4) // 4] = 1
        return maps

    monkeypatch.setattr(model, "looking", looking)
    digits = sum(len(one.digits) for one in task.held_out)
    assert task.measure(model)["looked"] == pytest.approx(len(lasts) / digits, abs=0.06)


@pytest.mark.parametrize(("start", "places"), [(0, [0, 1]), (3, [0, 1, 2]), (20, [5, 6])])
def test_a_digit_touches_the_places_that_its_pixels_are_in(start: int, places: list[int]) -> None:
    assert list(range(7))[touched(start)] == places
    assert sorted({pixel // 4 for pixel in range(start, start + 8)}) == places


# What is refused, and what is told.


def test_data_is_refused_and_said_why() -> None:
    with pytest.raises(ArgumentError, match=r"data is a\.tsv, verses, but caption takes none"):
        Caption.open(["a.tsv", "verses"])
    with pytest.raises(ArgumentError, match="held_out is 0; wanted a whole number, 1 or more"):
        Caption.open(held_out=0)
    with pytest.raises(ArgumentError, match="model is a Linear; wanted a Captioner"):
        Caption.open(**SMALL).samples(torch.nn.Linear(1, 1))


def test_sizes_that_make_no_model_are_refused_before_anything_is_read() -> None:
    with pytest.raises(
        ArgumentError, match="width is 18 and heads is 4; wanted a multiple of 4, and of heads"
    ):
        Caption.open(width=18)
    with pytest.raises(ArgumentError, match="width is 16 and heads is 3; wanted"):
        Caption.open(width=16, heads=3)
    with pytest.raises(ArgumentError, match="layers is 0"):
        Caption.open(layers=0)


def test_the_description_is_json_and_tells_tasks_apart(task: Caption) -> None:
    def told(**options: Any) -> str:
        return json.dumps(Caption.open(**(SMALL | {"dropout": 0.0} | options)).describe())

    assert told() == json.dumps(task.describe())
    others = [told(seed=1), told(width=20), told(held_out=14), told(dropout=0.1), told(heads=4)]
    assert len({told(), *others}) == 1 + len(others)


# From end to end.


@pytest.mark.slow
def test_a_short_training_learns_the_grammar_and_leaves_a_model_that_captions(
    tmp_path: Path,
) -> None:
    task = Caption.open(**SMALL)
    settings = replace(
        task.usual, steps=120, batch=32, learning_rate=1e-2, warmup=10, measure_every=60,
        save_every=60,
    )  # fmt: skip
    losses: list[float] = []
    result = train(
        task, settings, tmp_path / "out",
        listen=lambda event: losses.append(event.loss) if hasattr(event, "loss") else None,
    )  # fmt: skip
    blind = math.log(4) + 2.5 * math.log(10)  # nats of a caption that is guessed, by its grammar
    assert np.mean(losses[-20:]) < 1.3 * blind / 9.5  # a caption has 9.5 tokens at the mean
    assert set(result.values) == {"exact", "words", "looked"}
    assert result.values["words"] > 0.5
    model: Captioner = load(tmp_path / "out")
    said = [one.text for one in model.caption(np.stack([o.picture for o in task.held_out]))]
    assert all(text.startswith("a") for text in said)
    task.plot(model, tmp_path / "looks.svg")
    drawn = ElementTree.fromstring((tmp_path / "looks.svg").read_text("utf-8"))
    text = " ".join(
        "".join(one.itertext()) for one in drawn.iter("{http://www.w3.org/2000/svg}text")
    )
    assert said[0] in text
    assert not list(tmp_path.glob(".*"))
