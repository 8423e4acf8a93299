"""The task of words: what is told and what is held out, and what a network learns of order."""

import math
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from torch.nn.functional import log_softmax

from qkv.errors import ArgumentError, FileError
from qkv.models import load
from qkv.models.word_model import WordModel
from qkv.train.loop import train
from qkv.train.tasks import words as task_of_words
from qkv.train.tasks.words import BLOCK, Words

NAMES, ENDS = ("Marianne", "Jonathan", "Rosalind", "Peter"), ("slept", "came", "won", "forgot")


def gossip(count, seed):
    """Whoever speaks first is named again four words later: the order of two names decides."""
    random = np.random.default_rng(seed)
    for _ in range(count):
        one, other = random.permutation(NAMES)[:2]
        yield f"{one} told {other} that {one} {random.choice(ENDS)}."


@pytest.fixture
def text(tmp_path, seed):
    path = tmp_path / "gossip.txt"
    path.write_text("\n".join(gossip(400, seed)) + "\n", "utf-8")
    return str(path)


def test_the_vocabulary_is_made_of_the_training_blocks_alone(tmp_path, seed):
    """In each block of the text there is a word of its own, more frequent than any other."""
    path = tmp_path / "blocks.txt"
    blocks = [" ".join([f"own{i}"] * 60 + ["and", "so"] * 20) for i in range(40)]
    path.write_text("\n".join(blocks), "utf-8")
    task = Words.open((str(path),), vocabulary=1000, seed=seed)
    out = {int(at) // BLOCK for at in task.held_out}
    known = {task.tokenizer.piece(number) for number in range(1, task.tokenizer.size)}
    assert known == {"and", "so"} | {f"own{i}" for i in range(40) if i not in out}
    assert len(out) == 4
    ids = [number for block in blocks for number in task.tokenizer.plain(block)]
    assert task._ids.tolist() == ids


def test_the_frequent_ones_are_kept_where_there_are_too_many(text):
    task = Words.open((text,), vocabulary=6)
    pieces = [task.tokenizer.piece(number) for number in range(6)]
    assert pieces[:3] == ["<unk>", "that", "told"]
    assert set(pieces[3:]) < {name.lower() for name in NAMES}


def test_a_text_of_one_word_is_refused(tmp_path):
    path = tmp_path / "yes.txt"
    path.write_text("yes Yes, yes! " * 100)
    with pytest.raises(ArgumentError, match="the text has 1 different words; wanted 2 or more"):
        Words.open((str(path),))


def test_a_measure_takes_so_many_of_what_is_held_out_evenly(text, monkeypatch):
    monkeypatch.setattr(task_of_words, "MOST", 50)
    task = Words.open((text,), size=5)
    model, tried = task.model().eval(), []
    monkeypatch.setattr(task, "_batch", lambda at: tried.append(at) or Words._batch(task, at))
    with torch.no_grad():
        told = task.measure(model)
    (at,) = tried
    step = math.ceil(len(task.held_out) / 50)
    assert step > 1
    assert np.array_equal(at, task.held_out[::step])
    nats = float(task.loss(model, Words._batch(task, at), 0.0).detach()) / len(at)
    assert told["perplexity"] == pytest.approx(math.exp(nats), rel=1e-5)


def test_a_perplexity_is_a_number_even_of_a_model_that_is_far_off(text):
    task = Words.open((text,), size=5)
    model = task.model().eval()
    torch.nn.init.normal_(model.embedding.weight, std=1e4)
    with torch.no_grad():
        assert math.isfinite(task.measure(model)["perplexity"])


def test_what_is_held_out_shares_no_word_of_a_window_with_training(text):
    task = Words.open((text,), vocabulary=6, seed=3)
    ids = task._ids
    seen = {at - back for at in task.training for back in range(5)}
    tried = {at - back for at in task.held_out for back in range(5)}
    assert not seen & tried
    assert len(task.held_out) == pytest.approx(0.1 * len(task.training) / 0.9, rel=0.2)
    assert (ids[task.training] != 0).all()
    assert (ids[task.held_out] != 0).all()
    inner = [at for at in range(len(ids) // BLOCK * BLOCK) if at % BLOCK >= 4 and ids[at]]
    assert sorted([*task.training, *task.held_out]) == inner


def test_another_seed_holds_other_words_out(text):
    one, same, other = (Words.open((text,), seed=seed) for seed in (1, 1, 2))
    assert np.array_equal(one.held_out, same.held_out)
    assert not np.array_equal(one.held_out, other.held_out)
    assert one.describe() == same.describe()
    differ = {key for key, value in one.describe().items() if other.describe()[key] != value}
    assert differ == {"held_out_by"}


def test_a_batch_is_what_stands_in_the_text(text):
    task = Words.open((text,), context=3)
    batch = task.batch(np.array([0, 17, 5]))
    stream = [
        number
        for line in Path(text).read_text("utf-8").splitlines()
        for number in task.tokenizer.plain(line)
    ]
    for row, following, at in zip(
        batch.words, batch.following, task.training[[0, 17, 5]], strict=True
    ):
        assert [*row.tolist(), int(following)] == stream[at - 3 : at + 1]
    assert batch.targets == 3


def test_loss_and_measure_are_the_log_of_what_was_given_to_the_right_word(text):
    task = Words.open((text,), vocabulary=7)
    model = task.model().double().eval()
    torch.nn.init.normal_(model.embedding.weight)
    nats, right = [], 0
    for at in task.held_out:
        logits = model(torch.tensor(task._ids[at - 4 : at], dtype=torch.long)).detach()
        nats.append(-float(log_softmax(logits, dim=-1)[int(task._ids[at])]))
        right += int(logits.argmax()) == task._ids[at]
    with torch.no_grad():
        told = task.measure(model)
    assert next(iter(told)) == task.judged_by
    assert told["perplexity"] == pytest.approx(math.exp(np.mean(nats)), rel=1e-9)
    assert told["accuracy"] == right / len(nats)
    batch = task._batch(task.held_out)
    assert float(task.loss(model, batch, 0.0).detach()) == pytest.approx(sum(nats), rel=1e-9)
    smooth = float(task.loss(model, batch, 0.3).detach())
    logits = log_softmax(model(batch.words).detach(), dim=-1)
    assert smooth == pytest.approx(0.7 * sum(nats) - 0.3 * float(logits.mean(dim=-1).sum()))


@pytest.mark.slow
@pytest.mark.parametrize("positions", [False, True])
def test_places_restore_what_a_bag_of_words_loses(text, tmp_path, positions):
    task = Words.open((text,), positions=positions, size=16)
    settings = replace(
        Words.usual, steps=300, batch=128, learning_rate=1e-2, warmup=20, measure_every=150,
        save_every=300,
    )  # fmt: skip
    out = tmp_path / "words"
    result = train(task, settings, out)
    model = load(out)
    told = dict(model.predict("peter told rosalind that", 100))
    turned = dict(model.predict("rosalind told peter that", 100))
    apart = max(abs(told[word] - turned[word]) for word in told)
    if positions:
        assert min(told["peter"], turned["rosalind"], apart) > 0.8
    else:
        assert apart < 1e-6
        assert min(told["peter"], turned["rosalind"]) <= 0.5
    assert result.values["perplexity"] < (2.6 if positions else 7)
    task.plot(model, tmp_path / "words.svg")
    root = ElementTree.parse(tmp_path / "words.svg").getroot()
    texts = {t.text for t in root.iter("{http://www.w3.org/2000/svg}text")}
    assert {"marianne", "jonathan", "rosalind"} <= texts


def test_too_few_words_to_draw_are_refused(text, tmp_path):
    task = Words.open((text,), vocabulary=3)
    with pytest.raises(ArgumentError, match="the vocabulary has 0 words of 5 letters or more"):
        task.plot(task.model(), tmp_path / "words.svg")
    assert not (tmp_path / "words.svg").exists()


def test_the_samples_show_both_orders_and_name_what_is_unknown(text):
    task = Words.open((text,))
    lines = task.samples(task.model().eval())
    frequent = task.frequent(5)
    counts = Counter(re.findall(r"\w+", Path(text).read_text("utf-8").lower()))
    assert all(len(word) >= 5 for word in frequent)
    assert [counts[word] for word in frequent] == sorted(
        (counts[word] for word in frequent), reverse=True
    )
    assert [line.split(":")[0] for line in lines[:5]] == [f"near {word!r}" for word in frequent]
    told = dict(line.split(": ") for line in lines[5:7])
    assert list(told) == ["after 'the coffee spilled on'", "after 'coffee on spilled the'"]
    assert len(set(told.values())) == 1  # a bag: the same, whatever the order
    assert lines[7] == "    (the, coffee, spilled, on: not in the vocabulary)"
    known = [line.split(": ") for line in lines[8:]]
    assert len(known) == 2
    first, other = (name.removeprefix("after '").removesuffix("'") for name, _ in known)
    assert other.split() == [first.split()[i] for i in (1, 3, 2, 0)]
    assert all(word in counts for word in first.split())
    for context in (1, 3, 8, 16):  # other than the four words that have another order
        other = Words.open((text,), context=context)
        assert len(other.samples(other.model().eval())) == 5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"context": 0}, "context is 0; wanted 1 to 16 words"),
        ({"context": 17}, "context is 17; wanted 1 to 16 words"),
        ({"context": 1, "positions": True}, "positions tell places apart"),
        ({"size": 0}, "size is 0; wanted 1 or more"),
        ({"vocabulary": 2}, "vocabulary is 2; wanted 3 words or more"),
    ],
)
def test_sizes_that_make_no_model_are_refused(text, options, message):
    with pytest.raises(ArgumentError, match=message):
        Words.open((text,), **options)


def test_a_short_text_and_a_missing_one_are_refused(tmp_path):
    short = tmp_path / "short.txt"
    short.write_text("one two three " * 60)
    with pytest.raises(ArgumentError, match="the text has 180 words; wanted 200 or more"):
        Words.open((str(short),))
    with pytest.raises(FileError, match="nothing"):
        Words.open((str(tmp_path / "nothing.txt"),))


def test_the_books_are_what_it_reads_by_default():
    task = Words.open()
    assert task.describe()["words"] > 100_000
    assert task.model().knows("the queen said to alice")
    assert isinstance(task.model(), WordModel)


@pytest.mark.parametrize("positions", [False, True])
def test_it_is_computed_in_double_and_under_autocast(text, positions):
    task = Words.open((text,), positions=positions)
    batch = task.batch(np.arange(37))
    model = task.model().double()
    exact = task.loss(model, batch, 0.0).detach()
    assert exact.dtype == torch.float64
    with torch.autocast("cpu", torch.bfloat16):
        short = task.loss(model.float(), batch, 0.0).detach()
    assert short.dtype == torch.float32
    assert float(short) == pytest.approx(float(exact), rel=1e-2)
