"""What there is to learn: batches go to a device whole."""

from dataclasses import FrozenInstanceError, dataclass

import pytest
import torch
from torch import Tensor

from qkv.train.task import Batch, Tensors


@dataclass(frozen=True)
class Pair(Tensors):
    first: Tensor
    names: tuple[str, ...]
    second: Tensor | None = None
    third: Tensor | None = None

    @property
    def targets(self) -> int:
        return len(self.first)


@dataclass(frozen=True, slots=True)
class Slotted(Tensors):
    only: Tensor


def test_every_tensor_goes_to_the_device_and_the_rest_stays() -> None:
    pair = Pair(torch.randn(5, 3), ("a", "b"), third=torch.arange(7))
    moved = pair.to(torch.device("meta"))
    assert isinstance(moved, Pair)
    assert isinstance(moved, Batch)
    assert moved.third is not None
    assert (moved.first.device.type, moved.third.device.type) == ("meta", "meta")
    assert (moved.first.shape, moved.third.dtype) == ((5, 3), torch.int64)
    assert (moved.names, moved.second, moved.targets) == (("a", "b"), None, 5)
    assert pair.first.device.type == "cpu"
    assert Slotted(torch.ones(2)).to(torch.device("meta")).only.device.type == "meta"


def test_what_is_there_already_is_not_copied() -> None:
    pair = Pair(torch.randn(5, 3), ())
    assert pair.to(torch.device("cpu")).first is pair.first
    with pytest.raises(FrozenInstanceError):
        pair.first = torch.ones(1)  # type: ignore[misc]
