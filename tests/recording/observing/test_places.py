"""Where an attention ran is read off the frames."""

import inspect

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.recording.recomputed import observe


class Attends(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(x, x, x)


LINE = inspect.getsourcelines(Attends.forward)[1] + 1


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Sequential(Attends()), nn.Sequential(Attends())])

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


X = torch.zeros(1, 2, 3, 4)


def test_a_path_is_the_name_of_the_innermost_module() -> None:
    model = Model()
    calls = observe(lambda: model(X), model).calls
    assert [call.path for call in calls] == ["layers.0.0", "layers.1.0"]
    assert {(call.file, call.line) for call in calls} == {(__file__, LINE)}


def test_without_a_model_paths_begin_with_the_outermost_modules_class() -> None:
    model = Model()
    assert [call.path for call in observe(lambda: model(X)).calls] == [
        "Model.layers.0.0", "Model.layers.1.0",
    ]  # fmt: skip
    assert [call.path for call in observe(lambda: Attends()(X)).calls] == ["Attends"]


def test_the_model_itself_has_the_empty_path_and_a_function_has_none() -> None:
    model = Attends()
    assert [call.path for call in observe(lambda: model(X), model).calls] == [""]
    assert [c.path for c in observe(lambda: F.scaled_dot_product_attention(X, X, X)).calls] == [
        None
    ]


def test_modules_that_are_not_the_models_are_in_no_path() -> None:
    model, other = Model(), Attends()
    assert [call.path for call in observe(lambda: other(X), model).calls] == [None]
    wrapped = nn.Sequential(nn.Sequential(model))
    paths = [call.path for call in observe(lambda: wrapped(X), model).calls]
    assert paths == ["layers.0.0", "layers.1.0"]


def test_the_line_of_pytorchs_own_modules_is_where_they_are_called() -> None:
    attention = nn.MultiheadAttention(4, 2, batch_first=True).eval()
    x = torch.zeros(1, 3, 4)

    def run() -> Tensor:
        return attention(x, x, x)[0]

    (call,) = observe(run, attention).calls
    assert call.file == __file__
    assert call.line == inspect.getsourcelines(run)[1] + 1


def test_each_outermost_forward_is_a_run() -> None:
    model = Model()
    calls = observe(lambda: [model(X) for _ in range(3)], model).calls
    assert [call.run for call in calls] == [0, 0, 1, 1, 2, 2]
    parts = observe(lambda: [layer(X) for layer in model.layers], model).calls
    assert [call.run for call in parts] == [0, 1], "submodules that are called alone"


def test_a_module_called_twice_in_a_run_is_in_one_run() -> None:
    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attends = Attends()

        def forward(self, x: Tensor) -> Tensor:
            return self.attends(self.attends(x))

    model = Shared()
    calls = observe(lambda: model(X), model).calls
    assert [(call.path, call.run) for call in calls] == [("attends", 0), ("attends", 0)]
