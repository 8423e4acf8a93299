"""The task of labels: what is held out, what is measured, and what is learnt on top of what."""

import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import tokenizers
import torch
from tokenizers import normalizers, pre_tokenizers
from tokenizers.models import WordLevel
from torch.nn.functional import log_softmax

from qkv.errors import ArgumentError, FileError, LinesError, ModelError
from qkv.models import load
from qkv.models.bert import BERT, Bert, BertConfig
from qkv.models.saving import save_folder
from qkv.models.text.tokenizer import Tokenizer
from qkv.train.loop import train
from qkv.train.tasks.classify import Classify, macro_f1
from qkv.train.vocabulary import trained_bpe

GOOD, BAD = ("fine", "lovely", "great", "moving"), ("dull", "awful", "poor", "empty")
THINGS = ("film", "story", "cast", "music", "scene", "ending", "joke", "hero")


def reviews(seed, count=150):
    """Texts whose label is that of their one adjective; a third kind has none."""
    random = np.random.default_rng(seed)
    for _ in range(count):
        label = ("bad", "good", "none")[int(random.choice(3, p=[0.4, 0.4, 0.2]))]
        word = {"good": GOOD, "bad": BAD, "none": ("red", "long")}[label]
        one, other = random.choice(THINGS, size=2)
        yield (
            f"The {other} {'is here and the' if random.random() < 0.5 else 'of a'} {one} "
            + (f"is {random.choice(word)}, number {random.integers(10_000)}"),
            label,
        )


@pytest.fixture
def rows(seed):
    return list(reviews(seed))


@pytest.fixture
def file(rows, tmp_path):
    path = tmp_path / "reviews.tsv"
    path.write_text("".join(f"{text}\t{label}\n" for text, label in rows), "utf-8")
    return str(path)


@pytest.fixture
def encoder(rows, tmp_path):
    """The folder of an encoder of random weights, with tokens of its own."""
    tokenizer = trained_bpe((text for text, _ in rows), 300, special=("[CLS]", "[SEP]"),
                            before=("[CLS]",), after=("[SEP]",))  # fmt: skip
    config = BertConfig(tokenizer.size, 24, 2, 3, 36, 60)
    save_folder(Bert(config, tokenizer), BERT, tmp_path / "encoder", tokenizer=tokenizer)
    return str(tmp_path / "encoder")


def test_a_fifth_of_every_label_is_held_out_and_no_text_on_both_sides(file, rows, tmp_path):
    twice = tmp_path / "twice.tsv"
    twice.write_text("".join(f"{text}\t{label}\n" for text, label in [*rows, *rows[:40]]))
    task = Classify.open((str(twice),), seed=5)
    assert sorted([*task.training, *task.held_out]) == list(range(190))
    texts = [{task.texts[i].text for i in side} for side in (task.training, task.held_out)]
    assert not texts[0] & texts[1]
    task = Classify.open((file,), seed=5)
    counts = Counter(label for _, label in rows)
    out = Counter(task.texts[i].label for i in task.held_out)
    assert out.keys() == counts.keys()
    assert all(abs(out[label] - 0.2 * counts[label]) <= 1 for label in counts)
    again, other = Classify.open((file,), seed=5), Classify.open((file,), seed=6)
    assert np.array_equal(task.held_out, again.held_out)
    assert not np.array_equal(task.held_out, other.held_out)
    assert task.describe() == again.describe()


def test_loss_and_measure_are_those_of_each_text_by_itself(file):
    task = Classify.open((file,))
    model = task.model().double().eval()
    torch.nn.init.normal_(model.output.weight)
    nats, found, truth = [], [], []
    for i in task.held_out:
        logits = model(torch.tensor([task.encoding.tokenizer(task.texts[i].text).ids]))[0]
        label = task.labels.index(task.texts[i].label)
        nats.append(-float(log_softmax(logits.detach(), dim=-1)[label]))
        found.append(int(logits.argmax()))
        truth.append(label)
    with torch.no_grad():
        told = task.measure(model)
    assert next(iter(told)) == task.judged_by
    assert told["accuracy"] == np.mean(np.array(found) == truth)
    batch = task._batch(task.held_out)
    assert batch.targets == len(task.held_out)
    assert float(task.loss(model, batch, 0.0).detach()) == pytest.approx(sum(nats), rel=1e-9)
    assert task.loss(model, batch, 0.0).dtype == torch.float64
    with torch.autocast("cpu", torch.bfloat16):
        short = task.loss(model.float(), batch, 0.0).detach()
    assert short.dtype == torch.float32
    assert float(short) == pytest.approx(sum(nats), rel=2e-2)


def test_macro_f1_is_scikit_learns(seed):
    f1_score = pytest.importorskip("sklearn.metrics").f1_score
    random = np.random.default_rng(seed)
    truth, found = random.integers(5, size=97), random.integers(5, size=97)
    wanted = f1_score(truth, found, average="macro")
    assert macro_f1(truth, found, 5) == pytest.approx(wanted, rel=1e-12)
    found = np.where(found == 3, 1, found)
    wanted = f1_score(truth, found, average="macro")
    assert macro_f1(truth, found, 5) == pytest.approx(wanted, rel=1e-12)
    truth = np.where(truth == 3, 2, truth)  # a label that is nowhere
    wanted = f1_score(truth, found, average="macro")
    assert macro_f1(truth, found, 5) == pytest.approx(wanted, rel=1e-12)
    assert macro_f1(truth, truth, 5) == 1.0


@pytest.mark.slow
def test_from_scratch_it_learns_what_decides(file, tmp_path):
    task = Classify.open((file,), vocabulary=400)
    settings = replace(
        Classify.usual, steps=60, batch=600, warmup=10, measure_every=30, save_every=60
    )
    result = train(task, settings, tmp_path / "mood")
    assert result.values["accuracy"] > 0.9
    assert result.values["macro_f1"] > 0.85
    model = load(tmp_path / "mood")
    assert [one.label for one in model.classify(["The story is lovely", "The hero is dull"])] == [
        "good", "bad",
    ]  # fmt: skip
    with torch.no_grad():
        assert task.measure(model) == pytest.approx(dict(result.values))
        told = task.samples(model)
    assert len(told) == 4
    assert all(line.endswith(("(right)", "(it is bad)", "(it is good)")) for line in told)


@pytest.mark.parametrize("frozen", [False, True])
def test_an_encoder_that_was_loaded_is_tuned_or_left_as_it_is(file, encoder, tmp_path, frozen):
    task = Classify.open((file,), model=encoder, frozen=frozen)
    assert task.usual.learning_rate < Classify.usual.learning_rate or frozen
    before = load(encoder).state_dict()
    settings = replace(
        task.usual, steps=3, batch=300, warmup=0, learning_rate=1e-2, measure_every=3
    )
    train(task, settings, tmp_path / "mood")
    after = load(tmp_path / "mood")
    same = [torch.equal(after.bert.state_dict()[name], was) for name, was in before.items()]
    assert all(same) if frozen else sum(same) <= 1  # of the second segment nothing is read
    torch.manual_seed(settings.seed)
    untrained = task.model().output.weight.detach()
    moved = (after.output.weight.detach() - untrained).abs().max()
    assert 0 < float(moved) < 0.1  # the same numbers, moved
    assert after.tokenizer.json() == load(encoder).tokenizer.json()
    fresh = task.model().bert.state_dict()
    assert all(torch.equal(fresh[name], was) for name, was in before.items())


def test_another_spelling_of_a_text_is_on_its_side(rows, tmp_path):
    path = tmp_path / "spelt.tsv"
    other = [(f"  {text.upper().replace(' ', '   ')}", label) for text, label in rows]
    path.write_text("".join(f"{text}\t{label}\n" for text, label in [*rows, *other]), "utf-8")
    task = Classify.open((str(path),), seed=2)
    texts = [{" ".join(task.texts[i].text.lower().split()) for i in side}
             for side in (task.training, task.held_out)]  # fmt: skip
    assert all(texts)
    assert not texts[0] & texts[1]


def test_texts_without_a_token_are_named_by_file_and_line(rows, tmp_path):
    rules = tokenizers.Tokenizer(WordLevel({"[UNK]": 0, "film": 1, "story": 2}, "[UNK]"))
    rules.pre_tokenizer = pre_tokenizers.Whitespace()
    rules.normalizer = normalizers.Replace(tokenizers.Regex("[^a-z]"), " ")
    tokenizer = Tokenizer(rules)
    config = BertConfig(3, 24, 1, 3, 36, 60)
    save_folder(Bert(config, tokenizer), BERT, tmp_path / "encoder", tokenizer=tokenizer)
    path = tmp_path / "reviews.tsv"
    lines = [f"{text}\t{label}" for text, label in rows]
    lines[3:3], lines[70:70] = ["123 !\tgood", ""], ["漢字\tbad"]
    path.write_text("\n".join(lines), "utf-8")
    with pytest.raises(LinesError) as refused:
        Classify.open((str(path),), model=str(tmp_path / "encoder"))
    assert str(refused.value).splitlines() == [
        f"{path}:4: text is '123 !': there is no token in it",
        f"{path}:71: text is '漢字': there is no token in it",
    ]


@pytest.mark.parametrize("frozen", [False, True])
def test_every_parameter_that_is_trained_gets_a_gradient(file, encoder, frozen):
    for task in (Classify.open((file,)), Classify.open((file,), model=encoder, frozen=frozen)):
        model = task.model()
        with torch.autocast("cpu", torch.bfloat16):
            loss = task.loss(model, task._batch(task.held_out[:7]), 0.1)
        loss.backward()
        for name, parameter in model.named_parameters():
            left = task.frozen and name.startswith("bert.")
            assert parameter.requires_grad == (not left), name
            assert left or torch.isfinite(parameter.grad).all(), name


def test_a_text_that_is_too_long_is_cut_and_keeps_its_end(tmp_path, rows):
    long = [("word " * 500, "good"), *rows]
    path = tmp_path / "long.tsv"
    path.write_text("".join(f"{text}\t{label}\n" for text, label in long))
    task = Classify.open((str(path),), longest=17)
    assert max(map(len, task._rows)) == 17
    ids = task.encoding.tokenizer("word " * 500).ids
    assert task._rows[0] == (*ids[:16], ids[-1])
    assert task.model().most == 17


def test_batches_hold_so_many_tokens_with_their_padding(file):
    task = Classify.open((file,))
    seen = []
    for examples in task.order(200, seed=1).epoch(0):
        batch = task.batch(examples)
        assert batch.ids.numel() <= 200
        for row, length, i in zip(batch.ids, batch.lengths, examples, strict=True):
            assert tuple(row[:length].tolist()) == task._rows[task.training[i]]
            assert not row[length:].any()
        seen += examples.tolist()
    assert sorted(seen) == list(range(len(task.training)))


def test_what_cannot_be_learnt_from_is_refused(file, tmp_path, encoder):
    with pytest.raises(ArgumentError, match="data is missing: no labelled texts are built in"):
        Classify.open()
    with pytest.raises(ArgumentError, match="frozen leaves a loaded encoder as it is"):
        Classify.open((file,), frozen=True)
    with pytest.raises(ArgumentError, match="longest is 2; wanted 3 tokens or more"):
        Classify.open((file,), longest=2)
    with pytest.raises(FileError, match="nothing"):
        Classify.open((str(tmp_path / "nothing.tsv"),))
    one = tmp_path / "one.tsv"
    one.write_text("a\tgood\nb\tgood\n")
    with pytest.raises(ArgumentError, match=r"the labels are \['good'\]; wanted two or more"):
        Classify.open((str(one),))
    one.write_text("a\tgood\nb\tgood\nc\tbad\nd\tso so\n")
    with pytest.raises(ArgumentError, match="of 'bad', 'so so' there is one text each"):
        Classify.open((str(one),))
    one.write_text("buy now\tspam\n" * 3 + "".join(f"text {i}\tham\n" for i in range(9)))
    with pytest.raises(ArgumentError, match="of 'spam' nothing is left to train on"):
        Classify.open((str(one),))
    one.write_text("a\tgood\nb\tgood\nc\tbad\nd\tbad\n")
    with pytest.raises(ArgumentError, match="no label has 3 texts; wanted 3 or more of some label"):
        Classify.open((str(one),))
    with pytest.raises((ModelError, FileError), match="no model named 'nobody'"):
        Classify.open((file,), model="nobody")


def test_on_top_of_another_kind_of_model_is_refused(file, tmp_path):
    task = Classify.open((file,))
    task.save(task.model(), tmp_path / "mood")
    with pytest.raises(ArgumentError, match=r"a Classifier; wanted an encoder of text such as"):
        Classify.open((file,), model=str(tmp_path / "mood"))


def test_a_new_model_is_unsure(file, encoder):
    for task in (Classify.open((file,)), Classify.open((file,), model=encoder)):
        model = task.model().eval()
        loss = task.loss(model, task._batch(task.held_out), 0.0).detach() / len(task.held_out)
        assert float(loss) == pytest.approx(math.log(3), abs=0.5)
