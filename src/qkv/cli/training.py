"""A training that was asked for, from its data to what is printed of it."""

import os
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from qkv.cli.progress import say, waiting
from qkv.errors import FileError, QkvError, TrainingError
from qkv.train.tasks.catalogue import Entry

if TYPE_CHECKING:
    from qkv.train.events import Event, Listener
    from qkv.train.loop import Result
    from qkv.train.settings import Settings


@dataclass(frozen=True)
class Asked:
    """What to train.

    Attributes:
        name: of the task.
        entry: what the catalogue says of it.
        out: the folder.
        data: files and names of built-in sets.
        own: options of the task.
        settings: those that are to be other than usual, and the seed.
        plot: the picture to draw at the end.
    """

    name: str
    entry: Entry
    out: Path
    data: tuple[str, ...]
    own: Mapping[str, Any]
    settings: Mapping[str, Any]
    plot: Path | None


def run(asked: Asked, *, resume: bool, shard: bool, tensorboard: bool, json: bool) -> None:
    """Train, and print what came out; only the first of several processes speaks."""
    heard = Heard()
    with _stopping(heard):
        with _waiting("loading PyTorch"):
            from qkv.train.distributed import world
        with world() as joined:
            joined.check(shard=shard)
            task, settings = joined.together(lambda: _opened(asked, tensorboard))
            with _listening(asked, heard, joined.first, tensorboard) as listen:
                from qkv.train.loop import train

                result = train(
                    task, settings, asked.out, resume=resume, shard=shard, world=joined,
                    listen=listen,
                )  # fmt: skip
    if joined.first:
        _tell(asked, task, result, json)


@contextmanager
def _stopping(heard: "Heard") -> Iterator[None]:
    """Let what stops a training be said once, by the process that it stopped."""
    try:
        yield
    except KeyboardInterrupt:
        if not _rank():
            say(f"stopped{heard}")
        raise typer.Exit(130) from None
    except Exception as error:
        from qkv.train.distributed import said_elsewhere

        if said_elsewhere(error):
            raise typer.Exit(2) from None
        said = _said(error)
        if said is None:
            raise
        raise said from error


def _said(error: Exception) -> QkvError | None:
    """Return what a person is told instead of an error; None where it is said as it is."""
    from qkv.disk import reason

    rank = _rank()
    whose = f"process {rank}: " if rank else ""
    if isinstance(error, QkvError):
        return type(error)(f"{whose}{error}") if rank else None
    if isinstance(error, OSError):
        which = "" if error.filename is None else f"{error.filename}: "
        return FileError(f"{whose}{which}{reason(error)}")
    if isinstance(error, RuntimeError) and "by peer" in str(error):
        return TrainingError(f"process {rank}: another process is gone")
    return None


def _rank() -> int:
    """Which of the processes that torchrun started this is; they may not have joined yet."""
    said = os.environ.get("RANK", "0")
    return int(said) if said.isdecimal() else 0


def _waiting(what: str) -> AbstractContextManager[None]:
    """Show what is being done; of several processes, the first does."""
    return nullcontext() if _rank() else waiting(what)


class Heard:
    """Hears how far a training is, and which checkpoint is the last; says so where it stops."""

    def __init__(self) -> None:
        """Nothing happened yet."""
        self.step: int | None = None
        self.saved = 0

    def __call__(self, event: "Event") -> None:
        """Remember."""
        from qkv.train.events import Saved, Started

        self.step = event.step
        if isinstance(event, Saved | Started):
            self.saved = event.step

    def __str__(self) -> str:
        """Say where it is, and what goes on from there."""
        if self.step is None:
            return " before the first step"
        kept = f"step {self.saved}" if self.saved else "the beginning"
        again = f"the same command with --resume goes on from {kept}"
        return f" after step {self.step}; {'' if self.saved else 'no checkpoint yet: '}{again}"


def _opened(asked: Asked, tensorboard: bool) -> "tuple[Any, Settings]":
    """Read and check all that the training needs."""
    with _waiting("reading the data"):
        if tensorboard:
            from qkv.train.log import check_tensorboard

            check_tensorboard()
        kind = asked.entry.load(asked.name)
        _settings(kind.usual, asked)  # what cannot be meant is refused before anything is read
        task = kind.open(asked.data, seed=asked.settings["seed"], **asked.own)
        return task, _settings(task.usual, asked)


def _settings(usual: "Settings", asked: Asked) -> "Settings":
    """Change what was asked for; in fewer steps than usual the learning rate rises faster."""
    steps = asked.settings.get("steps")
    return replace(usual if steps is None else usual.in_steps(steps), **asked.settings)


@contextmanager
def _listening(asked: Asked, heard: Heard, first: bool, tensorboard: bool) -> Iterator["Listener"]:
    """Tell the log, TensorBoard and the person; other processes than the first tell nobody."""
    from qkv.cli.training_bar import training_bar
    from qkv.train import log

    if not first:
        yield heard
        return
    listeners: list[Listener] = [heard, log.JsonLog(asked.out / log.LOG)]
    with ExitStack() as open_until_the_end:
        if tensorboard:
            listeners.append(open_until_the_end.enter_context(log.tensorboard(asked.out)))
        listeners.append(open_until_the_end.enter_context(training_bar(asked.entry.unit)))
        yield log.tell(*listeners)


def _tell(asked: Asked, task: Any, result: "Result", json: bool) -> None:
    """Draw what was asked for, and print the result."""
    from qkv.cli.screen import write, write_json
    from qkv.cli.trained import plain, text
    from qkv.train.log import LOG, last_best

    if asked.plot is not None:
        from qkv.models import load

        with waiting("drawing"):
            task.plot(load(asked.out), asked.plot)
    best = last_best(asked.out / LOG) or {}
    samples = best.get("samples", []) if best.get("step") == result.best_step else []
    if json:
        write_json(plain(asked, result, samples))
    else:
        write(text(asked, result, samples))
