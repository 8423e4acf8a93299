"""Several processes: the losses of one, sharded or not, killed or not; only one of them writes."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch.distributed import TCPStore

import qkv
from qkv.errors import ArgumentError, FileError, QkvError
from qkv.train.checkpoint import Checkpoint
from qkv.train.distributed import World, said_elsewhere, world
from qkv.train.events import Event, Stepped
from qkv.train.loop import train
from tests.train.small_task import SmallTask, settings

pytestmark = pytest.mark.usefixtures("as_shipped")

STEPS = 50
FLOAT64 = {"steps": STEPS, "precision": "float64"}

ORDERS: dict[str, dict[str, Any]] = {
    "float32": {"settings": {"steps": STEPS}},
    "float32, shared": {"settings": {"steps": STEPS}, "shard": True},
    "float64": {"settings": FLOAT64 | {"accumulate": 2}},
    "float64, shared": {"settings": FLOAT64, "shard": True},
    "bfloat16, shared": {"settings": {"steps": 4, "precision": "bfloat16"}, "shard": True},
    "a head of its own, shared": {
        "settings": FLOAT64 | {"steps": 8}, "shard": True, "task": {"tied": False},
    },
    "a batch of one": {"settings": FLOAT64 | {"batch": 1, "steps": 6}},
    "a batch of one, shared": {"settings": FLOAT64 | {"batch": 1, "steps": 6}, "shard": True},
}  # fmt: skip

UNDISTURBED: dict[str, dict[str, Any]] = {
    "dropout": {"settings": {"steps": 24}, "task": {"dropout": 0.2}},
    "dropout, shared": {"settings": {"steps": 24}, "task": {"dropout": 0.2}, "shard": True},
}


def torchrun(out: Path, orders: dict[str, Any], *options: str, fails: bool = False) -> str:
    """Run trainings in two processes, and return what they wrote to stderr."""
    out.mkdir(parents=True, exist_ok=True)
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
        *options, "-m", "tests.train.under_torchrun", str(out), json.dumps(orders),
    ]  # fmt: skip
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=240,
        cwd=Path(__file__).parents[2], env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert bool(done.returncode) == fails, done.stderr
    return done.stderr


@pytest.fixture(scope="module")
def by_two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All trainings of both tables, each by two processes."""
    out = tmp_path_factory.mktemp("two")
    torchrun(out, ORDERS | UNDISTURBED)
    return out


def by_one(out: Path, order: dict[str, Any]) -> dict[str, Any]:
    told: list[Event] = []
    result = train(SmallTask(**order.get("task", {})), settings(**order["settings"]), out,
                   listen=told.append)  # fmt: skip
    losses = [event.loss for event in told if isinstance(event, Stepped)]
    return {"losses": losses, "values": dict(result.values)}


@pytest.mark.slow
@pytest.mark.parametrize("name", ORDERS)
def test_two_processes_give_the_losses_and_the_files_of_one(
    name: str, by_two: Path, tmp_path: Path
) -> None:
    order = ORDERS[name]
    precision = order["settings"].get("precision", "float32")
    within = {"float64": 1e-12, "float32": 1e-6, "bfloat16": 1e-2}[precision]
    one, two = by_one(tmp_path, order), json.loads((by_two / f"{name}.json").read_text())
    assert len(two["losses"]) == order["settings"]["steps"]
    assert np.abs(np.subtract(one["losses"], two["losses"])).max() <= within
    assert two["values"] == pytest.approx(one["values"], abs=within)
    if precision != "bfloat16":
        alike(by_two / name, tmp_path)


def alike(found: Path, wanted: Path) -> None:
    """The checkpoint and the model are those of another folder, but for rounding."""
    kept, other = Checkpoint.last(wanted), Checkpoint.last(found)
    assert kept is not None
    assert other is not None
    assert kept.step == other.step
    assert kept.tensors.keys() == other.tensors.keys()
    for key, tensor in kept.tensors.items():
        assert tensor.dtype == other.tensors[key].dtype
        torch.testing.assert_close(other.tensors[key], tensor, atol=1e-5, rtol=1e-4)
    model, same = qkv.load(wanted), qkv.load(found)
    for a, b in zip(model.parameters(), same.parameters(), strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-4)


@pytest.mark.slow
def test_workers_that_are_killed_change_nothing(by_two: Path, tmp_path: Path) -> None:
    dies = {"dropout": [0, 1, 16, "kill"], "dropout, shared": [1, 0, 16, "kill"]}
    orders = {name: UNDISTURBED[name] | {"dies": how} for name, how in dies.items()}
    said = torchrun(tmp_path, orders, "--max-restarts", "2")
    assert said.count("Signal 9 (SIGKILL)") + said.count("exitcode: -9") >= 2, said
    for name in dies:
        state = f"{name}/checkpoints/step-00000024/state.safetensors"
        found, wanted = load_file(tmp_path / state), load_file(by_two / state)
        assert found.keys() == wanted.keys()
        assert all(torch.equal(found[key], tensor) for key, tensor in wanted.items())
        model = f"{name}/model.safetensors"
        assert (tmp_path / model).read_bytes() == (by_two / model).read_bytes()
        told = [json.loads((out / f"{name}.json").read_text()) for out in (tmp_path, by_two)]
        assert told[0]["losses"] == told[1]["losses"][12:]


@pytest.mark.slow
def test_a_training_of_two_that_one_of_them_stopped_goes_on_in_one_and_again_in_two(
    tmp_path: Path,
) -> None:
    class StopError(Exception):
        pass

    def stop(event: Event) -> None:
        told.append(event)
        if event.step == 20:
            raise StopError

    order: dict[str, Any] = {"settings": FLOAT64 | {"steps": 24}}
    said = torchrun(tmp_path, {"x": order | {"dies": [0, 1, 16, "error"]}}, fails=True)
    assert "the data cannot be read" in said
    assert Checkpoint.last_step(tmp_path / "x") == 12
    told: list[Event] = []
    with pytest.raises(StopError):
        train(SmallTask(), settings(**order["settings"]), tmp_path / "x", resume=True, listen=stop)
    losses = [event.loss for event in told if isinstance(event, Stepped)]

    # in the same run, a folder that another training has begun is refused, at every start
    train(SmallTask(), settings(steps=6), tmp_path / "y")
    before = {path: path.read_bytes() for path in (tmp_path / "y").rglob("*") if path.is_file()}
    orders = {"x": order | {"resume": True}, "y": {"settings": {"steps": 6}}}
    said = torchrun(tmp_path, orders, "--max-restarts", "1", fails=True)
    assert "FileError: the first process stopped: " in said
    assert said.count("FileError: " + str(tmp_path / "y") + " is not empty; give another") == 2
    assert before == {path: path.read_bytes() for path in before}

    losses[6:] = json.loads((tmp_path / "x.json").read_text())["losses"]
    whole = by_one(tmp_path / "whole", order)["losses"]
    assert losses == pytest.approx(whole[12:], abs=1e-12)
    alike(tmp_path / "x", tmp_path / "whole")


# --- one process, and parts of a batch -----------------------------------------------------------


@pytest.mark.parametrize("count", [1, 5, 7, 8, 64])
@pytest.mark.parametrize(("size", "parts"), [(1, 1), (1, 3), (2, 1), (3, 4)])
def test_the_parts_of_all_processes_are_the_batch(count: int, size: int, parts: int) -> None:
    examples = np.random.default_rng(0).permutation(100)[:count]
    shares = [World(r, size).part(examples, i, parts) for r in range(size) for i in range(parts)]
    real = [part for part, share in shares if share == 1.0]
    assert sorted(np.concatenate(real).tolist()) == sorted(examples.tolist())
    assert max(map(len, real)) - min(map(len, real)) <= 1
    idle = [part.tolist() for part, share in shares if share == 0.0]
    assert all(part == [examples[0]] for part in idle)


@pytest.fixture(autouse=True)
def no_torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("TORCHELASTIC_")]:
        monkeypatch.delenv(name)
    for name in ("WORLD_SIZE", "RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)


def test_without_torchrun_there_is_one_process() -> None:
    with world() as alone:
        assert (alone.rank, alone.size, alone.restarted, alone.first) == (0, 1, False, True)
        assert alone.launch is None
        assert alone.sum(2.5) == 2.5
        assert alone.from_all(2.5) == [2.5]
        assert alone.together(lambda: 4) == 4
        assert alone.from_first("x") == "x"
        assert alone.by_first(lambda: 3) == 3
        model = torch.nn.Linear(2, 2)
        assert alone.wrap(model) is model


def test_torchruns_second_start_is_seen_and_is_of_the_same_launch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "1")
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    monkeypatch.setenv("MASTER_ADDR", "localhost")
    launches, seen = [], []
    for _ in range(2):
        store = TCPStore("localhost", 0, is_master=True)  # torchrun's
        monkeypatch.setenv("MASTER_PORT", str(store.port))
        for start in ("0", "1"):
            monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", start)
            with world() as alone:
                launches.append(alone.launch)
                seen.append(alone.restarted)
    assert seen == [False, True] * 2
    assert launches[0] == launches[1] != launches[2] == launches[3]


def test_without_a_store_of_torchruns_a_launch_is_called_as_torchrun_calls_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "job 7")
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    with world() as alone:
        assert (alone.launch, alone.restarted) == ("job 7", True)


def test_an_environment_that_only_looks_like_torchruns_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    with (
        pytest.raises(ArgumentError, match="WORLD_SIZE is 2, but MASTER_ADDR, MASTER_PORT is not"),
        world(),
    ):
        pass


@pytest.mark.parametrize("name", ["WORLD_SIZE", "LOCAL_RANK", "TORCHELASTIC_RESTART_COUNT"])
@pytest.mark.parametrize("said", ["", "two", "-1", "1.5"])
def test_what_torchrun_would_not_say_is_named(
    name: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, said)
    with pytest.raises(ArgumentError, match=f"{name} is {said!r} in the environment"), world():
        pass


def test_more_processes_than_gpus_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setenv("LOCAL_RANK", "2")
    with pytest.raises(ArgumentError, match="process 2 of this machine finds 2 GPUs"), world():
        pass


# --- errors, and who says them -------------------------------------------------------------------


class OneOf(World):
    """A process, and what the first or all of them say."""

    said: Any = None

    @classmethod
    def of(cls, rank: int, said: Any) -> "OneOf":
        made = cls(rank=rank, size=3)
        object.__setattr__(made, "said", said)
        return made

    def from_first(self, value: Any) -> Any:
        return self.said

    def from_all(self, value: Any) -> list[Any]:
        return [value if rank == self.rank else what for rank, what in enumerate(self.said)]


def fail(error: Exception) -> None:
    raise error


def test_an_error_of_one_process_is_its_own() -> None:
    for run in (World().by_first, World().together):
        with pytest.raises(FileError, match=r"^x$") as caught:
            run(lambda: fail(FileError("x")))
        assert not said_elsewhere(caught.value)


def test_the_first_processs_error_is_everybodys_and_it_says_it() -> None:
    with pytest.raises(FileError) as caught:
        OneOf.of(1, (None, FileError, "the first process stopped: x")).by_first(lambda: None)
    assert str(caught.value) == "the first process stopped: x"
    assert said_elsewhere(caught.value)
    with pytest.raises(FileError) as caught:
        OneOf.of(0, None).by_first(lambda: fail(FileError("x")))
    assert not said_elsewhere(caught.value)


@pytest.mark.parametrize(
    ("rank", "own", "said", "heard", "elsewhere"),
    [
        (0, "x", ["", "x", "x"], "x", False),
        (1, "x", ["x", "", "x"], "x", True),
        (1, "x", ["", "", ""], "x", False),
        (2, "y", ["x", "x", ""], "y", False),
        (0, "", ["", "x", "y"], "process 1 stopped: x", True),
        (2, "", ["", "x", ""], "process 1 stopped: x", True),
    ],
)
def test_where_one_process_cannot_none_goes_on_and_each_error_is_said_once(
    rank: int, own: str, said: list[str], heard: str, elsewhere: bool
) -> None:
    with pytest.raises(QkvError) as caught:
        OneOf.of(rank, said).together(lambda: fail(ArgumentError(own)) if own else None)
    assert (str(caught.value), said_elsewhere(caught.value)) == (heard, elsewhere)
