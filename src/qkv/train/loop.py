"""The loop: one for every task.

    train(task, settings, folder)

For each batch: the loss of all targets, its gradient, and AdamW's step; now and then a measure on
held-out data and a checkpoint. All that is random in a step follows from the seed, the step's
number and the process, and all that a step takes from `Order`: nothing has to be remembered of
either, and what was interrupted ends as what was not.
"""

import hashlib
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grads_with_norm_, get_total_norm
from torch.optim import AdamW

from qkv.errors import FileError, TrainingError
from qkv.train.checkpoint import NUMBERS, Checkpoint, state_of
from qkv.train.distributed import World, gathered
from qkv.train.events import Listener, Measured, Saved, Started, Stepped
from qkv.train.folder import TrainingFolder
from qkv.train.memory import memory_kept
from qkv.train.order import Examples
from qkv.train.schedule import learning_rate
from qkv.train.settings import Settings
from qkv.train.task import Task

REMEMBERED = ("best", "waited", "seconds")
"""What a checkpoint keeps of the loop itself."""


@dataclass(frozen=True)
class Result:
    """What came out.

    Attributes:
        step: after how many changes of the weights training ended.
        best_step: after how many the model was that was kept.
        values: what that model reached on held-out data.
        seconds: that training took; where it went on, of all its runs up to their checkpoints.
        parameters: numbers that were trained.
    """

    step: int
    best_step: int
    values: Mapping[str, float]
    seconds: float
    parameters: int


def train(
    task: Task[Any],
    settings: Settings,
    out: str | Path,
    *,
    resume: bool = False,
    shard: bool = False,
    world: World | None = None,
    listen: Listener | None = None,
) -> Result:
    """Train a task's model and keep the one that is best on held-out data.

    Args:
        task: data, a model and a measure.
        settings: how.
        out: takes the best model as a folder that `qkv.load` reads, the record `training.json`
            and the last checkpoint.
        resume: goes on from the last checkpoint; to the same weights, bit for bit, as if nothing
            had happened, on one process.
        shard: each of several processes keeps a part of every parameter, where one cannot keep
            them all. The first then measures on its CPU, which has to have room for the model.
        world: the processes that train together, as `qkv.train.distributed.world` joins them; it
            has the GPU too. One process on the CPU unless given.
        listen: is told every event; what writes a log is in `qkv.train.log`.

    Raises:
        FileError: the folder holds something already, or nothing to go on from, or cannot be
            written to; says which checkpoint is good.
        ArgumentError: what is to go on was told to be otherwise, and the message names the
            fields; or `shard` with one process.
        TrainingError: the loss is no number any more; names the step.
    """
    world = world or World()
    world.check(shard=shard)
    folder = TrainingFolder(Path(out), world)
    folder.open(task, settings, resume=resume)
    devices = [] if world.device.type == "cpu" else [world.device]
    with torch.random.fork_rng(devices), memory_kept():
        return Training(task, settings, folder, listen, shard=shard).run()


class Training:
    """A model on its way: what changes from step to step.

    Attributes:
        step: how often the weights were changed.
        best: the best measure, its step and what was reached; None before the first.
        waited: measures since then that were no better.
    """

    best: dict[str, Any] | None

    def __init__(
        self,
        task: Task[Any],
        settings: Settings,
        folder: TrainingFolder,
        listen: Listener | None = None,
        *,
        shard: bool = False,
    ) -> None:
        """Draw the weights, or take those of the last checkpoint."""
        self.task, self.settings, self.folder, self.shard = task, settings, folder, shard
        self.world = folder.world
        heard = listen if listen is not None and self.world.first else lambda event: None
        self._listen: Listener = folder.told(heard)
        torch.manual_seed(settings.seed)
        self.model = self._new("cpu" if shard else self.world.device)
        self.wrapped = self.world.wrap(self.model, shard=shard)
        self.optimizer = optimizer_of(self.model, settings)
        self.step, self.best, self.waited, self._before = 0, None, 0, 0.0
        kept = folder.checkpoint()
        if kept is not None:
            self._go_on(kept)
        self._start = time.perf_counter()

    def _go_on(self, kept: Checkpoint) -> None:
        """Take up what was left off.

        Raises:
            FileError: the checkpoint is not of this model, or lacks something.
        """
        lost = [name for name in REMEMBERED if name not in kept.numbers]
        if lost:
            raise FileError(f"{kept.name}/{NUMBERS} lacks {', '.join(lost)}; begin in a new folder")
        kept.restore(self.model, self.optimizer, self.world)
        self.step = kept.step
        best, self.waited, self._before = (kept.numbers[name] for name in REMEMBERED)
        self.best = best and best | {"values": _numbers(best["values"])}

    def _new(self, device: torch.device | str) -> nn.Module:
        kind = torch.float64 if self.settings.precision == "float64" else torch.float32
        return self.task.model().to(device, kind)

    @property
    def seconds(self) -> float:
        """Time since training began, without that between its runs."""
        return self._before + time.perf_counter() - self._start

    def run(self) -> Result:
        """Train to the last step, or until patience ends."""
        settings = self.settings
        parameters = sum(p.numel() for p in self.model.parameters() if p.requires_grad)
        self._listen(Started(self.step, settings.steps, parameters, self.world.size))
        batches = self.task.order(settings.batch, settings.seed).batches(self.step)
        self.model.train()
        while self.step < settings.steps and not self._impatient():
            self._advance(next(batches))
            last = self.step == settings.steps
            if last or self.step % settings.measure_every == 0:
                self._measure()
            if last or self.step % settings.save_every == 0 or self._impatient():
                self._save()
        assert self.best is not None  # the last step measures
        best = self.best
        result = Result(self.step, best["step"], best["values"], self.seconds, parameters)
        self.folder.close(result)
        return result

    def _advance(self, examples: Examples) -> None:
        """Change the weights once."""
        start, settings = time.perf_counter(), self.settings
        rate = learning_rate(self.step, settings)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        _draw(self.world.device, settings.seed, self.step, self.world.rank)
        loss, targets = self._backward(examples)
        gradient = self._clip()
        self._check(loss, gradient)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.step += 1
        seconds = time.perf_counter() - start
        self._listen(Stepped(self.step, loss, rate, gradient, targets, seconds))

    def _backward(self, examples: Examples) -> tuple[float, int]:
        """Add up the gradient of the mean loss; return that loss and the number of its targets."""
        settings, world = self.settings, self.world
        parts = [world.part(examples, i, settings.accumulate) for i in range(settings.accumulate)]
        batches = [(self.task.batch(mine).to(world.device), share) for mine, share in parts]
        targets = round(world.sum(sum(batch.targets * share for batch, share in batches)))
        losses = []
        for number, (batch, share) in enumerate(batches, start=1):
            with world.adding_up(self.wrapped, last=number == len(batches)):
                loss = self._loss(batch) * (share / max(1, targets))
                (loss * world.size).backward()  # whose gradients are then averaged over processes
                losses.append(loss.detach())
        return world.sum(float(sum(losses))), targets

    def _loss(self, batch: Any) -> Tensor:
        short = self.settings.precision == "bfloat16"
        with torch.autocast(self.world.device.type, torch.bfloat16, enabled=short):
            return self.task.loss(self.wrapped, batch, self.settings.label_smoothing)

    def _clip(self) -> float:
        """g · min(1, c / |g|), and return |g|        Pascanu et al. 2013, algorithm 1"""
        trained = [p for p in self.model.parameters() if p.grad is not None]
        norm = get_total_norm([p.grad for p in trained if p.grad is not None])
        length, clip = float(gathered(norm)), self.settings.clip
        if clip is not None and length > clip:
            clip_grads_with_norm_(trained, clip, norm)
        return length

    def _check(self, loss: float, gradient: float) -> None:
        """Stop before a number that is none gets into the weights."""
        if math.isfinite(loss) and math.isfinite(gradient):
            return
        what = f"loss is {loss}" if not math.isfinite(loss) else f"gradient's length is {gradient}"
        self.world.by_first(lambda: self._stop(what))

    def _stop(self, what: str) -> None:
        settings = self.settings
        raise TrainingError(
            f"step {self.step + 1}: the {what}; training stops here, and "
            f"{self.folder.last_good()}. To go on leads here again: begin in a new folder with a "
            f"smaller learning_rate (it was {settings.learning_rate:g}), a longer warmup "
            f"({settings.warmup}) or a smaller clip ({settings.clip})"
        )

    @torch.no_grad()
    def _measure(self) -> None:
        """Try the model on held-out data, and keep it where nothing before was better."""
        self.model.eval()
        model = self._plain()
        values, samples = self.world.by_first(lambda: self._tried(model))
        better = self.best is None or self._better(values, self.best["values"])
        if better:
            self.best, self.waited = {"step": self.step, "values": values}, 0
            self.folder.keep(self.task, model)
        else:
            self.waited += 1
        self.model.train()
        self._listen(Measured(self.step, values, samples, better))

    def _plain(self) -> nn.Module | None:
        """Return the model, whole, in evaluation mode; one that is sharded, to the first process.

        Others get None.
        """
        if not self.shard:
            return self.model
        state = self.world.gather(state_of(self.model))
        if not self.world.first:
            return None
        model = self._new("cpu").eval()
        World().scatter(state, state_of(model))
        return model

    def _tried(self, model: nn.Module | None) -> tuple[dict[str, float], tuple[str, ...]]:
        assert model is not None  # the first process has it
        values = {name: float(value) for name, value in self.task.measure(model).items()}
        return values, tuple(self.task.samples(model))

    def _better(self, values: Mapping[str, float], before: Mapping[str, float]) -> bool:
        now, best = values[self.task.judged_by], before[self.task.judged_by]
        if math.isnan(best) or math.isnan(now):
            return not math.isnan(now)
        return now > best if self.task.higher_is_better else now < best

    def _impatient(self) -> bool:
        return self.settings.patience is not None and self.waited >= self.settings.patience

    def _save(self) -> None:
        numbers = dict(zip(REMEMBERED, (self.best, self.waited, self.seconds), strict=True))
        state = Checkpoint.of(self.step, self.model, self.optimizer, numbers, self.world)
        self._listen(Saved(self.step, self.folder.save(state)))


def optimizer_of(model: nn.Module, settings: Settings) -> AdamW:
    """Return AdamW (Loshchilov and Hutter 2019) over a model: what has one axis does not decay."""
    trained = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in trained if p.ndim > 1], "weight_decay": settings.weight_decay},
        {"params": [p for p in trained if p.ndim <= 1], "weight_decay": 0.0},
    ]
    used = [group for group in groups if group["params"]]
    return AdamW(used, lr=settings.learning_rate, betas=settings.betas, fused=True)


def _numbers(values: Mapping[str, Any]) -> dict[str, float]:
    """Return measures as they were before JSON made texts of those that are no number."""
    return {name: float(value) for name, value in values.items()}


def _draw(device: torch.device, *numbers: int) -> None:
    """Let all that is random on the CPU and on a device follow from some numbers.

    `torch.manual_seed` does this too, and writes down where it was called, for devices that are
    not there; in every step that costs more than a small layer.
    """
    told = repr(numbers).encode()
    seed = int.from_bytes(hashlib.blake2b(told, digest_size=8).digest(), "big") >> 1
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.manual_seed(seed)
