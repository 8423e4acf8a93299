"""Trainings of the small task, and what they told."""

import json
from pathlib import Path
from typing import Any

from qkv.train.events import Event, Measured, Saved, Started, Stepped
from qkv.train.loop import train
from tests.train.small_task import SmallTask, settings


class Told(list[Event]):
    """All events, as they were told."""

    @property
    def steps(self) -> list[Stepped]:
        return [event for event in self if isinstance(event, Stepped)]

    @property
    def losses(self) -> list[float]:
        return [event.loss for event in self.steps]

    @property
    def values(self) -> list[tuple[object, ...]]:
        """What a log holds but for times and paths."""
        told: list[tuple[object, ...]] = []
        for event in self:
            match event:
                case Stepped(step, loss, rate, gradient, targets):
                    told.append((step, loss, rate, gradient, targets))
                case Measured(step, values, samples, best):
                    told.append((step, dict(values), samples, best))
                case Saved(step):
                    told.append((step, "saved"))
                case Started():
                    pass
        return told


def run(task: SmallTask, out: Path, *, resume: bool = False, **changes: Any) -> Told:
    told = Told()
    train(task, settings(**changes), out, resume=resume, listen=told.append)
    return told


def same(a: Path, b: Path) -> None:
    """The best model and the last checkpoint are bit for bit the same."""
    for name in ("model.safetensors", "config.json"):
        assert (a / name).read_bytes() == (b / name).read_bytes()
    (one,), (other,) = (list((path / "checkpoints").iterdir()) for path in (a, b))
    assert one.name == other.name
    name = "state.safetensors"
    assert (one / name).read_bytes() == (other / name).read_bytes()
    numbers = [json.loads((path / "state.json").read_text()) for path in (one, other)]
    assert all(number.pop("seconds") > 0 for number in numbers)
    assert numbers[0] == numbers[1]
