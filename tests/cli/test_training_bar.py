"""How far a training is, as a person sees it."""

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

from qkv.cli import training_bar
from qkv.train.events import Measured, Stepped
from tests.cli.tiny_task import RUN

ROOT = Path(__file__).parents[2]


def test_the_pace_is_a_mean_that_forgets():
    pace = training_bar.Pace()
    pace.see(Stepped(1, 8.0, 0.1, 1.0, targets=30, seconds=2.0))
    assert (pace.loss, pace.rate) == (8.0, 15.0)
    pace.see(Stepped(2, 4.0, 0.1, 1.0, targets=50, seconds=1.0))
    keep = pace.DECAY
    assert pace.loss == pytest.approx((keep * 8 + 4) / (keep + 1))
    assert pace.rate == pytest.approx((keep * 30 + 50) / (keep * 2 + 1))
    for step in range(3, 400):
        pace.see(Stepped(step, 1.0, 0.1, 1.0, targets=7, seconds=0.5))
    assert (pace.loss, pace.rate) == (pytest.approx(1.0), pytest.approx(14.0))


def test_few_of_many_samples_are_printed_but_all_are_there(capsys):
    samples = tuple(f"sample {number}" for number in range(14))
    with training_bar.training_bar("tokens") as listen:
        listen(Measured(3, {"bits_a_byte": 1.23456}, samples, best=False))
        listen(Stepped(4, 1.0, 0.1, 1.0, 3, 0.1))
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.splitlines() == [
        "step 3: bits a byte 1.235", *(f"  {text}" for text in samples[: training_bar.SAMPLES])
    ]  # fmt: skip


@pytest.mark.slow
def test_in_a_terminal_a_bar_says_steps_loss_speed_and_time(tmp_path):
    leader, follower = pty.openpty()
    code = RUN + "from qkv.cli.main import run; run()"
    command = [sys.executable, "-W", "error", "-c", code, "train", "tiny", "--out", tmp_path / "o"]
    environment = os.environ | {"COLUMNS": "100", "TERM": "xterm"}
    seen = b""
    with subprocess.Popen(
        command, stdout=follower, stderr=follower, stdin=follower, env=environment, cwd=ROOT
    ) as running:
        os.close(follower)
        while True:
            try:
                piece = os.read(leader, 4096)
            except OSError:  # so ends a terminal that nobody writes to any more
                break
            if not piece:
                break
            seen += piece
        assert running.wait() == 0
    os.close(leader)
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", seen.decode())
    assert re.search(r"20/20 .*loss \d\.\d{3}  [\d,]+ numbers/s \d:\d\d:\d\d", text)
    assert re.search(r"[\r\n]step 10: perplexity", text)
    assert "on held-out data, at step" in text
