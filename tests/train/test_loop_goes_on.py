"""The loop goes on: to the same bits as what was never stopped, whoever or whatever stopped it."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from qkv.errors import FileError
from qkv.train.events import Started
from qkv.train.loop import train
from qkv.train.order import Examples
from tests.train.small_task import Rows, SmallTask, settings
from tests.train.told import Told, run, same

pytestmark = pytest.mark.usefixtures("as_shipped")


class StopError(Exception):
    """Somebody stops a training."""


class Stopped(SmallTask):
    """Is stopped in the middle of a step."""

    def __init__(self, step: int, **options: Any) -> None:
        super().__init__(**options)
        self.left = step

    def batch(self, examples: Examples) -> Rows:
        self.left -= 1
        if self.left < 0:
            raise StopError
        return super().batch(examples)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_what_was_stopped_ends_bit_for_bit_as_what_was_not(precision: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {"measure_every": 5, "precision": precision, "accumulate": 2}
    whole = run(SmallTask(dropout=0.2), tmp_path / "whole", **options)
    for stops in ([3], [6], [17, 1, 5], [23, 5]):
        out = tmp_path / f"stopped {stops}"
        log = stopped(out, stops, options)
        assert sorted(log.values(), key=str) == sorted(whole.values, key=str)
        same(out, tmp_path / "whole")


def stopped(
    out: Path, stops: list[int], options: dict[str, Any]
) -> dict[tuple[object, int], tuple[object, ...]]:
    """Train, stop after so many steps and go on, and so on to the end; return all that was told."""
    log: dict[tuple[object, int], tuple[object, ...]] = {}
    for number, step in enumerate(stops):
        told = Told()
        with pytest.raises(StopError):
            train(Stopped(2 * step, dropout=0.2), settings(**options), out, resume=number > 0,
                  listen=told.append)  # fmt: skip
        log |= {(value[0], len(value)): value for value in told.values}
    told = run(SmallTask(dropout=0.2), out, resume=True, **options)
    assert told.losses
    return log | {(value[0], len(value)): value for value in told.values}


def test_what_has_ended_goes_on_to_the_same_result(tmp_path: Path) -> None:
    class Waiting(SmallTask):
        judged_by = "none"

        def measure(self, model: nn.Module) -> dict[str, float]:
            return {"none": 2.0}

    how = settings(patience=1, measure_every=2)
    first = train(Waiting(), how, tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.safetensors")}
    told = Told()
    again = train(Waiting(), how, tmp_path, resume=True, listen=told.append)
    assert [type(event) for event in told] == [Started]
    assert (again.step, again.best_step, again.values) == (4, 2, first.values)
    assert before == {path: path.read_bytes() for path in tmp_path.rglob("*.safetensors")}


def test_what_was_stopped_before_its_first_checkpoint_begins_anew(tmp_path: Path) -> None:
    with pytest.raises(StopError):
        run(Stopped(4), tmp_path / "stopped")
    run(SmallTask(), tmp_path / "stopped", resume=True)
    run(SmallTask(), tmp_path / "whole")
    same(tmp_path / "stopped", tmp_path / "whole")


def test_time_is_that_of_all_runs(tmp_path: Path) -> None:
    with pytest.raises(StopError):
        run(Stopped(13), tmp_path)
    path = tmp_path / "checkpoints" / "step-00000012" / "state.json"
    numbers = json.loads(path.read_text())
    assert 0 < numbers["seconds"] < 100
    path.write_text(json.dumps(numbers | {"seconds": 1000.0}))
    assert 1000 < train(SmallTask(), settings(), tmp_path, resume=True).seconds < 1100
    (kept,) = (tmp_path / "checkpoints").iterdir()
    assert 1000 < json.loads((kept / "state.json").read_text())["seconds"] < 1100


def test_a_checkpoint_that_forgot_something_is_named(tmp_path: Path) -> None:
    run(SmallTask(), tmp_path, steps=6)
    path = tmp_path / "checkpoints" / "step-00000006" / "state.json"
    numbers = json.loads(path.read_text())
    del numbers["best"], numbers["seconds"]
    path.write_text(json.dumps(numbers))
    with pytest.raises(FileError) as caught:
        run(SmallTask(), tmp_path, steps=6, resume=True)
    said = "checkpoints/step-00000006/state.json lacks best, seconds; begin in a new folder"
    assert str(caught.value) == said


SCRIPT = """
import sys; sys.path[:0] = {path!r}
from pathlib import Path
import torch; torch.set_num_threads(1)
from qkv.train.loop import train
from tests.train.small_task import SmallTask, settings
print("begins", flush=True)
train(SmallTask(dropout=0.2), settings(steps=80), Path({out!r}),
      listen=lambda event: print(event.step, flush=True))
"""


@pytest.fixture
def one_thread() -> Iterator[None]:
    """As the process that is killed: sums over rows depend on how many threads share them."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
def test_a_training_that_is_killed_ends_bit_for_bit_as_what_was_not(tmp_path: Path) -> None:
    out = tmp_path / "killed"
    script = SCRIPT.format(path=sys.path, out=str(out))
    child = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True,
                             env=os.environ | {"OMP_NUM_THREADS": "1"})  # fmt: skip
    assert child.stdout is not None
    for line in child.stdout:
        if re.fullmatch(r"\d+", line.strip()) and int(line) >= 40:
            break
    child.send_signal(signal.SIGKILL)
    assert child.wait() == -signal.SIGKILL
    child.stdout.close()
    last = run(SmallTask(dropout=0.2), out, resume=True, steps=80)
    assert 0 < len(last.steps) < 50
    run(SmallTask(dropout=0.2), tmp_path / "whole", steps=80)
    same(out, tmp_path / "whole")
