"""Checkpoints: all that a training needs to go on, written so that the last good one always lives.

A checkpoint is a folder, `checkpoints/step-00001200`, of `state.safetensors` (the parameters and
AdamW's two means of each) and `state.json` (numbers, and the names of the tensors).

What is no number is a text in `state.json`, which `float` reads.

In this order: both files are written into `step-00001200.partial` and brought to the disk, then
that folder's entries; it gets its name in one step, which is brought to the disk too; only then is
the one before renamed (so that a half-removed folder never bears a good name) and removed. So a
folder with such a name is a whole one, and whenever a process or a machine stops, there is one.
"""

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.optim import Optimizer

from qkv.disk import cannot_write, reason, settle, write_tensors
from qkv.errors import FileError
from qkv.train.distributed import World
from qkv.train.finite import finite

FOLDER = "checkpoints"
TENSORS, NUMBERS = "state.safetensors", "state.json"
MEANS = ("step", "exp_avg", "exp_avg_sq")
"""What AdamW remembers of a parameter: how often it changed, and its two means."""


@dataclass(frozen=True)
class Checkpoint:
    """A training as it was after some steps.

    Attributes:
        step: how often the weights had been changed.
        numbers: what else the loop remembers, as JSON.
        tensors: the parameters, by their names, and AdamW's means behind `optimizer.`; whole, in
            the first process; of shapes only (or none at all) in others.
    """

    step: int
    numbers: Mapping[str, Any]
    tensors: Mapping[str, Tensor]

    @property
    def name(self) -> str:
        """Of its folder, in that of the training."""
        return f"{FOLDER}/step-{self.step:08d}"

    @classmethod
    def of(
        cls,
        step: int,
        model: nn.Module,
        optimizer: Optimizer,
        numbers: Mapping[str, Any],
        world: World,
    ) -> "Checkpoint":
        """Take the state of a training; nothing is copied but what is sharded."""
        tensors = {f"model.{name}": tensor for name, tensor in state_of(model).items()}
        for name, parameter in model.named_parameters():
            for key, value in optimizer.state.get(parameter, {}).items():
                tensors[f"optimizer.{name}.{key}"] = value
        return cls(step, numbers, world.gather(tensors))

    def restore(self, model: nn.Module, optimizer: Optimizer, world: World) -> None:
        """Give a model and its optimizer the state that was taken.

        Raises:
            FileError: the tensors are not those of the model; names them, and nothing is changed.
        """
        places = {f"model.{name}": tensor for name, tensor in state_of(model).items()}
        means: dict[Tensor, dict[str, Tensor]] = {}
        for name, parameter in model.named_parameters():
            keys = [f"optimizer.{name}.{key}" for key in MEANS]
            if any(key in self.tensors for key in keys):  # none, of what never had a gradient
                means[parameter] = _empty(parameter)
                places |= zip(keys, means[parameter].values(), strict=True)
        self._check(places)
        optimizer.state.update(means)
        world.scatter(self.tensors, places)

    def _check(self, places: Mapping[str, Tensor]) -> None:
        missing = [name for name in places if name not in self.tensors]
        surplus = [name for name in self.tensors if name not in places]
        unfit = [
            f"{name} is {tuple(self.tensors[name].shape)}, wanted {tuple(place.shape)}"
            for name, place in places.items()
            if name in self.tensors and self.tensors[name].shape != place.shape
        ]
        problems = {"missing": missing, "surplus": surplus, "unfit": unfit}
        said = [f"{what}: {_listed(which)}" for what, which in problems.items() if which]
        if said:
            raise FileError(f"{self.name}/{TENSORS} does not fit the model; {'; '.join(said)}")

    def save(self, out: Path) -> Path:
        """Write the checkpoint and remove the older ones.

        Raises:
            FileError: it cannot be written; the last good one is still there.
        """
        folder = out / self.name
        partial = folder.with_suffix(".partial")
        numbers = {"step": self.step, "tensors": sorted(self.tensors), **self.numbers}
        try:
            for left in (out / FOLDER).glob("step-*.*"):  # by what was stopped while it wrote
                shutil.rmtree(left)
            partial.mkdir(parents=True)
            write_tensors(partial / TENSORS, {n: t.contiguous() for n, t in self.tensors.items()})
            (partial / NUMBERS).write_text(json.dumps(finite(numbers), allow_nan=False), "utf-8")
            for path in (partial / TENSORS, partial / NUMBERS, partial):
                settle(path)
            os.replace(partial, folder)
            settle(folder.parent)
        except OSError as error:
            shutil.rmtree(partial, ignore_errors=True)
            raise cannot_write(folder, error) from error
        _remove(_complete(out)[:-1])
        return folder

    @classmethod
    def last(cls, out: Path) -> "Checkpoint | None":
        """Read the last whole checkpoint of a folder; None where there is none.

        Raises:
            FileError: one of its files is damaged.
        """
        found = _complete(out)
        if not found:
            return None
        numbers = _numbers(found[-1] / NUMBERS)
        step, names = numbers.pop("step"), numbers.pop("tensors")
        path = found[-1] / TENSORS
        try:
            tensors = load_file(path)
        except (OSError, SafetensorError) as error:
            raise FileError(_damaged(path, reason(error))) from error
        if sorted(tensors) != names:
            differ = sorted(set(tensors) ^ set(names))
            raise FileError(_damaged(path, f"it and {NUMBERS} differ in {_listed(differ)}"))
        return cls(step, numbers, tensors)

    @staticmethod
    def last_step(out: Path) -> int | None:
        """Return the step of the last whole checkpoint; None where there is none."""
        found = _complete(out)
        return int(found[-1].name.removeprefix("step-")) if found else None

    def outline(self) -> "Checkpoint":
        """Return it with tensors of shapes only, which is what the other processes need."""
        shapes = {name: torch.empty_like(t, device="meta") for name, t in self.tensors.items()}
        return Checkpoint(self.step, self.numbers, shapes)


def state_of(model: nn.Module) -> dict[str, Tensor]:
    """Return what a model is: its parameters and buffers as they lie, each once."""
    kept = dict[str, Tensor](model.named_parameters())
    for prefix, module in model.named_modules():
        for name, buffer in module.named_buffers(prefix, recurse=False):
            if name.rpartition(".")[2] not in module._non_persistent_buffers_set:
                kept[name] = buffer
    return kept


def _empty(parameter: Tensor) -> dict[str, Tensor]:
    """Make what AdamW remembers of a parameter; it lies as the parameter does."""
    counted = torch.zeros((), dtype=torch.float32, device=parameter.device)
    means = torch.zeros_like(parameter), torch.zeros_like(parameter)
    return dict(zip(MEANS, (counted, *means), strict=True))


def _complete(out: Path) -> list[Path]:
    whole = (path for path in (out / FOLDER).glob("step-*") if path.name[5:].isdecimal())
    return sorted(whole, key=lambda path: int(path.name[5:]))


def _remove(folders: list[Path]) -> None:
    """Remove what is no longer wanted; what cannot be removed stays, and is whole."""
    for folder in folders:
        old = folder.with_suffix(".old")
        try:
            os.replace(folder, old)
        except OSError:
            continue
        shutil.rmtree(old, ignore_errors=True)


def _numbers(path: Path) -> dict[str, Any]:
    try:
        numbers = json.loads(path.read_text("utf-8"))
        problem = _lacking(numbers)
        if not problem:
            return dict(numbers)
    except (OSError, ValueError, RecursionError) as error:
        problem = reason(error)
    raise FileError(_damaged(path, problem))


def _lacking(numbers: Any) -> str:
    """Say what a checkpoint's numbers lack; "" where they are as they should be."""
    if not isinstance(numbers, dict):
        return f"it holds a {type(numbers).__name__}; wanted an object"
    kinds = {"step": int, "tensors": list}
    wrong = [name for name, kind in kinds.items() if not isinstance(numbers.get(name), kind)]
    return (
        f"{' and '.join(wrong)} {'is' if len(wrong) == 1 else 'are'} not as saved" if wrong else ""
    )


def _damaged(path: Path, problem: str) -> str:
    return f"{path} is damaged, and training cannot go on from it: {problem}; begin in a new folder"


def _listed(names: list[str]) -> str:
    more = len(names) - 20
    return ", ".join(names[:20]) + (f" and {more} more" if more > 0 else "")
