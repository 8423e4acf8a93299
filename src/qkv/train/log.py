"""Listeners that write down a training as it goes: as JSON lines, and for TensorBoard.

A log holds no more than the training that it tells of: what goes on from a checkpoint first takes
back the lines that come after it, and ends with the log of a training that was not interrupted,
times excepted.
"""

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qkv.disk import cannot_write, reason
from qkv.errors import FileError, MissingPackageError
from qkv.train.events import Event, Listener, Measured, Saved, Started, Stepped
from qkv.train.finite import finite

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

LOG, BOARD = "log.jsonl", "tensorboard"


def tell(*listeners: Listener) -> Listener:
    """Return one listener that tells several, in this order."""

    def told(event: Event) -> None:
        for listener in listeners:
            listener(event)

    return told


class JsonLog:
    """Writes each event as a line of JSON; a kill loses at most the last one.

    Lines are of the kinds `started`, `stepped` and `measured`; what is no number is the text
    "nan", "inf" or "-inf". Checkpoints are not told: whether a line of one was written before a
    kill would be a matter of chance.

    Args:
        path: of the file; written from the first event on.
    """

    def __init__(self, path: Path) -> None:
        """Write nothing yet."""
        self.path = path

    def __call__(self, event: Event) -> None:
        """Write an event.

        Raises:
            FileError: it cannot be written.
        """
        try:
            if isinstance(event, Started):
                self._begin(event.step)
            if isinstance(event, Saved) or (isinstance(event, Started) and event.step):
                return
            with self.path.open("a", encoding="utf-8") as file:
                file.write(f"{json.dumps(_plain(event), ensure_ascii=False, allow_nan=False)}\n")
        except OSError as error:
            raise cannot_write(self.path, error) from error

    def _begin(self, step: int) -> None:
        """Keep the whole lines up to a step, in a file that may not be there."""
        with self.path.open("a+b") as file:
            file.truncate(_length(self.path, step))


def _length(path: Path, step: int) -> int:
    """How many bytes the lines are that a training at a step has told; none at its beginning."""
    length = 0
    for line, said in _lines(path) if step else ():
        if said["step"] > step:
            break
        length += len(line)
    return length


def _lines(path: Path) -> Iterator[tuple[bytes, dict[str, Any]]]:
    """Go through the whole lines of a log, each as it stands and what it says."""
    with path.open("rb") as file:
        for line in file:
            try:
                said = json.loads(line)
            except ValueError:
                return
            if not line.endswith(b"\n") or not isinstance(said, dict) or "step" not in said:
                return
            yield line, said


def last_best(path: Path) -> dict[str, Any] | None:
    """Return what a log says of the best model: `step`, `values` and `samples`; None if nothing.

    Raises:
        FileError: it cannot be read.
    """
    try:
        best = [said for _, said in _lines(path) if said.get("best")]
    except FileNotFoundError:
        return None
    except OSError as error:
        raise FileError(f"{path} cannot be read: {reason(error)}") from error
    return best[-1] if best else None


def _plain(event: Event) -> dict[str, Any]:
    said: dict[str, Any] = {"kind": type(event).__name__.lower(), **vars(event)}
    if isinstance(event, Stepped):
        said["tokens_per_second"] = event.targets / event.seconds if event.seconds else math.inf
    return {name: finite(value) for name, value in said.items()}


class TensorBoard:
    """Writes losses, measures and samples for TensorBoard: `tensorboard --logdir FOLDER`.

    Made by `tensorboard`.
    """

    def __init__(self, folder: Path) -> None:
        """Write nothing yet."""
        self._folder = folder
        self._writer: SummaryWriter | None = None

    def __call__(self, event: Event) -> None:
        """Write an event.

        Raises:
            FileError: it cannot be written.
        """
        with self._named():
            if isinstance(event, Started):
                self._begin(event.step)
            elif isinstance(event, Stepped):
                self._step(event)
            elif isinstance(event, Measured):
                self._measure(event)

    def close(self) -> None:
        """Write what is waiting, and end.

        Raises:
            FileError: it cannot be written.
        """
        with self._named():
            if self._writer is not None:
                self._writer.close()

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Name the folder in an error of writing."""
        try:
            yield
        except OSError as error:
            raise cannot_write(self._folder, error) from error

    def _begin(self, step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        # what was told of later steps, before the training was interrupted, is hidden
        self._writer = SummaryWriter(str(self._folder), purge_step=step + 1)

    def _step(self, event: Stepped) -> None:
        for name in ("loss", "learning_rate", "gradient"):
            self._scalar(f"training/{name}", getattr(event, name), event.step)
        if event.seconds:
            self._scalar("training/tokens_per_second", event.targets / event.seconds, event.step)

    def _measure(self, event: Measured) -> None:
        assert self._writer is not None
        for name, value in event.values.items():
            self._scalar(f"held-out/{name}", value, event.step)
        indented = "\n".join(
            f"    {line}" for sample in event.samples for line in sample.split("\n")
        )
        self._writer.add_text("samples", indented, event.step)  # Markdown, in which this is text
        self._writer.flush()

    def _scalar(self, name: str, value: float, step: int) -> None:
        assert self._writer is not None
        self._writer.add_scalar(name, value, step)


@contextmanager
def tensorboard(folder: Path) -> Iterator[TensorBoard]:
    """Write for TensorBoard while a training runs.

    Args:
        folder: of the training; the files lie in its `tensorboard`.

    Raises:
        MissingPackageError: the package tensorboard is not installed.
        FileError: it cannot be written.
    """
    check_tensorboard()
    board = TensorBoard(folder / BOARD)
    try:
        yield board
    except BaseException:
        with suppress(FileError):  # what stopped the training is said, not what followed from it
            board.close()
        raise
    board.close()


def check_tensorboard() -> None:
    """Raise MissingPackageError where the package tensorboard is not installed."""
    try:
        import torch.utils.tensorboard  # noqa: F401
    except ImportError as error:
        raise MissingPackageError(
            "--tensorboard needs the package tensorboard, which is not installed: "
            "pip install 'qkv[tensorboard]'"
        ) from error
