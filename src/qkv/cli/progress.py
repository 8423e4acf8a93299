"""How far a command is: on stderr, and only where a person looks at it."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.text import Text

from qkv.cli import printable
from qkv.cli.texts import legible

SPINNER = "line"
"""Of letters that every terminal has."""


class Moving(Protocol):
    """Told how far something is."""

    def __call__(self, done: float) -> None:
        """Show that so much is done, of what `moving` was given."""


def watched() -> bool:
    """Whether a person sees stderr."""
    return sys.stderr is not None and sys.stderr.isatty()


@contextmanager
def waiting(what: str) -> Iterator[None]:
    """Show that something is being done, whose end is not known; nothing is left of it."""
    if not watched():
        yield
        return
    with console().status(Text(printable(what)), spinner=SPINNER):
        yield


@contextmanager
def moving(what: str, total: float, at: float = 0.0) -> Iterator[Moving]:
    """Show how much of something is done; nothing is left of it."""
    if not watched():
        yield _nowhere
        return
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn

    columns = (
        SpinnerColumn(SPINNER), TextColumn("{task.description}", markup=False), BarColumn(),
        TextColumn("{task.percentage:>3.0f} %"), TimeRemainingColumn(),
    )  # fmt: skip
    # what is printed meanwhile is data, and goes where it always goes
    with Progress(
        *columns, console=console(), transient=True, redirect_stdout=False, redirect_stderr=False
    ) as bar:
        task = bar.add_task(printable(what), total=total)
        bar.update(task, completed=at)
        yield lambda done: bar.update(task, completed=done)


def say(text: str, end: str = "\n") -> None:
    """Write to stderr, dim where a person sees it."""
    if sys.stderr is not None:
        console().print(Text(legible(text), style="dim"), soft_wrap=True, end=end)


def _nowhere(done: float) -> None:
    """Show nothing."""


def console() -> Console:
    """Return the terminal that stderr is."""
    made = Console(stderr=True, highlight=False)
    made.width = max(made.width, 40)  # rich prints nothing where COLUMNS is 0
    return made
