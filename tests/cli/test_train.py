"""`qkv train`: from a command to a folder, and every way in which it can end."""

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from qkv.cli import trained
from qkv.cli.training import Heard
from qkv.train.events import Saved, Started, Stepped
from qkv.train.log import LOG
from qkv.train.tasks import catalogue
from qkv.train.tasks.catalogue import TASKS, Entry
from tests.cli.tiny_task import RUN, Tiny
from tests.train.small_disk import fill, small_disk  # noqa: F401

ENTRY = Entry(
    "tests.cli.tiny_task:Tiny",
    "counting round",
    options=("stride", "context"),
    pictures=(".svg",),
    unit="numbers",
    then="qkv count --model {out} or load({path})",
)
TIMES = ("seconds", "tokens_per_second")
ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def tiny(monkeypatch, as_shipped):
    """A task for these tests, without the enforcement of shapes."""
    monkeypatch.setitem(TASKS, "tiny", ENTRY)
    monkeypatch.setattr(Tiny, "drawn", [])


@pytest.fixture
def out(tmp_path):
    return tmp_path / "a model"


def log(out):
    """The log without what a clock says."""
    lines = [json.loads(line) for line in (out / LOG).read_text("utf-8").splitlines()]
    return [{name: line[name] for name in line if name not in TIMES} for line in lines]


def untimed(text):
    return re.sub(r", \d+\.\d s$", "", text, flags=re.MULTILINE)


def test_a_task_is_trained_measured_saved_and_told(qkv, out):
    ended = qkv("train", "tiny", "--out", out)
    assert ended.code == 0
    lines = log(out)
    assert [line["step"] for line in lines if line["kind"] == "stepped"] == list(range(1, 21))
    best = [line for line in lines if line.get("best")][-1]
    values = f"perplexity {best['values']['perplexity']:.4g}, right {best['values']['right']:.4g}"
    (sample,) = best["samples"]
    assert untimed(ended.out).splitlines() == [
        f"{values} on held-out data, at step {best['step']} of 20",
        "119 parameters",
        f"  {sample.replace(chr(27), '�')}",
        f"the model: {out}",
        f"next: qkv count --model '{out}' or load('{out}')",
    ]
    told = ended.err.splitlines()
    assert [line for line in told if line.startswith("step ")] == [
        f"step {line['step']}: perplexity {line['values']['perplexity']:.4g}, "
        f"right {line['values']['right']:.4g}{', the best so far' if line['best'] else ''}"
        for line in lines
        if line["kind"] == "measured"
    ]
    assert "\x1b" not in ended.err
    assert {"config.json", LOG, "training.json", "checkpoints"} == {x.name for x in out.iterdir()}


def test_as_json_it_is_one_object(qkv, out):
    told = json.loads(qkv("train", "tiny", "--out", out, "--seed", 3, "--json").out)
    best = [line for line in log(out) if line.get("best")][-1]
    assert told.pop("seconds") > 0
    assert told == {
        "task": "tiny", "out": str(out), "data": [], "step": 20, "best_step": best["step"],
        "measures": best["values"], "samples": best["samples"], "parameters": 119, "plot": None,
    }  # fmt: skip


def test_every_setting_reaches_the_loop(qkv, out, tmp_path):
    data = tmp_path / "data.txt"
    data.touch()
    ended = qkv(
        "train", "tiny", "--out", out, "--data", data, "--data", data, "--steps", 4, "--batch", 3,
        "--learning-rate", 0.5, "--clip", 0.75, "--seed", 9, "--precision", "float64",
        "--accumulate", 2, "--label-smoothing", 0.25, "--patience", 6, "--measure-every", 2,
        "--save-every", 4,
    )  # fmt: skip
    assert ended.code == 0
    record = json.loads((out / "training.json").read_text("utf-8"))
    assert record["about"] == {"size": 7, "data": [str(data)] * 2, "seed": 9, "stride": 1}
    wanted = {
        "steps": 4, "batch": 3, "learning_rate": 0.5, "clip": 0.75, "seed": 9,
        "precision": "float64", "accumulate": 2, "label_smoothing": 0.25, "patience": 6,
        "measure_every": 2, "save_every": 4, "warmup": 0,  # at most a tenth of the steps
    }  # fmt: skip
    assert {name: record["settings"][name] for name in wanted} == wanted


def test_a_warm_up_that_was_asked_for_is_as_it_was_asked_for(qkv, out):
    assert qkv("train", "tiny", "--out", out, "--steps", 4, "--warmup", 3).code == 0
    assert json.loads((out / "training.json").read_text("utf-8"))["settings"]["warmup"] == 3


def test_ctrl_c_says_what_goes_on_and_the_end_is_the_same(qkv, out, tmp_path, monkeypatch):
    undisturbed = tmp_path / "undisturbed"
    whole = qkv("train", "tiny", "--out", undisturbed)
    for at, step, kept in ((14, 13, 10), (3, 12, 10), (8, 17, 15)):
        monkeypatch.setattr(Tiny, "interrupted_at", at)
        resume = ["--resume"] if out.exists() else []
        ended = qkv("train", "tiny", "--out", out, *resume)
        assert (ended.code, ended.out) == (130, "")
        assert ended.err.splitlines()[-1] == (
            f"stopped after step {step}; the same command with --resume goes on from step {kept}"
        )
    monkeypatch.setattr(Tiny, "interrupted_at", 0)
    ended = qkv("train", "tiny", "--out", out, "--resume")
    assert ended.code == 0
    assert untimed(ended.out) == untimed(whole.out).replace(str(undisturbed), str(out)).replace(
        f"--model {out}", f"--model '{out}'"
    )
    assert log(out) == log(undisturbed)


def test_ctrl_c_before_the_first_checkpoint_says_so(qkv, out, monkeypatch):
    monkeypatch.setattr(Tiny, "interrupted_at", 3)
    assert qkv("train", "tiny", "--out", out).err.splitlines() == [
        "stopped after step 2; no checkpoint yet: the same command with --resume goes on from the "
        "beginning"
    ]
    monkeypatch.setattr(Tiny, "interrupted_at", 0)
    assert qkv("train", "tiny", "--out", out, "--resume").code == 0
    assert [line["kind"] for line in log(out)].count("started") == 1


def test_what_is_finished_is_told_again(qkv, out):
    first = qkv("train", "tiny", "--out", out)
    again = qkv("train", "tiny", "--out", out, "--resume")
    assert untimed(again.out) == untimed(first.out)


def test_what_goes_on_otherwise_is_refused_with_every_field(qkv, out):
    qkv("train", "tiny", "--out", out)
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    changed = ("--steps", 30, "--learning-rate", 0.2, "--seed", 1)
    ended = qkv("train", "tiny", "--out", out, "--resume", *changed)
    assert (ended.code, ended.out) == (2, "")
    for field in ("settings.steps was 20 and is 30", "learning_rate was 0.1 and is 0.2",
                  "about.seed was 0 and is 1", "settings.seed was 0 and is 1"):  # fmt: skip
        assert field in ended.err
    assert len(ended.err.splitlines()) == 1
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before


def test_a_folder_that_holds_something_is_refused(qkv, out):
    out.mkdir()
    (out / "mine.txt").write_text("x")
    ended = qkv("train", "tiny", "--out", out)
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.endswith(" is not empty; give another folder\n")
    assert [path.name for path in out.iterdir()] == ["mine.txt"]


def test_a_loss_that_is_no_number_ends_it_and_names_the_step(qkv, out, monkeypatch):
    monkeypatch.setattr(Tiny, "broken_at", 8)
    ended = qkv("train", "tiny", "--out", out)
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith("qkv: step 8: the loss is nan; training stops here")
    assert len(ended.err.splitlines()) == 1


def test_a_full_disk_ends_it_and_says_from_where_it_goes_on(
    qkv,
    small_disk,  # noqa: F811
    tmp_path,
    monkeypatch,
):
    out, loss = small_disk / "out", Tiny.loss

    def filling(self, *arguments):
        if self.calls == 31:  # the log soon needs a block more
            fill(small_disk)
        return loss(self, *arguments)

    command = ("train", "tiny", "--steps", 100, "--measure-every", 100, "--save-every", 30)
    monkeypatch.setattr(Tiny, "loss", filling)
    ended = qkv(*command, "--out", out)
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.splitlines()[-1] == (
        f"qkv: {out}/log.jsonl cannot be written: No space left on device; the checkpoint of step "
        "30 is good, to go on from (--resume)"
    )
    (small_disk / "filler").unlink()
    monkeypatch.setattr(Tiny, "loss", loss)
    assert qkv(*command, "--out", out, "--resume").code == 0
    assert qkv(*command, "--out", tmp_path / "undisturbed").code == 0
    assert log(out) == log(tmp_path / "undisturbed")


def test_data_that_can_no_longer_be_read_are_named(qkv, out, monkeypatch):
    def gone(self, examples):
        raise OSError(5, "Input/output error", "mine.tsv")

    monkeypatch.setattr(Tiny, "batch", gone)
    ended = qkv("train", "tiny", "--out", out)
    assert (ended.code, ended.out, ended.err) == (2, "", "qkv: mine.tsv: Input/output error\n")


@pytest.mark.slow
def test_a_picture_is_drawn_of_the_model_that_was_kept(qkv, out, tmp_path, monkeypatch):
    picture = tmp_path / "seen.svg"
    monkeypatch.setattr("qkv.models.load", lambda path: ("loaded", path))
    ended = qkv("train", "tiny", "--out", out, "--plot", picture)
    assert ended.code == 0
    assert Tiny.drawn == [(("loaded", out), picture)]
    assert f"the picture: {picture}" in ended.out.splitlines()


def test_with_tensorboard_its_files_lie_in_the_folder(qkv, out):
    assert qkv("train", "tiny", "--out", out, "--tensorboard").code == 0
    assert list((out / "tensorboard").glob("events.out.tfevents.*"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "TASK is missing; wanted one of words, classify, translate, language, caption, tiny"),
        (["wrods"], "there is no task 'wrods'; known: words, classify, translate, language"),
        (["tiny"], "--out is missing; wanted the folder that the model goes to"),
        (["tiny", "--out", "file"], "out is 'file', but file is a file; wanted a folder"),
        (["tiny", "--out", "file/x"], "out is 'file/x', but "),
        (["tiny", "--out", "o", "--steps", "0"], "steps is 0; wanted a whole number above 0"),
        (["tiny", "--out", "o", "--batch", "-1"], "batch is -1; wanted a whole number above 0"),
        (["tiny", "--out", "o", "--learning-rate", "nan"], "learning_rate is nan; wanted a number"),
        (["tiny", "--out", "o", "--warmup", "-1"], "warmup is -1; wanted a whole number, 0 or"),
        (["tiny", "--out", "o", "--clip", "0"], "clip is 0.0; wanted a number above 0"),
        (["tiny", "--out", "o", "--precision", "float16"], "precision is 'float16'; wanted one of"),
        (["tiny", "--out", "o", "--label-smoothing", "1"], "label_smoothing is 1.0; wanted a"),
        (["tiny", "--out", "o", "--seed", "-1"], "seed is -1; wanted a whole number from 0"),
        (["tiny", "--out", "o", "--data", "gone.txt"], "data is 'gone.txt', which is not there"),
        (["tiny", "--out", "o", "--resume"], "there is nothing to go on with"),
        (["tiny", "--out", "o", "--shard"], "there is one process; wanted several"),
        (["tiny", "--out", "o", "--system", "dot", "--frozen"],
         "--system, --frozen: the task tiny has no such option; its own are: --stride, --context"),
        (["caption", "--out", "o", "--positions"],
         "--positions: the task caption has no such option; its own are: none"),
        (["translate", "--out", "o", "--plot", "a.svg"],
         "--plot: the task translate draws nothing; these do: words, caption, tiny"),
        (["tiny", "--out", "o", "--plot", "a.gif"], "plot is 'a.gif'; wanted a name that ends in"),
        (["tiny", "--out", "o", "--plot", "no/a.svg"], "there is no folder no"),
    ],
)  # fmt: skip
def test_a_users_mistake_is_one_line_and_nothing_is_written(
    qkv, tmp_path, monkeypatch, arguments, message
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    ended = qkv("train", *arguments)
    assert (ended.code, ended.out) == (2, "")
    assert message in ended.err
    assert len(ended.err.splitlines()) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("task", ["words", "language", "classify", "translate"])
def test_data_that_cannot_be_learnt_from_is_refused_and_nothing_is_written(
    qkv, tmp_path, monkeypatch, task
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty.txt").touch()
    ended = qkv("train", task, "--out", "o", "--data", "empty.txt")
    assert (ended.code, ended.out) == (2, "")
    assert "empty.txt" in ended.err
    assert len(ended.err.splitlines()) == 1
    if task in {"classify", "translate"}:
        (tmp_path / "bad.tsv").write_text("one\nsky\tcielo\n\tthree\n")
        ended = qkv("train", task, "--out", "o", "--data", "bad.tsv")
        first, second = ended.err.splitlines()
        assert (ended.code, ended.out) == (2, "")
        assert first.startswith("qkv: bad.tsv:1: ")
        assert second.startswith("     bad.tsv:3: ")
    assert not (tmp_path / "o").exists()


def test_a_missing_package_is_one_line_and_nothing_is_written(qkv, out, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    ended = qkv("train", "tiny", "--out", out, "--tensorboard")
    assert (ended.code, ended.out) == (2, "")
    assert "pip install 'qkv[tensorboard]'" in ended.err
    assert len(ended.err.splitlines()) == 1
    assert not out.exists()


def test_the_help_names_every_task(qkv):
    shown = qkv("train", "--help").out
    for name, entry in TASKS.items():
        assert name == "tiny" or f"{name:<11}{entry.says}" in shown


@pytest.mark.parametrize("name", [name for name in TASKS if name != "tiny"])
def test_every_task_takes_what_the_catalogue_says(name):
    from inspect import signature

    entry = TASKS[name]
    found = entry.load(name)
    assert set(entry.options) <= set(signature(found.open).parameters)
    assert bool(entry.pictures) == hasattr(found, "plot")
    assert found.usual.steps > 0


def test_a_task_that_calls_itself_otherwise_is_a_fault_of_the_catalogue():
    with pytest.raises(AssertionError, match="calls itself tiny"):
        ENTRY.load("small")
    assert catalogue.find("tiny") is ENTRY


def test_what_a_shell_and_python_would_obey_in_a_name_is_quoted():
    shown = trained.then(ENTRY.then, Path("it's; rm x"))
    assert shown == """qkv count --model 'it'"'"'s; rm x' or load("it's; rm x")"""


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0.04, "0.0 s"), (59.4, "59.4 s"), (61, "1 min 1 s"), (3599.6, "1 h 0 min"),
     (7384, "2 h 3 min")],
)  # fmt: skip
def test_a_time_is_said_as_a_person_says_it(seconds, shown):
    assert trained.lasted(seconds) == shown


def test_where_it_stands_follows_from_what_was_heard():
    heard = Heard()
    assert str(heard) == " before the first step"
    heard(Started(40, 100, 5, 1))
    assert str(heard).startswith(" after step 40; the same")
    assert str(heard).endswith("goes on from step 40")
    heard(Stepped(41, 1.0, 0.1, 1.0, 3, 0.1))
    heard(Saved(41, Path("x")))
    heard(Stepped(42, 1.0, 0.1, 1.0, 3, 0.1))
    assert str(heard).startswith(" after step 42; the same")
    assert str(heard).endswith("goes on from step 41")


@pytest.mark.slow
def test_what_is_killed_goes_on_to_the_same_model_and_the_same_log(qkv, out, tmp_path):
    killed = (
        f"{RUN}import os, signal\n"
        "from qkv.train.log import JsonLog\n"
        "log = JsonLog.__call__\n"
        "def die(self, event):\n"
        "    log(self, event)\n"
        "    if event.step == 13: os.kill(os.getpid(), signal.SIGKILL)\n"
        "JsonLog.__call__ = die\n"
        "from qkv.cli.main import run; run()"
    )
    done = subprocess.run(
        [sys.executable, "-c", killed, "train", "tiny", "--out", out], cwd=ROOT, check=False
    )
    assert done.returncode == -signal.SIGKILL
    assert log(out)[-1]["step"] == 13
    assert qkv("train", "tiny", "--out", out, "--resume").code == 0
    assert qkv("train", "tiny", "--out", tmp_path / "undisturbed").code == 0
    assert log(out) == log(tmp_path / "undisturbed")
    state = "checkpoints/step-00000020/state.safetensors"
    assert (out / state).read_bytes() == (tmp_path / "undisturbed" / state).read_bytes()


def test_python_m_qkv_is_the_command():
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "qkv", "train", "wrods"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("qkv: there is no task 'wrods'")
