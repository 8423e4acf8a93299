"""What there is to learn: data, a model and a measure, of which the loop knows only this."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor, nn

from qkv.train.order import Examples, Order

Itself = TypeVar("Itself", bound="Batch")


@runtime_checkable
class Batch(Protocol):
    """Examples side by side.

    Attributes:
        targets: how many predictions are judged; the loss of a step is the mean over all of them.
    """

    @property
    def targets(self) -> int:
        """How many predictions are judged."""

    def to(self: Itself, device: torch.device) -> Itself:
        """Return the batch on a device."""


AnyBatch = TypeVar("AnyBatch", bound=Batch)
Together = TypeVar("Together", bound="Tensors")


@dataclass(frozen=True)
class Tensors:
    """A dataclass whose tensors go to a device together; what else its fields hold stays."""

    def to(self: Together, device: torch.device) -> Together:
        """Return the same on a device."""
        held = {field.name: getattr(self, field.name) for field in fields(self)}
        tensors = {name: value for name, value in held.items() if isinstance(value, Tensor)}
        return replace(self, **{name: tensor.to(device) for name, tensor in tensors.items()})


class Task(ABC, Generic[AnyBatch]):
    """Data, a model and a measure.

    Attributes:
        name: what `qkv train` calls it.
        judged_by: the measure that tells which model is the better one.
        higher_is_better: whether more of it is better.
    """

    name: ClassVar[str]
    judged_by: ClassVar[str]
    higher_is_better: ClassVar[bool] = True

    @abstractmethod
    def describe(self) -> Mapping[str, Any]:
        """Return what makes this task this one, as JSON: its sizes, its data and their number.

        What is resumed has to be described alike.
        """

    @abstractmethod
    def model(self) -> nn.Module:
        """Return a new model; its weights are drawn from PyTorch's global generator.

        Every parameter that requires a gradient has to get one in every step, or several processes
        cannot add theirs up; `requires_grad_(False)` for what takes no part.
        """

    @abstractmethod
    def order(self, batch: int, seed: int) -> Order:
        """Return which training examples each step takes."""

    @abstractmethod
    def batch(self, examples: Examples) -> AnyBatch:
        """Return training examples side by side."""

    @abstractmethod
    def loss(self, model: nn.Module, batch: AnyBatch, label_smoothing: float) -> Tensor:
        """Return the sum of the losses of all targets of a batch.

        Args:
            model: what `model()` made, perhaps wrapped: nothing of it is used but that it can be
                called.
            batch: what `batch` made.
            label_smoothing: share of the target that is spread over the vocabulary.
        """

    @abstractmethod
    def measure(self, model: nn.Module) -> Mapping[str, float]:
        """Return what a model, in evaluation mode, reaches on held-out data; `judged_by` first."""

    @abstractmethod
    def samples(self, model: nn.Module) -> list[str]:
        """Return a few lines that show what a model, in evaluation mode, has learnt."""

    @abstractmethod
    def save(self, model: nn.Module, folder: Path) -> None:
        """Write a folder that `qkv.load` reads: config.json, model.safetensors and what else."""
