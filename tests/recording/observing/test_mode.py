"""Looking changes nothing, and everything is as before afterwards."""

import copy
import gc
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from qkv.core.mask import Mask
from qkv.recording.calls.call import Call
from qkv.recording.observing.mode import Observer
from qkv.weights.matrix import Weights
from tests.recording.recomputed import (
    assert_explains_its_output,
    assert_nothing_changed,
    observe,
    weights,
)

CONTEXTS = [torch.enable_grad, torch.no_grad, torch.inference_mode]


class Block(nn.Module):
    """Attention as a model writes it, fused or not."""

    def __init__(self, fused: bool, dropout: float = 0.0, width: int = 24, heads: int = 3) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.norm, self.fused, self.dropout, self.heads = nn.LayerNorm(width), fused, dropout, heads

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in self.qkv(self.norm(x)).chunk(3, -1)
        )
        p = self.dropout if self.training else 0.0
        if self.fused:
            y = F.scaled_dot_product_attention(q, k, v, dropout_p=p, is_causal=True)
        else:
            scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
            scores.masked_fill_(torch.ones(scores.shape[-2:]).triu(1).bool(), -torch.inf)
            y = F.dropout(scores.softmax(-1), p) @ v
        return x + self.out(y.transpose(1, 2).flatten(2))


@pytest.fixture(params=[True, False], ids=["fused", "written out"])
def model(request: pytest.FixtureRequest) -> nn.Module:
    return nn.Sequential(Block(request.param, 0.2), Block(request.param, 0.2))


@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize("shape", [(2, 7, 24), (1, 7, 24), (3, 1, 24)])
def test_outputs_are_the_same_bit_for_bit(
    model: nn.Module, context: Callable, shape: tuple[int, ...]
) -> None:
    model.eval()
    x = torch.randn(shape).transpose(0, 1).contiguous().transpose(0, 1)  # strides of its own
    observed = observe(lambda: model(x), model, context)
    assert_nothing_changed(observed)
    assert [call.path for call in observed.calls] == ["0", "1"]
    for call in observed.calls:
        assert_explains_its_output(call.operands)
        assert call.operands.same_source is True


@pytest.mark.parametrize("context", CONTEXTS)
def test_a_projection_of_a_view_is_the_same_bit_for_bit(context: Callable) -> None:
    layer = nn.Linear(256, 512)  # folds a view in one way or another, as PyTorch's dispatch is set
    x = torch.randn(64, 8, 256).transpose(0, 1)
    assert_nothing_changed(observe(lambda: layer(x), layer, context))
    assert_nothing_changed(observe(lambda: x[..., ::2] @ layer.weight.T[::2], layer, context))
    without = nn.Linear(256, 512, bias=False)  # here only the thread's dispatch state decides
    x = torch.randn(2, 3, 8, 256).transpose(1, 2)
    assert_nothing_changed(observe(lambda: without(x), without, context))


def test_training_is_the_same_bit_for_bit_gradients_included(model: nn.Module) -> None:
    x = torch.randn(2, 7, 24)

    def step() -> list[Tensor]:
        mine = copy.deepcopy(model)
        loss = mine(x).square().mean()
        loss.backward()
        return [loss, *(p.grad for p in mine.parameters())]

    observed = observe(step)
    assert_nothing_changed(observed)
    assert len(observed.calls) == 2, "once each: the backward pass is no attention"
    for call in observed.calls:
        assert_explains_its_output(call.operands)


def test_recomputation_under_checkpointing_is_not_a_second_call(model: nn.Module) -> None:
    x = torch.randn(2, 7, 24, requires_grad=True)

    def step() -> list[Tensor]:
        x.grad = None
        y = checkpoint(model, x, use_reentrant=False)
        y.sum().backward()
        return [y, x.grad]

    observed = observe(step, model)
    assert_nothing_changed(observed)
    assert len(observed.calls) == 2


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_is_the_same_bit_for_bit(model: nn.Module, dtype: torch.dtype) -> None:
    model.eval()
    x = torch.randn(2, 7, 24)

    def run() -> Tensor:
        with torch.autocast("cpu", dtype):
            return model(x)

    observed = observe(run, model, torch.no_grad)
    assert_nothing_changed(observed)
    assert len(observed.calls) == 2
    for call in observed.calls:
        assert call.operands.same_source is True
        assert_explains_its_output(call.operands)


MHA: dict[str, dict[str, Any]] = {
    "plain": {},
    "no bias": {"bias": False},
    "bias of keys and values": {"add_bias_kv": True},
    "zero attention": {"add_zero_attn": True},
    "sequence first": {"batch_first": False},
    "other widths": {"kdim": 10, "vdim": 11},
}


@pytest.mark.parametrize("options", MHA)
@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize("need_weights", [True, False])
def test_every_option_of_multi_head_attention_is_recorded(
    options: str, context: Callable, need_weights: bool
) -> None:
    given = {"batch_first": True, **MHA[options]}
    module = nn.MultiheadAttention(24, 3, **given).eval()
    q = torch.randn(2, 5, 24)
    k, v = (torch.randn(2, 7, 10), torch.randn(2, 7, 11)) if "kdim" in given else (q, q)
    hidden = torch.rand(5, k.shape[1]) > 0.8
    padding = torch.zeros(2, k.shape[1]).bool()
    padding[1, -2:] = True
    if not given["batch_first"]:
        q, k, v = (x.transpose(0, 1) for x in (q, k, v))

    def run() -> Any:
        return module(
            q, k, v, key_padding_mask=padding, attn_mask=hidden,
            need_weights=need_weights, average_attn_weights=False,
        )  # fmt: skip

    observed = observe(run, module, context)
    assert_nothing_changed(observed)
    assert_explains_its_output(observed.only)
    if need_weights:
        theirs = observed.plain[1].double().nan_to_num(0)
        torch.testing.assert_close(weights(observed.only).nan_to_num(0), theirs, atol=1e-6, rtol=0)


def test_after_an_exception_all_is_as_before(model: nn.Module) -> None:
    calls: list[Call] = []

    class Stops(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise RuntimeError("stop")

    stops = nn.Sequential(model[0], Stops())
    observer = Observer(stops, calls.append)
    with pytest.raises(RuntimeError, match="stop"), observer:
        stops(torch.randn(2, 7, 24))
    assert len(calls) == 1
    model(torch.randn(2, 7, 24))
    assert len(calls) == 1, "nothing is seen outside"
    assert torch.utils._python_dispatch._get_current_dispatch_mode() is None


def test_an_error_in_what_is_told_never_reaches_the_model(model: nn.Module) -> None:
    def on_call(call: Call) -> None:
        raise ValueError("the user's mistake")

    model.eval()
    x = torch.randn(2, 7, 24)
    with Observer(model, on_call) as observer:
        watched = model(x)
    torch.testing.assert_close(watched, model(x), atol=0, rtol=0)
    assert "ValueError: the user's mistake" in observer.misses.text()


@pytest.mark.parametrize("context", CONTEXTS)
def test_observers_can_be_nested(model: nn.Module, context: Callable) -> None:
    model.eval()
    x = torch.randn(2, 7, 24)
    inner, outer = list[Call](), list[Call]()
    with context():
        plain = model(x)
        with Observer(model, outer.append), Observer(model[1], inner.append):
            watched = model(x)
    torch.testing.assert_close(watched, plain, atol=0, rtol=0)
    assert [call.path for call in outer] == ["0", "1"]
    assert [call.path for call in inner] == [None, ""]


def test_other_threads_are_not_seen_and_threads_have_observers_of_their_own() -> None:
    calls: dict[int, list[Call]] = {0: [], 1: []}
    models = [nn.Sequential(Block(True)).eval() for _ in calls]
    x = torch.randn(2, 7, 24)

    def run(number: int) -> None:
        with Observer(models[number], calls[number].append):
            for _ in range(20):
                models[number](x)

    threads = [threading.Thread(target=run, args=(number,)) for number in calls]
    outside: list[Call] = []
    with Observer(None, outside.append):
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not outside
    for own in calls.values():
        assert [call.run for call in own] == list(range(20))


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_what_a_cache_overwrites_is_copied_first(context: Callable) -> None:
    q, v = torch.randn(2, 3, 1, 8), torch.randn(2, 3, 6, 8)
    keys = torch.randn(2, 3, 4, 8)

    def run() -> list[Tensor]:
        cache = torch.zeros(2, 3, 6, 8)
        out = []
        for step in range(4):
            cache.index_copy_(2, torch.tensor([step]), keys[:, :, step : step + 1])
            out.append(F.scaled_dot_product_attention(q, cache, v))
        return out

    observed = observe(run, context=context)
    assert_nothing_changed(observed)
    for step, call in enumerate(observed.calls):
        assert not call.operands.k[:, :, step + 1 :].any()
        torch.testing.assert_close(call.operands.k[:, :, : step + 1], keys[:, :, : step + 1])
        assert_explains_its_output(call.operands)


def test_what_was_laid_out_is_laid_out_again_when_its_tensors_move() -> None:
    q, k, v = (torch.randn(2, 3, 5, 8) for _ in range(3))
    before = q.clone()
    seen: list[Tensor] = []
    calls: list[Call] = []

    def on_call(call: Call) -> None:
        seen.append(call.operands.q)
        calls.append(call)

    with Observer(None, on_call):
        F.scaled_dot_product_attention(q, k, v)
        q.zero_()
    assert seen[0].data_ptr() == q.data_ptr(), "by reference, until then"
    torch.testing.assert_close(calls[0].operands.q, before, atol=0, rtol=0)


def test_an_output_that_is_changed_in_place_is_kept_as_it_was() -> None:
    q, k, v = (torch.randn(2, 3, 5, 8) for _ in range(3))

    def run() -> Tensor:
        return F.scaled_dot_product_attention(q, k, v).mul_(2).add_(1)

    observed = observe(run)
    assert_nothing_changed(observed)
    assert_explains_its_output(observed.only)


def test_what_is_recorded_has_no_gradients(model: nn.Module) -> None:
    x = torch.randn(2, 7, 24)
    observed = observe(lambda: model(x), model)
    for call in observed.calls:
        o = call.operands
        assert not any(t.requires_grad for t in (o.q, o.k, o.v, o.output))


def test_many_forwards_leave_nothing_behind(model: nn.Module) -> None:
    model.eval()
    x = torch.randn(1, 3, 24)
    alive: list[int] = []

    def on_call(call: Call) -> None:
        assert call.operands.q.shape == (1, 3, 3, 8)
        call.release(lambda: None)  # as a recording does that keeps summaries only

    gc.collect()
    gc.disable()  # nothing may wait for the collector
    try:
        with torch.no_grad(), Observer(model, on_call) as observer:
            for step in range(60):
                model(x)
                if step % 15 == 14:
                    alive.append(sum(type(o) is Tensor for o in gc.get_objects()))
            known = len(observer._provenance)
    finally:
        gc.enable()
    assert max(alive) - min(alive) <= 2
    assert known < 40


def test_what_is_known_and_held_does_not_grow(model: nn.Module) -> None:
    model.eval()
    x = torch.randn(1, 3, 24)

    def alive() -> Counter[str]:
        gc.collect()
        return Counter(type(o).__name__ for o in gc.get_objects())

    with torch.no_grad(), Observer(model, lambda call: None) as observer:
        for _ in range(20):
            model(x)
        before = alive()
        for _ in range(240):
            model(x)
        grown = alive() - before
        assert len(observer._provenance._held) < 40
    assert max(grown.values(), default=0) < 120, grown  # what is swept now and then: under 100


@pytest.mark.filterwarnings("ignore:`torch.nn.DataParallel`")
def test_data_parallel_on_the_cpu_is_its_module(model: nn.Module) -> None:
    parallel, x = nn.DataParallel(model).eval(), torch.randn(2, 7, 24)
    run = observe(lambda: parallel(x), parallel)
    assert [call.path for call in run.calls] == ["module.0", "module.1"]
    assert_nothing_changed(run)


def test_where_other_threads_ran_an_empty_recording_says_so(model: nn.Module) -> None:
    x = torch.randn(2, 7, 24)
    with Observer(model, lambda call: None) as observer:
        thread = threading.Thread(target=model, args=(x,))
        thread.start()
        thread.join()
    assert "other threads ran: what they compute is not seen" in observer.misses.text()


@pytest.mark.parametrize("context", CONTEXTS)
def test_questions_asked_while_a_model_runs_are_not_recorded(
    model: nn.Module, context: Callable
) -> None:
    x = torch.randn(2, 7, 24)
    q, k, v = (torch.randn(2, 3, 5, 8) for _ in range(3))
    calls: list[Call] = []
    with context(), Observer(None, calls.append) as observer:
        for weights in (Weights(q, k), Weights(q, k, mask=Mask.causal(), softcap=3.0)):
            weights @ v, weights.mT @ q, weights.dense()
            weights.entropy(), weights.received(), weights.top(2), weights.map(2, 2)
            weights.summary(), weights.rows(1), weights.diagonal()
        assert not calls
        assert observer.misses.text().startswith("no softmax fed a product")
        assert not observer.misses.near
        assert not observer.misses.apart
        model(x)
        assert len(calls) == 2
        calls[0].weights.entropy(), calls[1].weights @ calls[1].v
    assert len(calls) == 2
