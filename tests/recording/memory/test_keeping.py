"""What is kept of many calls, and what is let go."""

import gc

import pytest
import torch

from qkv.errors import RecordingError
from qkv.recording.calls.call import Call
from qkv.recording.memory import keeping
from qkv.recording.memory.joining import Generation
from qkv.recording.memory.measuring import Measured
from qkv.recording.watching import watch
from qkv.weights.summary import Summary
from tests.recording import small
from tests.recording.small import TwoLayers


@pytest.fixture
def model() -> TwoLayers:
    return small.peaked(TwoLayers())


def test_a_summary_is_what_the_weights_say(model: TwoLayers) -> None:
    x = torch.randn(2, 5, 8)
    with torch.no_grad(), watch(model) as whole, watch(model, keep="summary") as brief:
        model(x)
    for call, short in zip(whole, brief, strict=True):
        assert short.summary is not None
        torch.testing.assert_close(short.summary.entropies, call.weights.entropy())
        torch.testing.assert_close(short.summary.received, call.weights.received())
        torch.testing.assert_close(short.summary.weights, call.weights.top(5).weights)
        torch.testing.assert_close(short.summary.map, call.weights.map(5, 5))
    assert brief.table().heads == whole.table().heads
    assert repr(brief) == repr(whole)


def test_what_was_let_go_says_so(model: TwoLayers) -> None:
    with torch.no_grad(), watch(model, keep="summary") as seen:
        model(torch.randn(2, 5, 8))
    for question in ("q", "weights", "error", "output"):
        with pytest.raises(
            RecordingError, match=r"of layer\.0 were let go, as keep='summary' says"
        ):
            getattr(seen["layer.0"], question)


def test_means_go_on_after_calls_were_dropped(
    model: TwoLayers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeping, "BYTES", 5 * keeping.OWN)
    inputs = [torch.randn(2, 5, 8) for _ in range(6)]
    with torch.no_grad(), watch(model, keep="summary") as brief, watch(model) as whole:
        for x in inputs:
            model(x)
    assert len(whole) == 12
    assert len(brief) < 6
    assert brief.paths == ("layer.0", "layer.1")
    for short, full in zip(brief.table(), whole.table(), strict=True):
        assert short.kind == full.kind
        assert short.entropy == pytest.approx(full.entropy)
    assert brief.select("*.1").table().heads == brief.table().heads[2:]
    last = brief.runs[-1].table().heads[0]  # of the calls that are still there
    assert last.entropy == pytest.approx(whole.runs[-1].table().heads[0].entropy)


def test_the_newest_call_of_every_module_stays(
    model: TwoLayers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeping, "BYTES", 0)
    with torch.no_grad(), watch(model, keep="summary") as seen:
        for _ in range(3):
            model(torch.randn(2, 5, 8))
    assert [(call.path, call.run) for call in seen] == [("layer.0", 2), ("layer.1", 2)]


def test_what_is_kept_is_flat_however_often_a_model_is_called(
    model: TwoLayers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeping, "BYTES", 6 * keeping.OWN)
    x, kept = torch.randn(1, 6, 8), (torch.Tensor, Call, Summary, Generation, Measured)

    def counted() -> dict[type, int]:
        gc.collect()
        types = [type(one) for one in gc.get_objects()]
        return {kind: types.count(kind) for kind in kept}

    with torch.no_grad(), watch(model, keep="summary"):
        counts = []
        for number in range(17):
            model(x)
            if number in (8, 16):
                counts.append(counted())
    assert counts[0] == counts[1]


def test_a_path_is_counted_within_each_run() -> None:
    shared = small.peaked(small.Shared())
    with torch.no_grad(), watch(shared) as seen:
        shared(torch.randn(1, 3, 8))
        shared(torch.randn(1, 3, 8))
    assert [(call.run, call.index) for call in seen] == [(r, i) for r in (0, 1) for i in range(3)]
