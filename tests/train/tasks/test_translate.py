"""The task of translating: batches, losses and measures of every system, on a little data."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from qkv.errors import ArgumentError, MissingPackageError
from qkv.models import load
from qkv.train.loop import train
from qkv.train.targets import IGNORED
from qkv.train.tasks.translate import LETTERS, Translate
from qkv.train.translation import measures
from qkv.train.translation.systems import SYSTEMS, Sizes
from tests.train.unchecked import quickly_read  # noqa: F401

SMALL = Sizes(vocabulary=600, width=24, layers=2, heads=3, hidden=40, dropout=0.1, longest=40)


@pytest.fixture(scope="module")
def task(quickly_read: None) -> Translate:  # noqa: F811
    return Translate.open(seed=1, sizes=SMALL, limit=2000)


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    path = tmp_path / "mine.tsv"
    long = "word " * 60
    rows = [f"{long}\tpalabra", "?!\t¡", *(f"the number {i}\tel número {i}" for i in range(30))]
    path.write_text("\n".join(rows) + "\n", "utf-8")
    return path


def test_a_batch_holds_each_pair_with_its_padding(task: Translate) -> None:
    pairs = list(task.pairs.training())
    examples = np.array([5, 0, 17, 11])
    batch = task.batch(examples)
    sources = [[*task.tokenizer.plain(pairs[i].source), 1] for i in examples]
    targets = [[*task.tokenizer.plain(pairs[i].target), 1] for i in examples]
    assert batch.targets == sum(map(len, targets))
    assert batch.source.shape == (4, max(map(len, sources)))
    for row, (source, target) in enumerate(zip(sources, targets, strict=True)):
        assert int(batch.source_lengths[row]) == len(source)
        assert batch.source[row].tolist() == source + [0] * (batch.source.shape[1] - len(source))
        rest = batch.wanted.shape[1] - len(target)
        assert batch.wanted[row].tolist() == target + [IGNORED] * rest
        assert batch.ids[row].tolist()[: len(target)] == [0, *target[:-1]]
        assert batch.ids[row].tolist()[len(target) :] == [0] * rest
    assert (batch.wanted == IGNORED).any()
    assert int(batch.ids.min()) >= 0


@pytest.mark.parametrize("system", SYSTEMS)
@pytest.mark.parametrize("smoothing", [0.0, 0.3])
@torch.no_grad()
def test_the_loss_is_the_sum_over_sentences_by_themselves(
    task: Translate, system: str, smoothing: float
) -> None:
    one = task.by(system)
    model = one.model().double().eval()
    examples = np.array([3, 8, 21, 2, 30])
    whole = one.loss(model, one.batch(examples), smoothing)
    expected = 0.0
    pairs = list(one.pairs.training())
    for i in examples:
        source = torch.tensor([[*one.tokenizer.plain(pairs[i].source), 1]])
        target = [*one.tokenizer.plain(pairs[i].target), 1]
        logits = model(source, torch.tensor([[0, *target[:-1]]]))[0]
        chances = torch.log_softmax(logits, dim=-1)
        for row, token in zip(chances, target, strict=True):
            expected -= float((1 - smoothing) * row[token] + smoothing * row.mean())
    assert float(whole) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("system", SYSTEMS)
def test_every_system_runs_in_short_precision(task: Translate, system: str) -> None:
    one = task.by(system)
    model = one.model()
    with torch.autocast("cpu", torch.bfloat16):
        loss = one.loss(model, one.batch(np.arange(4)), 0.1)
    loss.backward()
    assert torch.isfinite(loss)
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert torch.isfinite(parameter.grad).all(), name


@torch.no_grad()
def test_dropout_is_drawn_in_training_alone(task: Translate) -> None:
    for system in SYSTEMS:
        model = task.by(system).model()
        batch = task.batch(np.arange(3))
        losses = [float(task.loss(model.train(), batch, 0.0)) for _ in range(2)]
        assert losses[0] != losses[1], system
        losses = [float(task.loss(model.eval(), batch, 0.0)) for _ in range(2)]
        assert losses[0] == losses[1], system


@pytest.mark.slow
@pytest.mark.parametrize("system", SYSTEMS)
def test_a_trained_system_is_a_folder_that_translates(
    task: Translate, system: str, tmp_path: Path
) -> None:
    one = task.by(system)
    settings = replace(Translate.usual, steps=4, batch=300, warmup=2, measure_every=4, save_every=4)
    result = train(one, settings, tmp_path / "out")
    assert set(result.values) == {"chrf", "bleu", "exact"}
    model = load(tmp_path / "out")
    assert model.config.vocab_size == one.tokenizer.size
    assert sum(p.numel() for p in model.parameters()) == result.parameters
    (written,) = model.translate("The sky is blue!", max_tokens=5)
    assert written.ids == model.translate("the sky is blue", max_tokens=5)[0].ids
    texts = [pair.source for pair in one.held_out]
    assert dict(one.measure(model)) == pytest.approx(dict(result.values), abs=1.5)  # half precision
    together = one.translations(model, texts[:5])
    assert together == [one.translations(model, [text])[0] for text in texts[:5]]


@pytest.mark.slow
def test_a_transformer_learns_a_small_language(tmp_path: Path) -> None:
    nouns = {"cat": "gato", "dog": "perro", "boy": "niño", "horse": "caballo", "bird": "pájaro"}
    verbs = {"sees": "ve", "hears": "oye", "follows": "sigue", "finds": "encuentra"}
    rows = [
        f"the {a} {v} the {b}\tel {nouns[a]} {verbs[v]} al {nouns[b]}"
        for a in nouns for v in verbs for b in nouns
    ]  # fmt: skip
    path = tmp_path / "small.tsv"
    path.write_text("\n".join(rows) + "\n", "utf-8")
    task = Translate.open([str(path)], sizes=replace(SMALL, dropout=0.0, width=48))
    settings = replace(
        Translate.usual, steps=150, batch=300, warmup=20, learning_rate=5e-3, measure_every=50
    )
    result = train(task, settings, tmp_path / "out")
    assert result.values["exact"] == 1.0
    assert task.samples(load(tmp_path / "out"))[0].endswith(task.wanted[0])


def test_pairs_without_tokens_or_with_too_many_are_left_out(mine: Path) -> None:
    task = Translate.open([str(mine)], sizes=SMALL)
    assert task.describe()["training"] + len(task.held_out) == 30
    assert task.describe()["left_out"] == 2
    assert task.by("dot").describe()["left_out"] == 2


def test_a_set_of_which_nothing_could_be_measured_is_refused_by_name(tmp_path: Path) -> None:
    long = tmp_path / "long.tsv"
    long.write_text("\n".join(f"{'word ' * 50}{i}\tpalabra {i}" for i in range(30)), "utf-8")
    with pytest.raises(ArgumentError, match=r"of .*long.tsv no pair that is held out has 1 to 39"):
        Translate.open(["phrasebook", str(long)], sizes=SMALL, limit=2000)


def test_files_of_one_name_are_told_apart_by_their_folders(mine: Path, tmp_path: Path) -> None:
    other = tmp_path / "other" / mine.name
    other.parent.mkdir()
    other.write_text("\n".join(f"a thing {i}\tuna cosa {i}" for i in range(30)), "utf-8")
    task = Translate.open([str(mine), str(other)], sizes=SMALL)
    told = task.measure(task.model().eval())
    assert {f"exact {mine}", f"exact {other}"} < set(told)


def test_long_sentences_are_cut_where_they_are_shown(tmp_path: Path) -> None:
    path = tmp_path / "long.tsv"
    path.write_text("\n".join(f"{'word ' * 25}{i}\tpalabra {i}" for i in range(30)), "utf-8")
    task = Translate.open([str(path)], sizes=replace(SMALL, vocabulary=300))
    for line, pair in zip(task.samples(task.model().eval()), task.held_out, strict=False):
        shown, _, its = line.partition(" → ")
        assert shown == f"{pair.source[:LETTERS]}…"
        assert len(its) <= LETTERS + 1


def test_the_description_tells_systems_and_sizes_apart(task: Translate, mine: Path) -> None:
    told = task.describe()
    assert told == task.by("transformer").describe()
    assert told["system"] == "transformer"
    assert len({str(task.by(system).describe()) for system in SYSTEMS}) == len(SYSTEMS)
    wider = Translate(task.pairs, "transformer", replace(SMALL, width=48)).describe()
    assert {key for key in told if told[key] != wider[key]} == {"d_model"}
    assert Translate.open([str(mine)], sizes=SMALL).describe()["data"] != told["data"]


def test_several_sets_are_told_apart_in_the_measure(mine: Path) -> None:
    task = Translate.open(["phrasebook", str(mine)], sizes=SMALL, limit=2000)
    told = task.measure(task.model().eval())
    assert set(told) == {"chrf", "bleu", "exact", "exact phrasebook", "exact mine.tsv"}
    apart = [pair.origin for pair in task.held_out]
    parts = {
        "exact phrasebook": apart.count("phrasebook"),
        "exact mine.tsv": apart.count(str(mine)),
    }
    whole = sum(told[name] * count for name, count in parts.items())
    assert whole == pytest.approx(told["exact"] * len(apart))


def test_unknown_systems_are_refused_before_data_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ArgumentError, match="system is 'lstm'; wanted one of single, additive"):
        Translate.open(["/no/such/file"], system="lstm")
    monkeypatch.setattr(measures, "find_spec", lambda name: None)
    with pytest.raises(MissingPackageError, match="sacrebleu"):
        Translate.open(["/no/such/file"])


@torch.no_grad()
def test_a_wrapped_model_is_only_called(task: Translate) -> None:
    class Wrapped(nn.Module):
        def __init__(self, model: nn.Module) -> None:
            super().__init__()
            self._inner = (model,)

        def forward(self, *args: torch.Tensor) -> torch.Tensor:
            return self._inner[0](*args)

    model = task.model().eval()
    batch = task.batch(np.arange(3))
    assert float(task.loss(Wrapped(model), batch, 0.1)) == float(task.loss(model, batch, 0.1))
