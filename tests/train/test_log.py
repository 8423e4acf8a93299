"""What a training writes down: whole lines, and none that a checkpoint does not reach."""

import json
import math
import sys
from pathlib import Path

import pytest

from qkv.errors import FileError, MissingPackageError
from qkv.train.events import Measured, Saved, Started, Stepped
from qkv.train.log import BOARD, LOG, JsonLog, last_best, tell, tensorboard

FULL = pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device is always full here")


def stepped(step, loss=2.5):
    return Stepped(step, loss, learning_rate=0.25, gradient=1.5, targets=12, seconds=0.5)


def measured(step, best=True, value=0.75):
    values = {"exact": value, "chrF": 34.5}
    return Measured(step, values, ("el cielo → ñ", 'two\nlines"'), best)


def training(log, first=0, last=7, save_every=3):
    """What a training of seven steps tells, from a checkpoint on."""
    log(Started(first, steps=7, parameters=99, processes=1))
    for step in range(first + 1, last + 1):
        log(stepped(step, loss=1 / step))
        if step % 2 == 0:
            log(measured(step, best=step < 5))
        if step % save_every == 0:
            log(Saved(step, Path("checkpoints")))


@pytest.fixture
def path(tmp_path):
    return tmp_path / LOG


@pytest.fixture
def undisturbed(tmp_path):
    path = tmp_path / "undisturbed.jsonl"
    training(JsonLog(path))
    return path.read_bytes()


def test_each_event_is_a_line_that_says_what_happened(path):
    log = JsonLog(path)
    for event in (Started(0, 7, 99, 2), stepped(1), measured(1), Saved(1, path)):
        log(event)
    assert [json.loads(line) for line in path.read_text("utf-8").splitlines()] == [
        {"kind": "started", "step": 0, "steps": 7, "parameters": 99, "processes": 2},
        {"kind": "stepped", "step": 1, "loss": 2.5, "learning_rate": 0.25, "gradient": 1.5,
         "targets": 12, "seconds": 0.5, "tokens_per_second": 24.0},
        {"kind": "measured", "step": 1, "values": {"exact": 0.75, "chrF": 34.5},
         "samples": ["el cielo → ñ", 'two\nlines"'], "best": True},
    ]  # fmt: skip


def test_nothing_is_written_before_training_begins(path):
    JsonLog(path)
    assert not path.exists()


@pytest.mark.parametrize("stopped", range(8))
def test_what_goes_on_from_a_checkpoint_ends_with_the_log_of_what_was_not_stopped(
    path, undisturbed, stopped
):
    training(JsonLog(path), last=stopped)
    training(JsonLog(path), first=stopped - stopped % 3)
    assert path.read_bytes() == undisturbed


@pytest.mark.parametrize("first", [0, 3, 6])
def test_a_kill_at_any_byte_after_the_checkpoint_is_mended(path, undisturbed, first):
    lines = undisturbed.splitlines(keepends=True)
    reached = sum(len(line) for line in lines if json.loads(line)["step"] <= first) if first else 0
    for length in range(reached, len(undisturbed) + 1, 97):
        path.write_bytes(undisturbed[:length])
        training(JsonLog(path), first=first)
        assert path.read_bytes() == undisturbed


def test_a_log_that_was_thrown_away_begins_where_training_goes_on(path, undisturbed):
    training(JsonLog(path), first=3)
    assert json.loads(path.read_text().splitlines()[0])["step"] == 4


def test_what_is_no_number_is_a_text(path):
    log = JsonLog(path)
    log(Started(0, 7, 99, 1))
    log(stepped(1, loss=math.nan))
    log(measured(1, value=-math.inf))
    log(Stepped(2, math.inf, learning_rate=0.25, gradient=1.5, targets=12, seconds=0.0))
    first, second, third = (json.loads(line) for line in path.read_text().splitlines()[1:])
    assert first["loss"] == "nan"
    assert second["values"] == {"exact": "-inf", "chrF": 34.5}
    assert (third["loss"], third["tokens_per_second"]) == ("inf", "inf")


def test_the_best_measure_is_read_back(path):
    assert last_best(path) is None
    training(JsonLog(path))
    best = last_best(path)
    assert best is not None
    assert (best["step"], best["values"]["exact"]) == (4, 0.75)
    assert best["samples"] == ["el cielo → ñ", 'two\nlines"']


def test_a_log_that_cannot_be_written_is_an_error_that_names_it(tmp_path):
    path = tmp_path / "absent" / LOG
    with pytest.raises(FileError, match=r"absent/log\.jsonl cannot be written: No such file"):
        JsonLog(path)(Started(0, 7, 99, 1))
    folder = tmp_path / LOG
    folder.mkdir()
    with pytest.raises(FileError, match="cannot be written: Is a directory"):
        JsonLog(folder)(stepped(1))


@FULL
def test_a_full_disk_is_an_error_that_names_the_log(path):
    path.symlink_to("/dev/full")
    with pytest.raises(FileError, match="cannot be written: No space left on device"):
        JsonLog(path)(stepped(1))


def test_several_listeners_are_told_in_their_order():
    heard = []
    tell(lambda event: heard.append(("a", event)), lambda event: heard.append(("b", event)))(
        stepped(3)
    )
    assert heard == [("a", stepped(3)), ("b", stepped(3))]
    tell()(stepped(4))


def read_back(folder):
    """What TensorBoard itself reads in a folder: series, and texts."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    read = EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0})
    read.Reload()
    series = {
        tag: [(event.step, event.value) for event in read.Scalars(tag)]
        for tag in read.Tags()["scalars"]
    }
    texts = [
        (event.step, event.tensor_proto.string_val[0].decode())
        for event in read.Tensors("samples/text_summary")
    ]
    return series, texts


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of its own reader
def test_tensorboard_reads_what_was_written_for_it(tmp_path):
    with tensorboard(tmp_path) as board:
        assert list(tmp_path.iterdir()) == []
        training(board)
    series, texts = read_back(tmp_path / BOARD)
    steps = range(1, 8)
    assert series["training/loss"] == [(step, pytest.approx(1 / step)) for step in steps]
    assert series["training/learning_rate"] == [(step, 0.25) for step in steps]
    assert series["training/gradient"] == [(step, 1.5) for step in steps]
    assert series["training/tokens_per_second"] == [(step, 24.0) for step in steps]
    assert series["held-out/exact"] == [(step, 0.75) for step in (2, 4, 6)]
    assert series["held-out/chrF"] == [(step, 34.5) for step in (2, 4, 6)]
    assert texts == [(s, '    el cielo → ñ\n    two\n    lines"') for s in (2, 4, 6)]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(("stopped", "first"), [(5, 3), (2, 0), (7, 6)])
def test_tensorboard_shows_each_step_once_where_a_training_went_on(tmp_path, stopped, first):
    with tensorboard(tmp_path) as board:
        training(board, last=stopped)
    with tensorboard(tmp_path) as board:
        training(board, first=first)
    series, texts = read_back(tmp_path / BOARD)
    assert [step for step, _ in series["training/loss"]] == list(range(1, 8))
    assert [step for step, _ in series["held-out/exact"]] == [2, 4, 6]
    # this reader leaves texts of before in, which are told again in the same words
    assert sorted(set(texts)) == [(s, '    el cielo → ñ\n    two\n    lines"') for s in (2, 4, 6)]


class Full:
    """TensorBoard's writer where the disk is full."""

    def close(self):
        raise OSError(28, "No space left on device")


def test_a_full_disk_is_an_error_that_names_tensorboards_folder(tmp_path):
    with (
        pytest.raises(FileError, match="tensorboard cannot be written: No space left on device"),
        tensorboard(tmp_path) as board,
    ):
        board._writer = Full()


def test_what_stopped_a_training_is_said_and_not_what_followed_from_it(tmp_path):
    def stopped():
        with tensorboard(tmp_path) as board:
            board._writer = Full()
            raise KeyError("first")

    with pytest.raises(KeyError, match="first"):
        stopped()


def test_without_the_package_the_message_says_how_to_install_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with (
        pytest.raises(MissingPackageError, match=r"pip install 'qkv\[tensorboard\]'"),
        tensorboard(tmp_path),
    ):
        pass
    assert list(tmp_path.iterdir()) == []
