"""The folder that a training writes: the model, what it was made with, and what it goes on from.

config.json, model.safetensors, …   the best model so far, as the task saves it
training.json                       the task and the settings; at the end, what came out
checkpoints/                        the last checkpoint

Who listens may write there too, as `log` does.
"""

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from torch import nn

from qkv.disk import make_folder, reason, write_whole
from qkv.errors import ArgumentError, FileError
from qkv.train.checkpoint import Checkpoint
from qkv.train.distributed import World
from qkv.train.events import Event, Listener
from qkv.train.finite import finite
from qkv.train.settings import Settings
from qkv.train.task import Task

if TYPE_CHECKING:
    from qkv.train.loop import Result

RECORD = "training.json"
ALIKE = ("task", "about", "settings")
"""What has to be the same in what goes on."""

Written = TypeVar("Written")


class TrainingFolder:
    """A folder of one training; only the first process reads it and writes to it.

    Args:
        path: of the folder; made where it is not there.
        world: the processes that train.
    """

    def __init__(self, path: Path, world: World) -> None:
        """Look at nothing yet."""
        self.path, self.world = path, world
        self._record: dict[str, Any] = {}
        self._resume = False

    def open(self, task: Task[Any], settings: Settings, *, resume: bool) -> None:
        """Begin, or go on with what was begun with the same task and settings.

        What torchrun started again goes on with what its own first start began.

        Raises:
            FileError: it holds something already, or nothing to go on from.
            ArgumentError: another task, or other settings; names every field that differs.
        """
        about, launch = dict(task.describe()), self.world.launch
        record = {"task": task.name, "about": about, "settings": asdict(settings)}
        self._record = json.loads(json.dumps(finite(record))) | (
            {"launch": launch} if launch else {}
        )
        self._resume = self.world.by_first(lambda: self._open(resume))

    def _open(self, resume: bool) -> bool:
        there, restarted = self.path / RECORD, self.world.restarted
        if there.exists() and (resume or restarted):
            before = _read(there)
            if resume or before.get("launch") == self.world.launch:
                _compare(before, self._record)
                _sweep(self.path)
                return True
        if resume:
            raise FileError(f"{self.path} holds no {RECORD}: there is nothing to go on with")
        if self.path.is_dir() and not _empty(self.path):
            instead = "give another folder" + (", or --resume" if there.exists() else "")
            raise FileError(f"{self.path} is not empty; {instead}")
        _sweep(self.path)
        self._write()
        return False

    def checkpoint(self) -> Checkpoint | None:
        """Return the last checkpoint where training goes on; tensors to the first process only.

        Raises:
            FileError: it is damaged.
        """
        if not self._resume:
            return None
        found: list[Checkpoint] = []

        def read() -> Checkpoint | None:
            kept = Checkpoint.last(self.path)
            found.extend([] if kept is None else [kept])
            return kept if kept is None or self.world.size == 1 else kept.outline()

        outline = self.world.by_first(read)
        return found[0] if found else outline

    def keep(self, task: Task[Any], model: nn.Module | None) -> None:
        """Write the model, which the first process has.

        Raises:
            FileError: it cannot be written; says which checkpoint there is.
        """

        def write() -> None:
            if model is not None:
                task.save(model, self.path)

        self._written(write)

    def save(self, checkpoint: Checkpoint) -> Path:
        """Write a checkpoint.

        Raises:
            FileError: it cannot be written; says which one there is.
        """
        return self._written(lambda: checkpoint.save(self.path))

    def _written(self, write: Callable[[], Written]) -> Written:
        def tried() -> Written:
            try:
                return write()
            except OSError as error:
                raise self._unwritten(error) from error

        return self.world.by_first(tried)

    def told(self, listen: Listener) -> Listener:
        """Return a listener that says which checkpoint there is, where it cannot write."""

        def told(event: Event) -> None:
            try:
                listen(event)
            except OSError as error:
                raise self._unwritten(error) from error

        return told

    def _unwritten(self, error: OSError) -> FileError:
        on = ", to go on from (--resume)" if Checkpoint.last_step(self.path) else ""
        return FileError(f"{reason(error)}; {self.last_good()}{on}")

    def last_good(self) -> str:
        """Say which checkpoint is the last."""
        step = Checkpoint.last_step(self.path)
        if step is None:
            return "there is no checkpoint to go on from"
        return f"the checkpoint of step {step} is good"

    def close(self, result: "Result") -> None:
        """Write what came out."""
        self._record["result"] = finite(asdict(result))
        self._written(self._write)

    def _write(self) -> None:
        text = json.dumps(self._record, indent=2, ensure_ascii=False, allow_nan=False)
        make_folder(self.path)
        write_whole(self.path / RECORD, f"{text}\n".encode())


def _empty(folder: Path) -> bool:
    """Whether a folder holds nothing, or only what was stopped while its first file was written."""
    return all(path.match(f".{RECORD}.*.partial") for path in folder.iterdir())


def _sweep(folder: Path) -> None:
    """Remove what was stopped while it was written; it never got its name."""
    for path in folder.glob(".*.partial"):
        with suppress(OSError):
            path.unlink()


def _read(path: Path) -> dict[str, Any]:
    try:
        record = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise FileError(f"{path} cannot be read: {reason(error)}") from error
    if not isinstance(record, dict):
        raise FileError(f"{path} holds a {type(record).__name__}; wanted an object")
    return record


def _compare(before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    was, is_ = (_flat({key: one.get(key) for key in ALIKE}) for one in (before, now))
    differ = [
        f"{key} was {was.get(key)!r} and is {is_.get(key)!r}"
        for key in {**is_, **was}
        if was.get(key) != is_.get(key)
    ]
    if differ:
        raise ArgumentError(f"what goes on has to be as it began: {'; '.join(differ)}")


def _flat(record: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Return every value by its path: {"settings": {"seed": 0}} gives {"settings.seed": 0}."""
    found: dict[str, Any] = {}
    for key, value in record.items():
        name = f"{before}{key}"
        found |= _flat(value, f"{name}.") if isinstance(value, Mapping) else {name: value}
    return found
