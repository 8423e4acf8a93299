"""What is done to the similarities before the softmax, and to the weights after it, is recorded."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.recording.recomputed import assert_explains_its_output, assert_nothing_changed, observe

BATCH, HEADS, QUERIES, KEYS, D_K, D_V = 2, 3, 5, 7, 4, 6
HIDDEN = torch.ones(QUERIES, KEYS, dtype=torch.bool).triu(3)
FULL = torch.ones(BATCH, HEADS, QUERIES, KEYS, dtype=torch.bool).triu(3)


def in_place(x: Tensor) -> Tensor:
    x *= 0.5
    x.masked_fill_(HIDDEN, -torch.inf)
    x += 1.0
    return x


def assigned(x: Tensor) -> Tensor:
    x[FULL] = -1e9
    return x


def per_head() -> Tensor:
    return torch.tensor([1.0, 2.0, 3.0])[:, None, None]


def seeded(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(3))


BEFORE: dict[str, tuple[Callable[[Tensor], Tensor], list[str]]] = {
    "nothing": (lambda x: x, []),
    "a scale": (lambda x: x * 0.5, ["multiply"]),
    "a divisor": (lambda x: x / 3, ["multiply"]),
    "a scale of each head": (lambda x: x * per_head(), ["multiply"]),
    "a divisor of each head": (lambda x: x / per_head(), ["multiply"]),
    "a bias": (lambda x: x + seeded(HEADS, QUERIES, KEYS), ["add"]),
    "a bias before": (lambda x: seeded(HEADS, QUERIES, KEYS) + x, ["add"]),
    "a bias taken away": (lambda x: x - seeded(KEYS), ["add"]),
    "a bias times two": (lambda x: torch.add(x, seeded(KEYS), alpha=2), ["add"]),
    "a number": (lambda x: x + 2, ["add"]),
    "a fill": (lambda x: x.masked_fill(HIDDEN, -1e4), ["fill"]),
    "a fill of one tensor": (lambda x: x.masked_fill(HIDDEN, torch.tensor(-9.0)), ["fill"]),
    "in place": (in_place, ["multiply", "fill", "add"]),
    "an assignment": (assigned, ["fill"]),
    "a choice": (lambda x: torch.where(~HIDDEN, x, torch.tensor(-1e30)), ["where"]),
    "a choice the other way": (lambda x: torch.where(HIDDEN, -torch.inf, x), ["fill"]),
    "a choice of tensors": (lambda x: torch.where(~HIDDEN, x, seeded(KEYS)), ["where"]),
    "a choice of tensors, other way": (lambda x: torch.where(HIDDEN, seeded(KEYS), x), ["where"]),
    "a soft cap": (lambda x: 3 * torch.tanh(x / 3), ["multiply", "tanh", "multiply"]),
    "a sign and limits": (lambda x: (-x).clamp(-2, 2), ["negate", "clamp"]),
    "a lower limit": (lambda x: x.clamp(min=-1), ["clamp"]),
    "an upper limit": (lambda x: x.clamp_max(1), ["clamp"]),
    "a floor": (lambda x: torch.max(x, torch.tensor(-1.0)), ["maximum"]),
    "another precision": (lambda x: x.double(), []),
    "other axes": (lambda x: x.permute(2, 0, 3, 1).contiguous().permute(1, 3, 0, 2), []),
}


def tensors() -> tuple[Tensor, Tensor, Tensor]:
    return (
        torch.randn(BATCH, HEADS, QUERIES, D_K),
        torch.randn(BATCH, HEADS, KEYS, D_K),
        torch.randn(BATCH, HEADS, KEYS, D_V),
    )


@pytest.mark.parametrize("what", BEFORE)
@pytest.mark.parametrize("context", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_what_happens_before_the_softmax_is_recorded(what: str, context: Callable) -> None:
    q, k, v = tensors()
    change, kinds = BEFORE[what]

    def run() -> Tensor:
        return change(q @ k.mT).softmax(-1).to(v.dtype) @ v

    observed = observe(run, context=context)
    assert [operation.kind for operation in observed.only.scores] == kinds
    assert_explains_its_output(observed.only)
    assert_nothing_changed(observed)


SOFTMAXES: dict[str, Callable[[Tensor], Tensor]] = {
    "softmax": lambda x: x.softmax(-1),
    "exp of what is shifted": lambda x: _exp(x - x.amax(-1, keepdim=True)),
    "exp of what is shifted by max": lambda x: _exp(x - x.max(-1, keepdim=True).values),
    "exp of log softmax": lambda x: F.log_softmax(x, -1).exp(),
    "exp of what logsumexp is taken from": lambda x: (
        x - torch.logsumexp(x, -1, keepdim=True)
    ).exp(),
}


def _exp(x: Tensor) -> Tensor:
    e = torch.exp(x)
    e /= e.sum(-1)[..., None]
    return e


@pytest.mark.parametrize("how", SOFTMAXES)
def test_a_softmax_is_known_however_it_is_written(how: str) -> None:
    q, k, v = tensors()
    observed = observe(lambda: SOFTMAXES[how](q @ k.mT / 2) @ v)
    assert_explains_its_output(observed.only)
    assert_nothing_changed(observed)


FAULTY: dict[str, Callable[[Tensor], Tensor]] = {
    "the maximum of another row": lambda x: (x - x.max(-1).values).softmax(-1),
    "the maximum of a column": lambda x: (x - x.amax(-2, keepdim=True)).softmax(-1),
    "the logsumexp of another row": lambda x: (x - torch.logsumexp(x, -1)).exp(),
    "the sum of another row": lambda x: x.exp() / x.exp().sum(-1),
}


@pytest.mark.parametrize("how", FAULTY)
def test_a_row_that_meets_what_is_anothers_is_no_plain_softmax(how: str) -> None:
    q, k, v = torch.randn(3, QUERIES, D_K)  # as many queries as keys: PyTorch says nothing
    observed = observe(lambda: FAULTY[how](q @ k.mT) @ v)
    if observed.calls:  # what was done is told
        assert [operation.kind for operation in observed.only.scores] == ["add"]
        assert_explains_its_output(observed.only)
    else:
        assert observed.misses.text()


AFTER: dict[str, tuple[Callable[[Tensor], Tensor], list[str]]] = {
    "a fill": (lambda w: w.masked_fill(HIDDEN, 0.0), ["fill"]),
    "a choice": (lambda w: torch.where(HIDDEN, 0.0, w), ["fill"]),
    "a mask of heads": (lambda w: w * torch.tensor([1.0, 0.0, 0.5])[:, None, None], ["multiply"]),
    "a number": (lambda w: w * 2, ["multiply"]),
    "another precision": (lambda w: w.double().float(), []),
}


@pytest.mark.parametrize("what", AFTER)
def test_what_happens_after_the_softmax_is_recorded(what: str) -> None:
    q, k, v = tensors()
    change, kinds = AFTER[what]
    observed = observe(lambda: change((q @ k.mT).softmax(-1)) @ v)
    assert [operation.kind for operation in observed.only.after] == kinds
    assert_explains_its_output(observed.only)


@pytest.mark.parametrize("context", [torch.enable_grad, torch.inference_mode])
def test_dropout_is_recorded_with_its_noise(context: Callable) -> None:
    q, k, v = tensors()
    observed = observe(lambda: F.dropout((q @ k.mT).softmax(-1), 0.3) @ v, context=context)
    assert observed.only.dropout == pytest.approx(0.3)
    assert observed.only.noise is not None
    assert_explains_its_output(observed.only)
    assert_nothing_changed(observed)


def test_sinks_may_stand_before_the_similarities() -> None:
    q, k, v = tensors()
    sinks = torch.randn(BATCH, HEADS, QUERIES, 2)

    def run(taken: slice) -> Tensor:
        return torch.cat([sinks, q @ k.mT], -1).softmax(-1)[..., taken] @ v

    observed = observe(lambda: run(slice(2, None)))
    assert observed.only.sinks is not None
    torch.testing.assert_close(observed.only.sinks(), sinks, atol=0, rtol=0)
    assert_explains_its_output(observed.only)
    for wrong in (slice(0, KEYS), slice(1, KEYS + 1)):
        observed = observe(partial(run, wrong))
        assert not observed.calls
        assert "was not left out" in observed.misses.text()


def test_noise_over_sinks_as_well_is_no_call_that_fails_when_asked() -> None:
    q, k, v = tensors()
    sinks = torch.randn(BATCH, HEADS, QUERIES, 1)

    def run() -> Tensor:
        return F.dropout(torch.cat([q @ k.mT, sinks], -1).softmax(-1), 0.4)[..., :-1] @ v

    observed = observe(run)
    assert not observed.calls
    assert "axes that the similarities lack" in observed.misses.text()


def test_what_is_empty_is_joined_without_a_trace() -> None:
    project, x = nn.Linear(9, HEADS * D_K), torch.randn(BATCH, KEYS, 9)

    def run() -> Tensor:
        q = project(x).view(BATCH, KEYS, HEADS, D_K).transpose(1, 2)
        q = torch.cat([q * 2, q[..., D_K:]], -1)  # rotated, and the rest of the width
        return (q @ q.mT).softmax(-1) @ q

    observed = observe(run)
    assert observed.only.same_source is True
    assert_explains_its_output(observed.only)


def test_heads_that_talk_before_the_softmax_are_no_plain_attention() -> None:
    (q, k, v), mix = tensors(), nn.Conv2d(HEADS, HEADS, 1)

    def run() -> Tensor:
        scores = q @ k.mT
        return (scores + mix(scores)).softmax(-1) @ v

    observed = observe(run)
    assert not observed.calls
    assert "convolution was applied to the similarities" in observed.misses.text()


def test_sinks_are_appended_and_dropped() -> None:
    q, k, v = tensors()
    sinks = torch.randn(HEADS)[None, :, None, None].expand(BATCH, HEADS, QUERIES, 1)

    def run() -> Tensor:
        return torch.cat([q @ k.mT, sinks], -1).softmax(-1)[..., :-1] @ v

    observed = observe(run)
    assert observed.only.sinks is not None
    torch.testing.assert_close(
        observed.only.sinks().expand(BATCH, HEADS, QUERIES, 1), sinks, atol=0, rtol=0
    )
    assert_explains_its_output(observed.only)


def test_what_is_added_within_a_product_is_recorded() -> None:
    q, k, v = (x.flatten(0, 1) for x in tensors())
    bias = torch.randn(BATCH * HEADS, 1, KEYS).expand(-1, QUERIES, -1)
    observed = observe(lambda: torch.baddbmm(bias, q, k.mT, beta=2.0, alpha=0.5).softmax(-1) @ v)
    assert [(o.kind, o.number) for o in observed.only.scores] == [("multiply", 0.5), ("add", 2.0)]
    assert_explains_its_output(observed.only)


def test_queries_scaled_beforehand_are_given_unscaled() -> None:
    q, k, v = tensors()
    observed = observe(lambda: ((q * 0.5) @ (k / 4).mT).softmax(-1) @ v)
    assert [(o.kind, o.number) for o in observed.only.scores] == [("multiply", 0.125)]
    torch.testing.assert_close(observed.only.q, q, atol=0, rtol=0)
    torch.testing.assert_close(observed.only.k, k, atol=0, rtol=0)


@pytest.mark.parametrize("context", [torch.enable_grad, torch.no_grad])
def test_dropout_has_the_probability_that_was_asked_for(context: Callable) -> None:
    q, k, v = tensors()
    observed = observe(lambda: F.dropout((q @ k.mT).softmax(-1), 0.2) @ v, context=context)
    assert observed.only.dropout == 0.2
