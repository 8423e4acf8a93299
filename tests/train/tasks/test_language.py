"""The language task: what it holds out, what it counts, and what its folder can do."""

import math
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn.functional import log_softmax
from typer.testing import CliRunner

from qkv.cli.main import app
from qkv.errors import ArgumentError, FileError
from qkv.models import load
from qkv.models.decoder_only import DecoderOnly
from qkv.train.loop import train
from qkv.train.tasks import language
from qkv.train.tasks.language import Language, Places, Windows
from qkv.train.vocabulary import END

SIZES = {"context": 13, "layers": 2, "width": 24, "heads": 3}


@pytest.fixture
def prose(tmp_path: Path) -> Path:
    """A text of which every line can be told from the others, longer than a chunk."""
    path = tmp_path / "prose.txt"
    lines = (f"{i} is the number of this line, and {i * 7 % 11} is not.\n" for i in range(1500))
    path.write_text("ésta es la primera línea\n" + "".join(lines), "utf-8")
    return path


@pytest.fixture
def task(prose: Path) -> Language:
    return Language.open([str(prose)], vocabulary=300, **SIZES)


def text_of(task: Language, training: bool) -> str:
    packed = task.training if training else task.held_out
    return task.tokenizer.decode(packed.window(0, packed.tokens).tolist())


@pytest.mark.parametrize("kind", ["bytes", "bpe"])
def test_the_last_tenth_of_each_text_is_held_out(kind: str, prose: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.txt"
    other.write_text("abcdefghij" * 20 + "KLMNOPQRST" * 2)
    task = Language.open([str(prose), str(other)], tokens=kind, vocabulary=280, **SIZES)
    wholes = [path.read_text("utf-8") for path in (prose, other)]
    cuts = [int(len(whole) * 0.9) for whole in wholes]
    assert text_of(task, True) == "".join(w[:c] for w, c in zip(wholes, cuts, strict=True))
    assert text_of(task, False) == "".join(w[c:] for w, c in zip(wholes, cuts, strict=True))
    ends = task.held_out.window(0, task.held_out.tokens) == task.tokenizer.special[END]
    assert ends.sum() == 2, "each text ends"
    assert ends[-1]


def test_the_vocabulary_is_made_of_the_training_text_alone(tmp_path: Path) -> None:
    path = tmp_path / "prose.txt"
    path.write_text("ab ac ad ae " * 75 + "xyz " * 25)
    task = Language.open([str(path)], vocabulary=400, **SIZES)
    pieces = {task.tokenizer.piece(i) for i in range(task.tokenizer.size)}
    assert "ab" in pieces or "Ġab" in pieces
    assert not any("xy" in piece or "yz" in piece for piece in pieces)


def test_the_books_are_what_is_read_by_default() -> None:
    task = Language.open(tokens="bytes")
    assert task.training.tokens + task.held_out.tokens > 700_000
    assert "Alice" in text_of(task, True)
    assert task.describe()["vocabulary"] == 257


def test_windows_lie_side_by_side_and_differ_from_epoch_to_epoch() -> None:
    order = Places(1000, 13, 7, seed=3)
    epochs = [order.epoch(i) for i in range(3)]
    for batches in epochs:
        starts = np.sort(np.concatenate(batches))
        assert {len(batch) for batch in batches} == {7}
        assert starts[0] >= 0
        assert starts[-1] + 13 < 1000
        assert np.all(np.diff(starts) % 13 == 0)
        assert len(set(starts.tolist())) == len(starts)
    assert len({tuple(np.concatenate(batches).tolist()) for batches in epochs}) == 3
    again = Places(1000, 13, 7, seed=3).batches(5)
    whole = Places(1000, 13, 7, seed=3).batches()
    assert [next(again).tolist() for _ in range(30)] == [
        batch.tolist() for batch in islice(whole, 5, 35)
    ]
    assert not np.array_equal(Places(1000, 13, 7, seed=4).epoch(0)[0], epochs[0][0])


@pytest.mark.parametrize("tokens", [14, 15, 26, 27, 28])
def test_every_token_of_a_short_text_is_reached(tokens: int) -> None:
    order = Places(tokens, 13, 5, seed=0)
    read = {
        at for i in range(300) for batch in order.epoch(i) for start in batch
        for at in range(start, start + 14)
    }  # fmt: skip
    assert read == set(range(tokens))


def test_of_each_token_the_next_is_to_be_told(task: Language) -> None:
    batch = task.batch(np.array([0, 5, 77]))
    stream = task.training.window(0, 100).tolist()
    assert batch.ids.tolist() == [stream[i : i + 13] for i in (0, 5, 77)]
    assert batch.following.tolist() == [stream[i + 1 : i + 14] for i in (0, 5, 77)]
    assert batch.targets == 39


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_loss_is_the_sum_over_the_targets(task: Language, smoothing: float) -> None:
    model, batch = task.model().double(), task.batch(np.array([3, 50]))
    p = log_softmax(model(batch.ids).detach(), -1).numpy()
    wanted = 0.0
    for row in range(2):
        for at in range(13):
            told = p[row, at, int(batch.following[row, at])]
            wanted -= (1 - smoothing) * told + smoothing * p[row, at].mean()
    assert float(task.loss(model, batch, smoothing).detach()) == pytest.approx(wanted, rel=1e-12)


def test_a_new_model_knows_nothing(task: Language) -> None:
    batch = task.batch(np.arange(0, 400, 13))
    loss = float(task.loss(task.model(), batch, 0.0).detach()) / batch.targets
    assert loss == pytest.approx(math.log(task.tokenizer.size), abs=0.3)


@pytest.mark.parametrize("kind", ["bytes", "bpe"])
@pytest.mark.parametrize("most", [7, 10_000])
def test_the_measure_counts_nats_and_bytes(
    kind: str, most: int, prose: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(language, "MOST_WINDOWS", most)
    task = Language.open([str(prose)], tokens=kind, vocabulary=300, **SIZES)
    model = task.model().double().eval()
    stream = task.held_out.window(0, task.held_out.tokens)
    starts = list(range(0, len(stream) - 13, 13))
    starts = starts[:: math.ceil(len(starts) / most)]
    rows = torch.from_numpy(np.stack([stream[i : i + 14] for i in starts]).astype(np.int64))
    p = log_softmax(model(rows[:, :-1]).detach(), -1)
    nats = -float(p.gather(-1, rows[:, 1:, None]).sum())
    texts = [task.tokenizer.decode(row[1:]) for row in rows.tolist()]
    assert not any("\ufffd" in text for text in texts), "no window cuts a character"
    values = task.measure(model)
    assert values["loss"] == pytest.approx(nats / (13 * len(starts)), rel=1e-12)
    assert values["perplexity"] == pytest.approx(math.exp(values["loss"]), rel=1e-12)
    bits = nats / math.log(2) / sum(len(text.encode()) for text in texts)
    assert values["bits a byte"] == pytest.approx(bits, rel=1e-12)
    assert next(iter(values)) == task.judged_by


def test_a_token_counts_by_its_bytes(task: Language) -> None:
    text = "¿qué línea? 你好\n"
    ids = [*task.tokenizer.plain(text), task.tokenizer.special[END]]
    assert int(task.bytes_of[ids].sum()) == len(text.encode())


@pytest.mark.slow
def test_it_learns_and_its_folder_writes_on(task: Language, tmp_path: Path) -> None:
    out = tmp_path / "out"
    few = replace(Language.usual, steps=60, batch=16, warmup=5, learning_rate=1e-2,
                  measure_every=30, save_every=60)  # fmt: skip
    result = train(task, few, out)
    assert result.values["perplexity"] < task.tokenizer.size / 10
    model = load(out)
    assert isinstance(model, DecoderOnly)
    assert model.rules.ends == {task.tokenizer.special[END]}
    assert task.measure(model) == pytest.approx(dict(result.values), rel=1e-5)
    samples = task.samples(model)
    assert len(samples) == 3
    assert samples == task.samples(model)
    ran = CliRunner().invoke(
        app, ["generate", "7 is the", "--model", str(out), "--max-tokens", "5"]
    )
    assert ran.exit_code == 0, ran.output
    assert model.generate("7 is the", max_tokens=5)[0].text.strip() in ran.stdout


@pytest.mark.slow
def test_hugging_face_reads_the_folder_and_finds_the_same(task: Language, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    model = task.model().eval()
    task.save(model, tmp_path / "out")
    theirs = transformers.LlamaForCausalLM.from_pretrained(tmp_path / "out").eval()
    ids = task.batch(np.array([0, 9])).ids
    with torch.no_grad():
        torch.testing.assert_close(model(ids), theirs(ids).logits, rtol=1e-4, atol=1e-4)


def test_bfloat16_gives_nearly_the_same_loss(task: Language) -> None:
    model, batch = task.model(), task.batch(np.arange(0, 130, 13))
    exact = float(task.loss(model, batch, 0.0).detach())
    with torch.autocast("cpu", torch.bfloat16):
        short = task.loss(model, batch, 0.0)
    assert short.dtype == torch.float32
    assert float(short.detach()) == pytest.approx(exact, rel=2e-3)


def test_every_parameter_gets_a_gradient(task: Language) -> None:
    model = task.model()
    task.loss(model, task.batch(np.arange(0, 65, 13)), 0.1).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert torch.isfinite(parameter.grad).all(), name
        assert parameter.grad.abs().max() > 0, name


def test_other_data_or_sizes_are_described_otherwise(prose: Path, task: Language) -> None:
    same = Language.open([str(prose)], vocabulary=300, **SIZES)
    assert same.describe() == task.describe()
    wider = Language.open([str(prose)], vocabulary=300, **{**SIZES, "width": 48})
    assert {k for k, v in wider.describe().items() if task.describe()[k] != v} == {"width"}
    text = prose.read_text("utf-8")
    prose.write_text(text.replace("number", "letter", 1), "utf-8")
    changed = Language.open([str(prose)], vocabulary=300, **SIZES).describe()
    assert changed["sha256"] != task.describe()["sha256"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tokens": "words"}, "tokens is 'words'; wanted bpe or bytes"),
        ({"vocabulary": 1}, "the vocabulary's size is 1; wanted 257 or more"),
        ({"width": 25}, "width=25 makes no even number of values for each of heads=3"),
        ({"width": 27}, "width=27 makes no even number"),
        ({"layers": 0}, "layers is 0; wanted a whole number above 0"),
        ({"context": 1_000_000}, "wanted more than the context of 1000000"),
    ],
)
def test_what_cannot_be_meant_is_refused(
    options: dict[str, object], message: str, prose: Path, as_shipped: None
) -> None:
    with pytest.raises(ArgumentError, match=message):
        Language.open([str(prose)], **{"vocabulary": 300, **SIZES, **options})  # type: ignore[arg-type]


@pytest.mark.parametrize("tokens", ["bytes", "bpe"])
@pytest.mark.parametrize("context", [1, 2, 4])
def test_samples_begin_with_what_a_short_context_holds(
    tokens: str, context: int, prose: Path
) -> None:
    sizes = SIZES | {"context": context}
    task = Language.open([str(prose)], tokens=tokens, vocabulary=300, **sizes)
    assert task.samples(task.model().eval())


def test_empty_and_absent_files_are_refused(tmp_path: Path) -> None:
    empty = tmp_path / "empty.txt"
    empty.write_text("")
    with pytest.raises(FileError, match="holds no text"):
        Language.open([str(empty)])
    with pytest.raises(FileError, match="wanted books"):
        Language.open([str(tmp_path / "absent.txt")])


def test_a_text_shorter_than_a_window_is_refused(tmp_path: Path) -> None:
    short = tmp_path / "short.txt"
    short.write_text("ab")
    with pytest.raises(ArgumentError, match=r"has 2 tokens; wanted more than the context of 13"):
        Language.open([str(short)], tokens="bytes", **SIZES)


def test_a_batch_goes_to_a_device(task: Language, device: torch.device) -> None:
    batch = task.batch(np.array([0])).to(device)
    assert isinstance(batch, Windows)
    assert batch.ids.device.type == batch.following.device.type == device.type
