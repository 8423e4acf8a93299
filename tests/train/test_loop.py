"""The loop: it learns, stops, keeps the best, and goes on as if it had never stopped."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar
from weakref import ref

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_
from torch.optim import AdamW

import qkv
from qkv.errors import ArgumentError, FileError, TrainingError
from qkv.train.checkpoint import Checkpoint
from qkv.train.distributed import World
from qkv.train.events import Event, Measured, Saved
from qkv.train.folder import TrainingFolder
from qkv.train.loop import Training, train
from qkv.train.schedule import learning_rate
from tests.train.small_task import Rows, SmallTask, settings
from tests.train.told import Told, run

pytestmark = pytest.mark.usefixtures("as_shipped")  # thousands of layers run; shapes: see models


def test_it_learns_and_keeps_a_model_that_loads(tmp_path: Path) -> None:
    task = SmallTask()
    told = run(task, tmp_path, steps=30, measure_every=10)
    assert told.losses[0] == pytest.approx(math.log(13), abs=0.1)
    assert max(told.losses[-5:]) < 1.6
    measured = [event for event in told if isinstance(event, Measured)]
    assert [event.step for event in measured] == [10, 20, 30]
    best = min(measured, key=lambda event: event.values["loss"])
    with torch.no_grad():
        assert task.measure(qkv.load(tmp_path)) == best.values
    record = json.loads((tmp_path / "training.json").read_text())
    assert record["result"]["best_step"] == best.step
    assert record["result"]["values"] == best.values
    assert record["result"]["parameters"] == sum(p.numel() for p in task.model().parameters())
    assert len(measured[0].samples) == 2


def test_each_step_is_that_of_a_loop_written_out(tmp_path: Path) -> None:
    how = settings(steps=9, precision="float64", label_smoothing=0.1, clip=0.3, weight_decay=0.2)
    task, told = SmallTask(), Told()
    train(task, how, tmp_path, listen=told.append)

    torch.manual_seed(how.seed)
    model = task.model().double()
    flat = [p for p in model.parameters() if p.ndim == 1]
    rest = [p for p in model.parameters() if p.ndim > 1]
    assert flat
    assert rest
    optimizer = AdamW([{"params": rest, "weight_decay": 0.2}, {"params": flat, "weight_decay": 0}],
                      betas=(0.9, 0.98))  # fmt: skip
    for step, examples in enumerate(task.order(7, how.seed).epoch(0)):
        ids, lengths = task.ids[examples], task.lengths[examples]
        logs = model(ids[:, :-1]).log_softmax(-1)
        real = torch.arange(1, ids.shape[1]) < lengths[:, None]
        chosen = logs.gather(-1, ids[:, 1:, None]).squeeze(-1)
        losses = -(0.9 * chosen + 0.1 * logs.mean(-1))
        loss = losses[real].mean()
        optimizer.zero_grad()
        loss.backward()
        norm = clip_grad_norm_(model.parameters(), 0.3)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, how)
        optimizer.step()
        event = told.steps[step]
        assert event.loss == pytest.approx(loss.item(), rel=1e-12)
        assert event.gradient == pytest.approx(norm.item(), rel=1e-12)
        assert event.targets == int(real.sum())
        assert event.learning_rate == learning_rate(step, how)
    assert {event.gradient > 0.3 for event in told.steps} == {True}


def test_parts_of_a_batch_give_the_step_of_the_whole(tmp_path: Path) -> None:
    task = SmallTask()
    one = run(task, tmp_path / "1", steps=6, precision="float64")
    for parts in (2, 3, 9):  # 9 parts of 7 examples: two hold none
        many = run(task, tmp_path / str(parts), steps=6, precision="float64", accumulate=parts)
        assert many.losses == pytest.approx(one.losses, abs=1e-10)
        assert [e.targets for e in many.steps] == [e.targets for e in one.steps]
        assert [e.gradient for e in many.steps] == pytest.approx([e.gradient for e in one.steps])


def test_bfloat16_learns_alike_and_its_weights_stay_float32(tmp_path: Path) -> None:
    whole = run(SmallTask(), tmp_path / "whole", steps=20)
    short = run(SmallTask(), tmp_path / "short", steps=20, precision="bfloat16")
    assert short.losses != whole.losses
    assert short.losses == pytest.approx(whole.losses, rel=0.03)
    kept = Checkpoint.last(tmp_path / "short")
    assert kept is not None
    assert {tensor.dtype for tensor in kept.tensors.values()} == {torch.float32}


def test_float64_is_float64_throughout(tmp_path: Path) -> None:
    run(SmallTask(), tmp_path, steps=3, precision="float64")
    kept = Checkpoint.last(tmp_path)
    assert kept is not None
    assert kept.tensors["model.words.weight"].dtype == torch.float64
    assert kept.tensors["optimizer.words.weight.exp_avg_sq"].dtype == torch.float64


def test_only_gradients_beyond_the_length_are_cut(tmp_path: Path) -> None:
    free = run(SmallTask(), tmp_path / "free", steps=6, clip=None)
    longest = max(event.gradient for event in free.steps)
    wide = run(SmallTask(), tmp_path / "wide", steps=6, clip=longest)
    assert wide.values == free.values
    cut = run(SmallTask(), tmp_path / "cut", steps=6, clip=0.5 * longest)
    assert cut.losses[0] == free.losses[0]
    assert cut.losses != free.losses


def test_the_seed_decides_and_dropout_takes_part(tmp_path: Path) -> None:
    task = SmallTask(dropout=0.2)
    first = run(task, tmp_path / "a", steps=8)
    assert first.values == run(task, tmp_path / "b", steps=8).values
    assert first.losses != run(task, tmp_path / "c", steps=8, seed=4).losses
    assert first.losses != run(SmallTask(), tmp_path / "d", steps=8).losses


def test_the_callers_random_numbers_are_left_alone(tmp_path: Path) -> None:
    torch.manual_seed(5)
    wanted = torch.rand(3)
    torch.manual_seed(5)
    run(SmallTask(dropout=0.2), tmp_path, steps=2)
    assert torch.equal(torch.rand(3), wanted)


class Falling(SmallTask):
    """A measure that is told beforehand."""

    def __init__(self, *values: float, **options: Any) -> None:
        super().__init__(**options)
        self.values, self.seen = list(values), list[bool]()

    def measure(self, model: nn.Module) -> Mapping[str, float]:
        self.seen += [model.training, torch.is_grad_enabled()]
        return {"loss": self.values.pop(0)}

    def loss(self, model: nn.Module, batch: Rows, label_smoothing: float) -> Tensor:
        assert model.training
        return super().loss(model, batch, label_smoothing)


def test_patience_ends_training_and_the_best_is_kept(tmp_path: Path) -> None:
    task, told = Falling(2.0, 1.0, 1.5, 1.0), Told()
    how = settings(measure_every=2, save_every=100, patience=2)
    result = train(task, how, tmp_path, listen=told.append)
    assert (result.step, result.best_step, result.values) == (8, 4, {"loss": 1.0})
    assert [e.best for e in told if isinstance(e, Measured)] == [True, True, False, False]
    assert [e.step for e in told if isinstance(e, Saved)] == [8]
    assert not any(task.seen)


def test_more_is_better_where_the_task_says_so(tmp_path: Path) -> None:
    class Rising(Falling):
        higher_is_better = True

    result = train(Rising(0.2, 0.5, 0.5, 0.1), settings(), tmp_path)
    assert (result.best_step, result.values) == (12, {"loss": 0.5})


def test_a_measure_that_is_no_number_is_worse_than_any(tmp_path: Path) -> None:
    result = train(Falling(math.nan, 3.0, math.nan, 2.0), settings(), tmp_path)
    assert (result.best_step, result.values) == (24, {"loss": 2.0})


def test_measures_that_are_no_number_are_no_better_than_each_other(tmp_path: Path) -> None:
    def refuse(name: str) -> None:
        raise ValueError(f"{name} is no JSON")

    nans, how = [math.nan] * 3, settings(patience=2, measure_every=2, save_every=2)
    whole = train(Falling(*nans), how, tmp_path / "whole")
    assert (whole.step, whole.best_step) == (6, 2)

    def stop(event: Event) -> None:
        if event.step == 5:
            raise KeyboardInterrupt

    out = tmp_path / "stopped"
    with pytest.raises(KeyboardInterrupt):
        train(Falling(*nans), how, out, listen=stop)
    again = train(Falling(math.nan), how, out, resume=True)
    assert (again.step, again.best_step) == (6, 2)
    assert math.isnan(again.values["loss"])
    for path in out.rglob("*.json"):
        json.loads(path.read_text(), parse_constant=refuse)


class Broken(SmallTask):
    """The loss, or only its gradient, is no number in a certain step."""

    def __init__(self, step: int, factor: float) -> None:
        super().__init__()
        self.left, self.factor = step, factor

    def loss(self, model: nn.Module, batch: Rows, label_smoothing: float) -> Tensor:
        self.left -= 1
        loss = super().loss(model, batch, label_smoothing)
        if self.left:
            return loss
        return loss * self.factor if self.factor else loss + (loss - loss.detach()).abs().sqrt()


@pytest.mark.parametrize(
    ("factor", "said"),
    [(math.nan, "loss is nan"), (math.inf, "loss is inf"), (0.0, "gradient's length is nan")],
)
def test_a_loss_that_is_no_number_stops_before_it_spoils_the_weights(
    factor: float, said: str, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    with pytest.raises(TrainingError) as caught:
        run(Broken(15, factor), out)
    assert str(caught.value) == (
        f"step 15: the {said}; training stops here, and the checkpoint of step 12 is good. To go "
        "on leads here again: begin in a new folder with a smaller learning_rate (it was 0.01), a "
        "longer warmup (5) or a smaller clip (1.0)"
    )
    kept = Checkpoint.last(out)
    assert kept is not None
    assert kept.step == 12
    assert all(tensor.isfinite().all() for tensor in kept.tensors.values())
    told = run(SmallTask(), out, resume=True)
    assert told.losses == run(SmallTask(), tmp_path / "whole").losses[12:]


def test_a_loss_that_is_no_number_at_the_start_has_no_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match=r"step 1: .* there is no checkpoint to go on from"):
        run(Broken(1, math.nan), tmp_path)


def test_sharing_a_model_with_nobody_is_refused_and_writes_nothing(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="shard is True, but there is one process"):
        train(SmallTask(), settings(), tmp_path / "out", shard=True)
    assert not (tmp_path / "out").exists()


def test_a_model_that_cannot_be_written_stops_and_the_checkpoint_is_good(tmp_path: Path) -> None:
    class Blocked(SmallTask):
        def save(self, model: nn.Module, folder: Path) -> None:
            path = folder / "model.safetensors"
            if path.exists():
                path.unlink()
                path.mkdir()  # a folder in the way, which not even root may replace by a file
            super().save(model, folder)

    with pytest.raises(FileError) as caught:
        run(Blocked(), tmp_path)
    assert str(caught.value) == (
        f"{tmp_path}/model.safetensors cannot be written: it is a folder; wanted the name of a "
        "file; the checkpoint of step 6 is good, to go on from (--resume)"
    )
    assert not list(tmp_path.glob(".*"))
    assert Checkpoint.last_step(tmp_path) == 6


def test_nothing_of_a_step_is_kept_by_the_loop(tmp_path: Path) -> None:
    """Gradients are gone after a step, and so is what the loss was made of."""

    class Watched(SmallTask):
        losses: ClassVar[list[ref[Tensor]]] = []

        def loss(self, model: nn.Module, batch: Rows, label_smoothing: float) -> Tensor:
            assert all(loss() is None for loss in self.losses)
            assert all(p.grad is None for p in model.parameters())
            found = super().loss(model, batch, label_smoothing)
            self.losses.append(ref(found))
            return found

    folder = TrainingFolder(tmp_path, World())
    folder.open(Watched(), settings(), resume=False)
    training = Training(Watched(), settings(steps=4), folder)
    training.run()
    assert len(Watched.losses) == 4
    assert all(p.grad is None for p in training.model.parameters())


def test_a_folder_may_be_a_text(tmp_path: Path) -> None:
    told = Told()
    train(SmallTask(), settings(steps=2), str(tmp_path / "out"), listen=told.append)
    assert [event.step for event in told.steps] == [1, 2]
    qkv.load(tmp_path / "out")
