"""The block in which a model is watched."""

import contextlib
import gc
import weakref

import pytest
import torch
from torch import nn

from qkv import MultiHeadAttention
from qkv.core import blocks, short
from qkv.errors import ArgumentError, RecordingError
from qkv.nn.cache import KeyValueCache
from qkv.nn.transformer import Decoder
from qkv.recording.calls.call import Call
from qkv.recording.watching import watch
from tests.recording import small
from tests.recording.small import TwoLayers


@pytest.fixture
def model() -> TwoLayers:
    return small.peaked(TwoLayers())


X = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(0))


@pytest.mark.usefixtures("as_shipped")
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"model": "bert"}, "model is a str; wanted a torch.nn.Module"),
        ({"only": 3}, "only is a int; wanted a pattern"),
        ({"keep": "all"}, "keep is 'all'; wanted 'inputs' or 'summary'"),
        ({"on_call": 3}, "on_call is a int; wanted a function"),
        ({"tokens": []}, "tokens is"),
        ({"tokenizer": object()}, "tokenizer= was given without tokens=; wanted also what"),
    ],
)
def test_arguments_that_cannot_be_meant_are_refused(
    arguments: dict[str, object], says: str
) -> None:
    with pytest.raises(ArgumentError, match=says), watch(**arguments):  # type: ignore[arg-type]
        pass


def test_only_the_modules_that_match_are_recorded(model: TwoLayers) -> None:
    with torch.no_grad(), watch(model, only="*.1") as seen:
        model(X)
    assert seen.paths == ("layer.1",)


def test_a_pattern_without_a_match_lists_the_modules(model: TwoLayers) -> None:
    with torch.no_grad(), watch(model, only="*.9") as seen:
        model(X)
    with pytest.raises(RecordingError, match=r"only='\*.9' matches none.*: layer.0, layer.1"):
        list(seen)


def test_without_a_model_whatever_runs_is_recorded(model: TwoLayers) -> None:
    with torch.no_grad(), watch() as seen:
        model(X)
    assert seen.paths == ("TwoLayers.layer.0", "TwoLayers.layer.1")
    assert seen.model == "whatever ran"


def test_every_call_is_told_as_it_is_made(model: TwoLayers) -> None:
    told: list[tuple[str | None, int, torch.Tensor]] = []

    def on_call(call: Call) -> None:
        told.append((call.path, call.index, call.weights.entropy()))

    with torch.no_grad(), watch(model, on_call=on_call) as seen:
        model(X)
    assert [where[:2] for where in told] == [("layer.0", 0), ("layer.1", 0)]
    assert torch.equal(told[1][2], seen["layer.1"].weights.entropy())
    assert len(seen) == 2  # what the function computed is no attention of the model


def test_what_on_call_raises_comes_after_the_block(model: TwoLayers) -> None:
    def on_call(call: Call) -> None:
        raise ZeroDivisionError

    outputs = []
    with pytest.raises(ZeroDivisionError), torch.no_grad(), watch(model, on_call=on_call):
        outputs.append(model(X))
    with torch.no_grad():
        assert torch.equal(outputs[0], model(X))  # the model did not break


def test_an_exception_of_the_model_passes_and_leaves_what_was_seen(model: TwoLayers) -> None:
    def broken(module: nn.Module, given: object, output: object) -> None:
        raise KeyError

    hook = model.register_forward_hook(broken)
    with watch(model) as seen, torch.no_grad(), contextlib.suppress(KeyError):
        model(X)
    assert len(seen) == 2
    with pytest.raises(KeyError), watch(model) as seen:
        model(X)
    assert len(seen) == 2
    hook.remove()
    with torch.no_grad():
        model(X)
    assert len(seen) == 2  # nothing is seen after the block


def test_it_can_be_asked_while_it_grows(model: TwoLayers) -> None:
    with torch.no_grad(), watch(model) as seen:
        assert len(seen) == 0
        model(X)
        first = seen["layer.0"].weights.entropy()
        model(X[:1])
        assert len(seen) == 4
    assert torch.equal(first, seen.runs[0]["layer.0"].weights.entropy())
    assert len(seen) == 4


@pytest.mark.parametrize("inner", ["inputs", "summary"])
def test_a_watch_inside_a_watch_sees_the_same(model: TwoLayers, inner: str) -> None:
    with torch.no_grad(), watch(model) as outer, watch(model, keep=inner) as seen:
        model(X)
    assert [call.path for call in outer] == [call.path for call in seen] == ["layer.0", "layer.1"]


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode, contextlib.nullcontext])
@pytest.mark.parametrize("keep", ["inputs", "summary"])
def test_outputs_are_the_same_bit_for_bit(context: type, keep: str) -> None:
    model, ids = small.bert(), torch.randint(5, 90, (2, 7))
    mask = torch.ones_like(ids)
    mask[1, 4:] = 0
    with context():
        plain = model(ids, attention_mask=mask).last_hidden_state
        with watch(model, keep=keep):
            watched = model(ids, attention_mask=mask).last_hidden_state
    assert torch.equal(plain, watched)


def test_summaries_are_in_full_precision_inside_autocast(model: TwoLayers) -> None:
    entropies = []
    for enabled in (False, True):
        q = torch.randn(1, 2, 6, 4, generator=torch.Generator().manual_seed(1))
        with (
            torch.no_grad(),
            torch.autocast("cpu", enabled=enabled),
            watch(keep="summary") as seen,
        ):
            nn.functional.scaled_dot_product_attention(q.bfloat16(), q.bfloat16(), q.bfloat16())
        (call,) = seen
        assert call.summary is not None
        entropies.append(call.summary.entropy)
    torch.testing.assert_close(*entropies, rtol=0, atol=1e-6)


def test_nothing_of_the_block_lives_on_when_the_recording_is_gone(model: TwoLayers) -> None:
    with torch.no_grad(), watch(model) as seen:
        model(X)
    memory = seen["layer.0"].k.untyped_storage()
    gone: list[bool] = []
    weakref.finalize(memory, gone.append, True)
    del seen, memory
    gc.collect()
    assert gone == [True]


def test_without_with_it_says_how_to_use_it(model: TwoLayers) -> None:
    watched = watch(model)
    for ask in (
        lambda: watched.paths,
        lambda: watched.runs,
        lambda: watched["layer.1"],
        lambda: list(watched),
        lambda: "layer.1" in watched,
    ):
        with pytest.raises(RecordingError, match=r"with qkv.watch\(model\) as seen"):
            ask()
    assert not hasattr(watched, "no_such_thing")
    with watched:
        pass
    with pytest.raises(RecordingError, match="was used before"), watched:
        pass


@pytest.mark.parametrize("what", ["q", "v", "mask"])
@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("gradients", [True, False])
def test_what_is_written_into_after_the_block_is_refused(
    what: str, fused: bool, gradients: bool
) -> None:
    q, k, v = (torch.randn(2, 2, 5, 4, requires_grad=gradients) for _ in range(3))
    mask = torch.randn(1, 1, 5, 5)
    with watch() as seen:
        if fused:
            nn.functional.scaled_dot_product_attention(q, k, v, mask)
        else:
            torch.softmax(q @ k.mT / 2 + mask, -1) @ v
    call = next(iter(seen))
    assert call.error_eps < 16
    assert call.weights.shape == (2, 2, 5, 5)
    with torch.no_grad():
        {"q": q, "v": v, "mask": mask}[what].zero_()
    for name in ("operands", "weights", "form", "mask", "scale", "blocking", "error"):
        with pytest.raises(RecordingError, match=f"{what}.* was written into after the block"):
            getattr(call, name)  # asked for before or not
    assert "written into after the block" in repr(seen)


@pytest.mark.parametrize("asked", [True, False])
def test_a_cache_that_is_written_on_after_the_block_is_refused_in_every_step(asked: bool) -> None:
    torch.manual_seed(2)
    decoder = Decoder(1, 24, 3, cross=False, norm_first=True).eval()
    cache, x = KeyValueCache(1, most=20), torch.randn(1, 12, 24)
    with torch.no_grad(), watch(decoder) as seen:
        for step in (x[:, :8], x[:, 8:9], x[:, 9:10]):
            decoder(step, cache=cache)
    path = "layers.0.attention"
    if asked:
        assert [call.error_eps < 16 for call in (*seen, seen[path])] == [True] * 4
    with torch.no_grad():
        cache.cut(5)
        decoder(x[:, 5:9] + 1, cache=cache)
    with pytest.raises(RecordingError, match="written into after the block"):
        _ = seen[path].weights
    for call in seen:
        with pytest.raises(RecordingError, match="written into after the block"):
            _ = call.weights


def test_what_is_written_into_within_the_block_is_recorded_as_it_was() -> None:
    q, k, v = (torch.randn(2, 2, 5, 4) for _ in range(3))
    mask = torch.rand(1, 1, 5, 5) < 0.8
    with torch.no_grad(), watch() as seen:
        nn.functional.scaled_dot_product_attention(q, k, v, mask)
        q.zero_()
        mask.fill_(False)
    assert next(iter(seen)).error_eps < 16


@pytest.mark.parametrize("tokens", [20, 60, 130, 300])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("training", [False, True])
def test_our_own_attention_in_bfloat16_is_seen_whichever_way_it_takes(
    tokens: int, causal: bool, training: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel, plain products of short texts, or blocks of examples and rows: a call a block."""
    monkeypatch.setattr(short, "MUCH", 1)
    for room in (short, blocks):
        monkeypatch.setattr(room, "BFLOAT16", True)
    model = MultiHeadAttention(48, num_heads=3).bfloat16()
    x = torch.randn(5, tokens, 48).bfloat16()
    with torch.set_grad_enabled(training), watch(model) as seen:
        y = model(x, x, x, causal)
    assert y.requires_grad is training
    rows = 0
    for call in seen:
        batch, heads, queries, _ = call.weights.shape
        rows += batch * heads * queries
        assert call.error <= 0.02
    assert rows == 5 * 3 * tokens
