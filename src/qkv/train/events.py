"""What a training tells those who watch it, as it goes."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Started:
    """Training begins, or goes on.

    Attributes:
        step: the steps that were done before; 0 unless it goes on.
        steps: the steps that there will be.
        parameters: numbers that are trained.
        processes: that train together.
    """

    step: int
    steps: int
    parameters: int
    processes: int


@dataclass(frozen=True)
class Stepped:
    """The weights were changed.

    Attributes:
        step: how many times by now.
        loss: mean over the targets of the batch, in nats, before the change.
        learning_rate: by which they were changed.
        gradient: the length of the gradient before it was cut.
        targets: predictions that were judged, over all processes.
        seconds: that the step took.
    """

    step: int
    loss: float
    learning_rate: float
    gradient: float
    targets: int
    seconds: float


@dataclass(frozen=True)
class Measured:
    """The model was tried on held-out data.

    Attributes:
        step: the changes of the weights so far.
        values: what it reached.
        samples: a few lines of what it does.
        best: whether nothing before was better.
    """

    step: int
    values: Mapping[str, float]
    samples: tuple[str, ...]
    best: bool


@dataclass(frozen=True)
class Saved:
    """A checkpoint is complete."""

    step: int
    path: Path


Event = Started | Stepped | Measured | Saved
Listener = Callable[[Event], None]
"""Is told every event, by the first process only."""
