"""What a recording answers, and what it says when it cannot."""

import copy
import pickle
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from qkv.errors import ArgumentError, NameNotFoundError, RecordingError
from qkv.recording.recording import Recording
from qkv.recording.watching import watch
from tests.recording import small
from tests.recording.small import Shared, TwoLayers


@pytest.fixture
def x() -> torch.Tensor:
    return torch.randn(3, 5, 8)


@pytest.fixture
def seen(x: torch.Tensor) -> Recording:
    model = small.peaked(TwoLayers())
    with torch.no_grad(), watch(model) as seen:
        model(x)
    return seen


@pytest.fixture
def shared(x: torch.Tensor) -> Recording:
    model = small.peaked(Shared())
    with torch.no_grad(), watch(model) as seen:
        model(x)
    return seen


@pytest.fixture
def empty() -> Recording:
    model = torch.nn.Linear(3, 4)
    with watch(model) as seen:
        model(torch.randn(2, 3))
    return seen


def test_calls_come_in_the_order_in_which_they_ran(seen: Recording) -> None:
    assert [call.path for call in seen] == ["layer.0", "layer.1"]
    assert len(seen) == 2
    assert seen.paths == ("layer.0", "layer.1")


def test_a_path_gives_its_call(seen: Recording) -> None:
    assert seen["layer.1"] is list(seen)[1]
    assert seen["layer.1"].error_eps < 16


def test_a_path_that_is_none_lists_the_nearest(seen: Recording) -> None:
    with pytest.raises(NameNotFoundError, match=r"'layers.1'; nearest: layer.1, layer.0"):
        seen["layers.1"]
    with pytest.raises(KeyError):
        seen["layers.1"]


def test_a_path_far_from_all_lists_what_there_is(seen: Recording) -> None:
    with pytest.raises(NameNotFoundError, match=r"'zzz'; there are: layer.0, layer.1"):
        seen["zzz"]


def test_a_module_called_several_times_asks_which_one(shared: Recording) -> None:
    calls = list(shared)
    assert [call.index for call in calls] == [0, 1, 2]
    with pytest.raises(NameNotFoundError, match=r"called 3 times in a run.*attention\[2\]"):
        shared["attention"]
    assert shared["attention[1]"] is calls[1]
    with pytest.raises(NameNotFoundError, match=r"no call 3 within a run.*from 0 to 2"):
        shared["attention[3]"]


def test_two_inputs_are_two_runs_to_choose_from(x: torch.Tensor) -> None:
    model = small.peaked(TwoLayers())
    with torch.no_grad(), watch(model) as seen:
        model(x)
        model(x)  # the same again is no continuation
        model(x[:1])
    assert [len(run) for run in seen.runs] == [2, 2, 2]
    with pytest.raises(NameNotFoundError, match=r"3 matrices and not one: its calls do not conti"):
        seen["layer.0"]
    assert seen.runs[2]["layer.0"].shape == (1, 2, 5, 5)
    assert [call.run for call in seen.runs[1]] == [1, 1]


def test_select_keeps_the_modules_that_match(seen: Recording) -> None:
    assert seen.select("*.1").paths == ("layer.1",)
    assert len(seen.select("layer.*")) == 2
    with pytest.raises(NameNotFoundError, match=r"no module matches '\*.7'; there are: layer.0"):
        seen.select("*.7")


def test_whatever_is_asked_of_an_empty_recording_says_why(empty: Recording) -> None:
    assert len(empty) == 0
    questions = [
        lambda: list(empty),
        lambda: empty["x"],
        lambda: empty.paths,
        lambda: empty.runs,
        lambda: empty.select("*"),
        empty.table,
        lambda: empty.find("broad"),
        lambda: empty.compare(empty),
        lambda: empty.save("nowhere"),
    ]
    for question in questions:
        with pytest.raises(RecordingError, match="no attention of Linear was recorded"):
            question()
    assert repr(empty).startswith("Recording of Linear, empty: no attention of Linear was")


def test_it_prints_a_line_a_module(seen: Recording) -> None:
    lines = repr(seen).split("\n")
    assert lines[0] == "Recording of TwoLayers: 2 calls of 2 modules in 1 run"
    assert lines[1].split() == [
        *("path", "calls", "kind", "heads", "queries", "×", "keys", "mask", "computed", "by")
    ]
    cells = lines[2].split()
    assert cells[:2] + cells[3:8] == ["layer.0", "1", "2", "5", "×", "5,", "batch"]
    assert len(lines) == 4


def test_a_long_model_is_cut(x: torch.Tensor) -> None:
    model = small.peaked(TwoLayers())
    model.layer.extend(torch.nn.MultiheadAttention(8, 2, batch_first=True) for _ in range(48))
    with torch.no_grad(), watch(model) as seen:
        model(x)
    assert repr(seen).split("\n")[-1] == "  … and 10 more"


def test_tokens_can_be_given_afterwards(seen: Recording) -> None:
    assert seen.table().heads[0].separators is None
    named = seen.with_tokens(["a", "b", ",", "a", "b"])
    assert named.table().heads[0].separators is not None
    assert named.select("*.1").table().heads[0].separators is not None
    assert seen.tokens is None


def test_it_says_which_modules_it_has(seen: Recording, empty: Recording) -> None:
    assert "layer.1" in seen
    assert "layer.1[0]" in seen
    assert "layer.9" not in seen
    assert next(iter(seen)) in seen
    assert "layer.1" not in empty


@pytest.mark.usefixtures("as_shipped")
@pytest.mark.parametrize(
    ("ask", "says"),
    [
        (lambda seen: seen[0], r"\[0\]; wanted the path of a module, seen\['layer.0'\], or a call"),
        (lambda seen: seen.select(3), "glob is 3; wanted a pattern"),
        (lambda seen: seen.with_tokens(3), "tokens is 3; wanted a list of texts"),
        (lambda seen: seen.compare("x"), "other is a str; wanted a Recording"),
        (lambda seen: seen.compare(seen, tolerance=-1), "tolerance is -1; wanted a number from 0"),
        (lambda seen: seen.compare(seen, tolerance="1"), "tolerance is '1'; wanted a number"),
        (lambda seen: seen.compare(seen, tolerance=float("nan")), "tolerance is nan; wanted"),
        (lambda seen: seen["layer.0"].explain("a"), "head is 'a'; wanted a whole number"),
        (lambda seen: seen["layer.0"].contributions(1.0), "head is 1.0; wanted a whole number"),
        (lambda seen: seen["layer.0"].contributions(1, "a"), "batch is 'a'; wanted a whole"),
    ],
)
def test_what_cannot_be_meant_is_refused(
    ask: Callable[[Recording], object], says: str, seen: Recording
) -> None:
    with pytest.raises(ArgumentError, match=says):
        ask(seen)


@pytest.mark.parametrize("copied", [pickle.dumps, copy.deepcopy])
def test_a_copy_is_a_file(copied: Callable[[object], object], seen: Recording) -> None:
    with pytest.raises(RecordingError, match=r"wanted seen.save\(file\)"):
        copied(seen)


def test_a_path_of_its_own_comes_before_a_pattern(x: torch.Tensor) -> None:
    model = torch.nn.ModuleDict({"[red]": TwoLayers().layer[0], "r": TwoLayers().layer[0]})
    with torch.no_grad(), watch(model) as seen:
        for layer in model.values():
            layer(x, x, x, need_weights=False)
    assert seen.select("[red]").paths == ("[red]",)
    assert seen.select("[rd]").paths == ("r",)


def test_a_module_of_two_names_is_found_by_both(x: torch.Tensor) -> None:
    model = TwoLayers()
    model.layer[1] = model.layer[0]
    with torch.no_grad(), watch(model, only="layer.1") as seen:
        model(x)
    assert seen.paths == ("layer.0",)
    assert seen["layer.1[1]"] is seen["layer.0[1]"]
    assert "layer.1" in seen


def test_a_call_that_is_not_what_ran_is_named_once_that_is_known(seen: Recording) -> None:
    call = seen["layer.1"]
    call.revise(lambda one: replace(one, output=one.output + 1))
    assert "NOT what ran" not in repr(seen)
    assert call.error > 0.01
    assert "note: layer.1 is NOT what ran: recomputed, its output is " in repr(seen)
    assert len(seen.notes) == 1


def test_tensors_without_numbers_are_printed_all_the_same() -> None:
    q, k, v = (torch.randn(2, 2, 5, 4, device="meta") for _ in range(3))
    with torch.no_grad(), watch() as seen:
        for _ in range(2):
            torch.softmax(q @ k.mT / 2, -1) @ v
    assert "unknown: no numbers" in repr(seen)
