"""Masks that layers share are read once."""

import gc
import weakref

import pytest
import torch
from torch import Tensor

from qkv.recording.calls import terms
from qkv.recording.calls.readings import NEWEST, Readings
from qkv.recording.watching import watch
from tests.recording import small


class Counted:
    """Says how often it was asked."""

    times = 0

    def __call__(self) -> int:
        self.times += 1
        return self.times


def test_a_tensor_is_asked_once_however_it_is_reached() -> None:
    readings, read, x = Readings(), Counted(), torch.randn(4, 4)
    for again in (x, x.view(4, 4), x.detach(), x[:]):
        assert readings.once(again, "sum", read) == 1


def test_another_question_view_or_tensor_is_asked_anew() -> None:
    readings, read, x = Readings(), Counted(), torch.randn(4, 4)
    readings.once(x, "sum", read)
    for values, question in ((x, "mean"), (x[1:], "sum"), (x.mT, "sum"), (x + 1, "sum")):
        readings.once(values, question, read)
    assert read.times == 5


def test_a_copy_is_compared_and_not_read() -> None:
    readings, read, x = Readings(), Counted(), torch.randn(4, 4)
    readings.once(x, "sum", read)
    assert readings.once(x.clone(), "sum", read) == 1
    x += 1
    assert readings.once(x.clone(), "sum", read) == 2  # of what x was there is no copy


def test_what_is_written_into_a_tensor_is_read_again() -> None:
    readings, x = Readings(), torch.zeros(3)
    assert readings.once(x, "sum", lambda: float(x.sum())) == 0
    x[1] = 2
    assert readings.once(x, "sum", lambda: float(x.sum())) == 2


def test_what_is_written_in_inference_mode_is_read_again() -> None:
    readings = Readings()
    with torch.inference_mode():
        x = torch.zeros(3)
        assert readings.once(x, "sum", lambda: float(x.sum())) == 0
        x[1] = 2
        assert readings.once(x, "sum", lambda: float(x.sum())) == 2


def test_only_the_newest_are_kept() -> None:
    readings = Readings()
    gone = []
    for number in range(5):
        x = torch.full((5,), float(number))
        readings.once(x, "sum", lambda x=x: float(x.sum()))
        gone.append(weakref.ref(x.untyped_storage()))
    del x
    gc.collect()
    assert [reference() is None for reference in gone] == [True] * 3 + [False] * NEWEST


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("keep", ["inputs", "summary"])
def test_layers_of_a_model_share_what_was_read(
    implementation: str, keep: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[torch.Size] = []
    recognised = terms.recognised

    def counted(values: Tensor, *others: object) -> object:
        asked.append(values.shape)
        return recognised(values, *others)  # type: ignore[arg-type]

    monkeypatch.setattr(terms, "recognised", counted)
    model, ids, mask = small.llama(implementation), torch.randint(5, 90, (2, 6)), torch.ones(2, 6)
    mask[1, :2] = 0
    with torch.no_grad(), watch(model, keep=keep) as seen:  # type: ignore[arg-type]
        model(ids, attention_mask=mask)
    assert [str(call.blocking) for call in seen] if keep == "inputs" else len(seen) == 2
    assert len(asked) == 1
