"""Whatever else changes how operations run: exporters, compilers, autocast, tasks, threads."""

import asyncio
import threading
from collections.abc import Callable, Generator

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode

from qkv.recording.calls.call import Call
from qkv.recording.observing.mode import Observer
from tests.recording.observing.test_mode import CONTEXTS, Block
from tests.recording.recomputed import assert_explains_its_output, observe


@pytest.fixture(params=[True, False], ids=["fused", "written out"])
def model(request: pytest.FixtureRequest) -> nn.Module:
    return nn.Sequential(Block(request.param, 0.2), Block(request.param, 0.2))


@pytest.mark.slow
def test_compiled_and_scripted_modules_are_noted() -> None:
    class Scripted(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return (x @ x.mT).softmax(-1) @ x

    with pytest.warns(DeprecationWarning, match="torch.jit"):
        scripted = torch.jit.script(Scripted())
    observed = observe(lambda: scripted(torch.randn(2, 5, 4)), nn.Sequential(scripted))
    assert_explains_its_output(observed.only)
    assert any("script" in note for note in observed.misses.notes)
    compiled = nn.Sequential(torch.compile(nn.Linear(3, 3), backend="eager"))
    assert any("compiled" in note for note in observe(lambda: 0, compiled).misses.notes)


def test_a_model_that_is_exported_is_exported_as_without(model: nn.Module) -> None:
    model.eval()
    x = torch.randn(2, 7, 24)
    with Observer(model, lambda call: None) as observer:
        exported = torch.export.export(model, (x,))
    torch.testing.assert_close(exported.module()(x), model(x), atol=0, rtol=0)
    assert any("a model was exported" in note for note in observer.misses.notes)


def test_symbols_instead_of_numbers_run_untouched(model: nn.Module) -> None:
    with FakeTensorMode(), Observer(None, lambda call: None) as observer:
        y = nn.Sequential(Block(True), Block(False))(torch.randn(2, 7, 24))
    assert y.shape == (2, 7, 24)
    assert not observer.misses.near
    assert any("a model was exported" in note for note in observer.misses.notes)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_model_can_be_traced_and_what_was_traced_can_be_run() -> None:
    class Sized(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            n, d = x.shape[-2:]  # numbers that traced code holds as tensors
            return (x @ x.mT / (d / 3) ** 0.5).softmax(-1).view(-1, n, n) @ x

    x, calls = torch.randn(2, 5, 12), list[Call]()
    with Observer(None, lambda call: None):
        traced = torch.jit.trace(Sized(), (x,))
    with Observer(None, calls.append):
        watched = traced(x)
    torch.testing.assert_close(watched, Sized()(x), atol=0, rtol=0)
    assert len(calls) == 1


def test_observers_may_end_in_any_order(model: nn.Module) -> None:
    x = torch.randn(2, 7, 24)
    calls: tuple[list[Call], list[Call]] = ([], [])

    def watching(number: int) -> Generator[Observer]:
        with Observer(model, calls[number].append) as observer:
            yield observer

    first, second = watching(0), watching(1)
    next(first), next(second)
    model(x)
    first.close()
    model(x)
    second.close()
    model(x)
    assert [len(own) for own in calls] == [2, 4]
    assert torch._C._len_torch_dispatch_stack() == 0


def test_tasks_that_overlap_are_noted() -> None:
    model, x, notes = nn.Sequential(Block(True)), torch.randn(2, 7, 24), list[list[str]]()

    async def task() -> None:
        with Observer(model, lambda call: None) as observer:
            model(x)
            await asyncio.sleep(0)
            model(x)
            await asyncio.sleep(0)
        notes.append(observer.misses.notes)

    async def tasks() -> None:
        await asyncio.gather(task(), task())

    asyncio.run(tasks())
    assert all("watches of one thread overlapped" in own[0] for own in notes)
    assert torch._C._len_torch_dispatch_stack() == 0


@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.parametrize("context", CONTEXTS)
def test_under_autocast_queries_and_keys_have_one_source(
    model: nn.Module, context: Callable, cached: bool
) -> None:
    x, calls = torch.randn(2, 7, 24), list[Call]()
    with context(), torch.autocast("cpu", torch.bfloat16):
        if cached:
            model(x)
        with Observer(model, calls.append):
            model(x)
    assert [call.operands.same_source for call in calls] == [True, True]


def test_a_model_that_is_made_under_the_observer_has_parameters_too() -> None:
    calls: list[Call] = []
    with Observer(None, calls.append):
        model = nn.Sequential(Block(True), Block(False))
        for parameter in model.parameters():
            parameter.data = parameter.data.clone()  # made of something that was no parameter
        model(torch.randn(2, 7, 24))
    assert [call.operands.same_source for call in calls] == [True, True]
    for call in calls:
        assert call.operands.projection is not None
        assert call.operands.projection() is not None


def test_threads_that_are_started_are_noted_where_calls_were_recorded_too() -> None:
    model, x, calls = nn.Sequential(Block(True)), torch.randn(2, 7, 24), list[Call]()
    with Observer(model, calls.append) as observer:
        thread = threading.Thread(target=model, args=(x,))
        thread.start()
        thread.join()
        model(x)
    assert len(calls) == 1
    assert any("other threads ran" in note for note in observer.misses.notes)
    assert observer.misses.text().count("other threads ran") == 1
    with Observer(model, calls.append) as observer:
        model(x)
    assert not observer.misses.notes


@pytest.mark.slow
def test_a_compiled_model_is_noted_whatever_is_watched() -> None:
    model = nn.Sequential(Block(True))
    compiled = torch.compile(model, backend="eager")
    observed = observe(lambda: compiled(torch.randn(2, 7, 24)), model)
    assert any("a compiled model ran" in note for note in observed.misses.notes)
    assert not observe(lambda: model(torch.randn(2, 7, 24)), model).misses.notes
