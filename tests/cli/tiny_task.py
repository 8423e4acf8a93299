"""A task of almost nothing, for the command: which number follows another, counting round."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from qkv.disk import write_whole
from qkv.errors import ArgumentError
from qkv.train.order import Examples, Shuffled
from qkv.train.settings import Settings
from qkv.train.task import Task

SIZE = 7

RUN = (
    "from tests.cli.tiny_task import Tiny\n"
    "from qkv.train.tasks.catalogue import TASKS, Entry\n"
    "TASKS['tiny'] = Entry('tests.cli.tiny_task:Tiny', '', unit='numbers')\n"
)
"""A program that begins so knows the task by its name."""


@dataclass(frozen=True)
class Pairs:
    before: Tensor
    after: Tensor

    @property
    def targets(self) -> int:
        return len(self.after)

    def to(self, device: torch.device) -> "Pairs":
        return Pairs(self.before.to(device), self.after.to(device))


class Tiny(Task[Pairs]):
    name = "tiny"
    judged_by = "perplexity"
    higher_is_better = False
    usual: ClassVar[Settings] = Settings(
        steps=20, batch=5, learning_rate=0.1, warmup=2, measure_every=10, save_every=5
    )
    interrupted_at = 0
    broken_at = 0
    drawn: ClassVar[list[tuple[Any, Path]]] = []

    def __init__(self, data: Sequence[str], seed: int, stride: int) -> None:
        self.data, self.seed, self.stride, self.calls = tuple(data), seed, stride, 0

    @classmethod
    def open(cls, data: Sequence[str] = (), *, seed: int = 0, stride: int = 1) -> Self:
        for name in data:
            if not Path(name).is_file():
                raise ArgumentError(f"data is {name!r}, which is not there")
        return cls(data, seed, stride)

    def describe(self) -> Mapping[str, Any]:
        return {"size": SIZE, "data": list(self.data), "seed": self.seed, "stride": self.stride}

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Embedding(SIZE, 8), nn.Dropout(0.1), nn.Linear(8, SIZE))

    def order(self, batch: int, seed: int) -> Shuffled:
        return Shuffled(SIZE, batch, seed)

    def batch(self, examples: Examples) -> Pairs:
        before = torch.from_numpy(examples)
        return Pairs(before, (before + self.stride) % SIZE)

    def loss(self, model: nn.Module, batch: Pairs, label_smoothing: float) -> Tensor:
        self.calls += 1
        if self.calls == self.interrupted_at:
            raise KeyboardInterrupt
        found = model(batch.before)
        if self.calls == self.broken_at:
            found = found * math.nan
        return cross_entropy(found, batch.after, label_smoothing=label_smoothing, reduction="sum")

    def measure(self, model: nn.Module) -> Mapping[str, float]:
        numbers = torch.arange(SIZE)
        said = model(numbers)
        wanted = (numbers + self.stride) % SIZE
        right = (said.argmax(-1) == wanted).double().mean()
        return {"perplexity": float(cross_entropy(said, wanted).exp()), "right": float(right)}

    def samples(self, model: nn.Module) -> list[str]:
        return [f"3 → {int(model(torch.tensor(3)).argmax())} \x1b[31m"]

    def save(self, model: nn.Module, folder: Path) -> None:
        write_whole(folder / "config.json", json.dumps({"model_type": "tiny"}).encode())

    def plot(self, model: Any, path: Path) -> None:
        self.drawn.append((model, path))
        path.write_text("<svg/>")
