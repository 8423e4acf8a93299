"""Checkpoints: whole or not there, exact, and damage is named."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from qkv.errors import FileError
from qkv.train.checkpoint import FOLDER, Checkpoint
from qkv.train.distributed import World
from qkv.train.loop import optimizer_of
from tests.train.small_task import settings

ONE = World()


class Odd(nn.Module):
    """Tied and frozen parameters, one that never has a gradient, and buffers that are kept or not.

    One matrix lies column by column, as weights do that are loaded.
    """

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(5, 3)
        self.second = nn.Linear(5, 3, bias=False)
        self.second.weight = self.first.weight
        self.third = nn.Parameter(torch.randn(7, 3).T)
        self.frozen = nn.Parameter(torch.randn(2), requires_grad=False)
        self.unused = nn.Parameter(torch.randn(2, 2))
        self.register_buffer("kept", torch.randn(4))
        self.register_buffer("made", torch.randn(4), persistent=False)

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        x = torch.linspace(-1, 1, 10).view(2, 5)
        y = (self.first(x) + self.second(x).square()) @ self.third
        y.square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        self.kept += 1


def trained(steps: int) -> tuple[Odd, torch.optim.Optimizer]:
    model = Odd()
    optimizer = optimizer_of(model, settings())
    for _ in range(steps):
        model.step(optimizer)
    return model, optimizer


def saved(out: Path, step: int = 3) -> Path:
    model, optimizer = trained(3)
    return Checkpoint.of(step, model, optimizer, {"waited": 2}, ONE).save(out)


def test_what_was_saved_goes_on_as_what_was_not(tmp_path: Path) -> None:
    model, optimizer = trained(3)
    Checkpoint.of(3, model, optimizer, {"best": None, "waited": 2}, ONE).save(tmp_path)
    other, others = trained(1)
    kept = Checkpoint.last(tmp_path)
    assert kept is not None
    assert (kept.step, kept.numbers) == (3, {"best": None, "waited": 2})
    kept.restore(other, others, ONE)
    assert other.third.stride() == model.third.stride() == (1, 3)
    assert others.state[other.third]["exp_avg"].stride() == (1, 3)
    for _ in range(4):
        model.step(optimizer)
        other.step(others)
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, other.state_dict()[name]), name
    assert not torch.equal(model.made, other.made)
    assert other.unused not in others.state
    for mine, theirs in zip(model.parameters(), other.parameters(), strict=True):
        for key, value in optimizer.state[mine].items():
            assert value.dtype == others.state[theirs][key].dtype
            assert torch.equal(value, others.state[theirs][key])


def test_only_the_last_is_kept_and_nothing_half_written(tmp_path: Path) -> None:
    folder = tmp_path / FOLDER
    for name in ("step-00000002.partial", "step-00000001.old"):
        (folder / name).mkdir(parents=True)
        (folder / name / "state.json").write_text("{")
    assert Checkpoint.last(tmp_path) is None
    saved(tmp_path, 4)
    saved(tmp_path, 123_456_789)
    assert [path.name for path in folder.iterdir()] == ["step-123456789"]
    assert Checkpoint.last_step(tmp_path) == 123_456_789


def test_it_is_safetensors_and_json_and_nothing_else(tmp_path: Path) -> None:
    folder = saved(tmp_path)
    assert sorted(path.name for path in folder.iterdir()) == ["state.json", "state.safetensors"]
    assert json.loads((folder / "state.json").read_text())["step"] == 3
    names = set(load_file(folder / "state.safetensors"))
    assert {"model.first.weight", "model.kept", "optimizer.third.exp_avg_sq"} <= names
    assert not names & {"model.second.weight", "model.made", "optimizer.frozen.step"}


def cut(folder: Path) -> None:
    path = folder / "state.safetensors"
    path.write_bytes(path.read_bytes()[:-7])


def lose(folder: Path) -> None:
    path = folder / "state.safetensors"
    tensors = load_file(path)
    del tensors["model.third"]
    save_file(tensors, path)


DAMAGE: list[tuple[str, Callable[[Path], object], str]] = [
    ("state.json", lambda folder: (folder / "state.json").write_text("{"), "Expecting property"),
    ("state.json", lambda folder: (folder / "state.json").write_text("[1]"), "holds a list"),
    (
        "state.json",
        lambda folder: (folder / "state.json").write_text("{}"),
        "step and tensors are not",
    ),
    (
        "state.json",
        lambda folder: (folder / "state.json").write_text('{"step": "1", "tensors": []}'),
        "step is not as saved",
    ),
    ("state.json", lambda folder: (folder / "state.json").write_bytes(b"\xff"), "decode"),
    ("state.json", lambda folder: (folder / "state.json").unlink(), "No such file"),
    ("state.safetensors", cut, "header"),
    ("state.safetensors", lambda folder: (folder / "state.safetensors").unlink(), "No such file"),
    ("state.safetensors", lose, "it and state.json differ in model.third"),
]


@pytest.mark.parametrize(("name", "damage", "said"), DAMAGE)
def test_damage_is_named(
    name: str, damage: Callable[[Path], object], said: str, tmp_path: Path
) -> None:
    folder = saved(tmp_path)
    damage(folder)
    with pytest.raises(FileError) as caught:
        Checkpoint.last(tmp_path)
    assert f"{folder / name} is damaged" in str(caught.value)
    assert said in str(caught.value)


def test_another_models_tensors_are_all_named_and_change_nothing(tmp_path: Path) -> None:
    saved(tmp_path)
    kept = Checkpoint.last(tmp_path)
    assert kept is not None
    other = Odd()
    other.third = nn.Parameter(torch.zeros(2, 7))
    other.added = nn.Parameter(torch.zeros(2))
    del other.unused
    optimizer = optimizer_of(other, settings())
    before = {name: tensor.clone() for name, tensor in other.state_dict().items()}
    with pytest.raises(FileError) as caught:
        kept.restore(other, optimizer, ONE)
    assert str(caught.value) == (
        "checkpoints/step-00000003/state.safetensors does not fit the model; "
        "missing: model.added; surplus: model.unused; unfit: "
        "model.third is (3, 7), wanted (2, 7), optimizer.third.exp_avg is (3, 7), wanted (2, 7), "
        "optimizer.third.exp_avg_sq is (3, 7), wanted (2, 7)"
    )
    assert not optimizer.state
    assert all(torch.equal(tensor, before[name]) for name, tensor in other.state_dict().items())


def test_means_that_are_not_all_there_are_named(tmp_path: Path) -> None:
    saved(tmp_path)
    kept = Checkpoint.last(tmp_path)
    assert kept is not None
    del kept.tensors["optimizer.third.exp_avg"]
    model, optimizer = trained(0)
    with pytest.raises(FileError, match=r"missing: optimizer\.third\.exp_avg$"):
        kept.restore(model, optimizer, ONE)


def test_a_file_in_the_way_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / FOLDER).write_text("in the way")
    with pytest.raises(FileError, match=r"step-00000003 cannot be written: Not a directory"):
        saved(tmp_path)


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="only Linux tells what is open")
def test_all_is_on_the_disk_before_it_gets_its_name_and_before_the_old_one_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved(tmp_path, 1)
    done: list[str] = []
    replace, fsync, rmtree = os.replace, os.fsync, shutil.rmtree

    def synced(opened: int) -> None:
        done.append(f"fsync {Path(f'/proc/self/fd/{opened}').resolve().name}")
        fsync(opened)

    def renamed(old: Path, new: Path) -> None:
        done.append(f"{old.name} → {new.name}")
        replace(old, new)

    def removed(path: Path, ignore_errors: bool = False) -> None:
        done.append(f"remove {path.name}")
        rmtree(path, ignore_errors)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", renamed)
    monkeypatch.setattr(shutil, "rmtree", removed)
    saved(tmp_path, 2)
    assert done == [
        "fsync state.safetensors", "fsync state.json", "fsync step-00000002.partial",
        "step-00000002.partial → step-00000002", "fsync checkpoints",
        "step-00000001 → step-00000001.old", "remove step-00000001.old",
    ]  # fmt: skip


def test_what_is_no_number_is_kept_and_the_file_is_json(tmp_path: Path) -> None:
    def refuse(name: str) -> None:
        raise ValueError(name)

    model, optimizer = trained(1)
    numbers = {"best": {"values": {"a": float("nan"), "b": float("-inf"), "c": 0.5}}}
    folder = Checkpoint.of(1, model, optimizer, numbers, ONE).save(tmp_path)
    json.loads((folder / "state.json").read_text(), parse_constant=refuse)
    kept = Checkpoint.last(tmp_path)
    assert kept is not None
    assert kept.numbers == {"best": {"values": {"a": "nan", "b": "-inf", "c": 0.5}}}


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="children are forks here")
def test_a_kill_at_fifty_moments_never_leaves_a_checkpoint_that_does_not_load(
    tmp_path: Path,
) -> None:
    script = Path(__file__).with_name("killed_while_saving.py")
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path), "50"], capture_output=True, text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"}, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["signals"] == [signal.SIGKILL] * 50
    assert len(told["steps"]) == 50
    assert told["steps"][-1] > told["steps"][0] > 0
    assert told["halves"] > 5  # kills that left something half-written or half-removed
