"""How far a training is: a bar where a person looks, and each measure as it comes."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.text import Text

from qkv.cli.progress import SPINNER, console, say, watched
from qkv.cli.texts import legible
from qkv.cli.trained import measures
from qkv.train.events import Event, Listener, Measured, Started, Stepped

if TYPE_CHECKING:
    from rich.progress import Progress

SAMPLES = 10
"""Printed with each measure, at most; the log has them all."""


class Pace:
    """The loss and the speed of late, smoothed: each step counts less, the longer ago it is."""

    DECAY = 0.95

    def __init__(self) -> None:
        """Nothing was seen yet."""
        self._steps = self._loss = self._targets = self._seconds = 0.0

    def see(self, event: Stepped) -> None:
        """Take a step in."""
        keep = self.DECAY
        self._steps = keep * self._steps + 1
        self._loss = keep * self._loss + event.loss
        self._targets = keep * self._targets + event.targets
        self._seconds = keep * self._seconds + event.seconds

    @property
    def loss(self) -> float:
        """Mean loss of late."""
        return self._loss / self._steps

    @property
    def rate(self) -> float:
        """Targets a second of late."""
        return self._targets / self._seconds if self._seconds else 0.0


class Bar:
    """Shows each step on a bar.

    Args:
        bar: rich's.
        unit: what a target is.
    """

    def __init__(self, bar: "Progress", unit: str) -> None:
        """Show that nothing was done yet."""
        self._bar, self._unit, self._pace = bar, unit, Pace()
        self._task = bar.add_task("training", total=None, said="")

    def __call__(self, event: Event) -> None:
        """Show an event."""
        if isinstance(event, Started):
            self._bar.reset(self._task, total=event.steps, completed=event.step)
        elif isinstance(event, Stepped):
            self._pace.see(event)
            said = f"loss {self._pace.loss:.3f}  {self._pace.rate:,.0f} {self._unit}/s"
            self._bar.update(self._task, completed=event.step, said=said)
        elif isinstance(event, Measured):
            shown = Text("\n".join(_lines(event)), style="dim")
            self._bar.console.print(shown, soft_wrap=True)


def _say(event: Event) -> None:
    """Say what was measured; nobody sees a bar."""
    if isinstance(event, Measured):
        say("\n".join(_lines(event)))


def _lines(event: Measured) -> list[str]:
    best = ", the best so far" if event.best else ""
    samples = [line for sample in event.samples[:SAMPLES] for line in sample.split("\n")]
    return [
        f"step {event.step:,}: {measures(event.values)}{best}",
        *(f"  {legible(line)}" for line in samples),
    ]


@contextmanager
def training_bar(unit: str) -> Iterator[Listener]:
    """Show a training as it goes, on stderr; of the bar itself nothing is left.

    Args:
        unit: what a target is: "tokens".
    """
    if not watched():
        yield _say
        return
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        SpinnerColumn,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (
        SpinnerColumn(SPINNER), MofNCompleteColumn(), BarColumn(20),
        TextColumn("{task.fields[said]}", markup=False), TimeRemainingColumn(),
    )  # fmt: skip
    with Progress(
        *columns, console=console(), transient=True, refresh_per_second=4,
        redirect_stdout=False, redirect_stderr=False,
    ) as bar:  # fmt: skip
        yield Bar(bar, unit)
