"""A training as the command runs it in several processes: who says what, and that once."""

import json
import os
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import ClassVar

import pytest

from qkv.errors import LinesError, TrainingError
from qkv.train import distributed
from qkv.train.log import LOG
from qkv.train.tasks.catalogue import TASKS, Entry
from tests.cli.tiny_task import RUN

ROOT = Path(__file__).parents[2]
TORCHRUN = (
    sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
)  # fmt: skip
ALONE = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}


@pytest.fixture(autouse=True)
def tiny(monkeypatch, as_shipped):
    """A task for these tests, without the enforcement of shapes."""
    monkeypatch.setitem(TASKS, "tiny", Entry("tests.cli.tiny_task:Tiny", "", unit="numbers"))


@pytest.fixture
def out(tmp_path):
    return tmp_path / "a model"


@pytest.mark.slow
def test_torchrun_starts_several_that_train_one_model_and_only_the_first_speaks(tmp_path):
    script = tmp_path / "train_tiny.py"
    script.write_text(f"{RUN}from qkv.cli.main import run\nrun()\n")

    done = subprocess.run(
        [*TORCHRUN, script, "train", "tiny", "--out", tmp_path / "o", "--json"],
        capture_output=True, text=True, check=False, cwd=ROOT, env=ALONE,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["step"] == 20
    lines = [json.loads(line) for line in (tmp_path / "o" / LOG).read_text().splitlines()]
    assert lines[0]["processes"] == 2
    assert [line["step"] for line in lines if line["kind"] == "stepped"] == list(range(1, 21))
    assert done.stderr.count("step 10: perplexity") == 1


@pytest.mark.slow
def test_what_one_process_alone_cannot_read_it_says_and_none_begins(tmp_path):
    script = tmp_path / "train_tiny.py"
    script.write_text(
        f"{RUN}import os\n"
        "from qkv.errors import LinesError\n"
        "def opened(data=(), *, seed=0):\n"
        "    if os.environ['RANK'] == '1': raise LinesError('mine.tsv:3: one\\nmine.tsv:4: two')\n"
        "    return Tiny(data, seed, 1)\n"
        "Tiny.open = opened\n"
        "from qkv.cli.main import run\nrun()\n"
    )
    done = subprocess.run(
        [*TORCHRUN, script, "train", "tiny", "--out", tmp_path / "o"],
        capture_output=True, text=True, check=False, cwd=ROOT, env=ALONE,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (1, "")  # torchrun's own
    said = [line for line in done.stderr.splitlines() if "qkv: " in line or "mine.tsv" in line]
    assert said == ["qkv: process 1: mine.tsv:3: one", "     mine.tsv:4: two"]
    assert not (tmp_path / "o").exists()


class Second(distributed.World):
    """The second of two processes, where the first one does, or says, what it is told to."""

    def from_first(self, value):
        return (None, *self.first_says)

    def from_all(self, value):
        return [value if self.alike else "", value]

    first_says: ClassVar[tuple] = (None, "")
    alike: ClassVar[bool] = True


@pytest.fixture
def second(monkeypatch):
    """As the command runs in the second of two processes."""
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setattr(distributed, "world", lambda: nullcontext(Second(rank=1, size=2)))


def test_what_all_processes_refuse_the_second_does_not_say_again(qkv, out, second, monkeypatch):
    wrong = ("train", "tiny", "--out", out, "--steps", 0)
    assert qkv(*wrong) == (2, "", "")
    monkeypatch.setattr(Second, "alike", False)
    ended = qkv(*wrong)
    assert (ended.code, ended.out) == (2, "")
    assert ended.err == "qkv: process 1: steps is 0; wanted a whole number above 0\n"


def test_what_stopped_the_first_process_the_second_does_not_say(qkv, out, second, monkeypatch):
    monkeypatch.setattr(Second, "first_says", (TrainingError, "the first process stopped: x"))
    assert qkv("train", "tiny", "--out", out) == (2, "", "")


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (KeyboardInterrupt(), 130, ""),
        (OSError(5, "Input/output error"), 2, "qkv: process 1: Input/output error\n"),
        (LinesError("a:1: b\na:2: c"), 2, "qkv: process 1: a:1: b\n     a:2: c\n"),
        (RuntimeError("[x/pair.cc:538] Connection closed by peer [::1]:3"), 2,
         "qkv: process 1: another process is gone\n"),
    ],
)  # fmt: skip
def test_what_stops_the_second_process_alone_it_says(
    qkv, out, second, monkeypatch, error, code, said
):
    def fail(*arguments, **named):
        raise error

    monkeypatch.setattr("qkv.train.loop.train", fail)
    assert qkv("train", "tiny", "--out", out) == (code, "", said)


def test_a_fault_is_no_message(qkv, out, second, monkeypatch):
    def fail(*arguments, **named):
        raise RuntimeError("a fault")

    monkeypatch.setattr("qkv.train.loop.train", fail)
    with pytest.raises(RuntimeError, match="a fault"):
        qkv("train", "tiny", "--out", out)
