"""Attention is found between two products, however a program writes them, and nothing else is."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv.errors import RecordingError
from tests.recording.recomputed import assert_explains_its_output, assert_nothing_changed, observe

BATCH, HEADS, QUERIES, KEYS, D_K, D_V = 2, 3, 5, 7, 4, 6

PRODUCTS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "matmul": lambda q, k, v: (q @ k.mT).softmax(-1) @ v,
    "einsum": lambda q, k, v: torch.einsum(
        "bhts,bhse->bhte", torch.einsum("bhtd,bhsd->bhts", q, k).softmax(-1), v
    ),
    "einsum, keys first": lambda q, k, v: torch.einsum(
        "tsbh,bhse->bhte", torch.einsum("bhtd,bhsd->tsbh", q, k).softmax(1), v
    ),
    "einsum, heads last": lambda q, k, v: torch.einsum(
        "bhts,bshe->bthe",
        torch.einsum(
            "bthd,bshd->bhts", q.transpose(1, 2).contiguous(), k.transpose(1, 2).contiguous()
        ).softmax(-1),
        v.transpose(1, 2).contiguous(),
    ),
    "keys times queries": lambda q, k, v: (k @ q.mT).softmax(-2).mT @ v,
    "values times weights": lambda q, k, v: (v.mT @ (k @ q.mT).softmax(2)).mT,
    "flattened": lambda q, k, v: torch.bmm(
        torch.bmm(q.flatten(0, 1), k.flatten(0, 1).mT).softmax(-1), v.flatten(0, 1)
    ).view(BATCH, HEADS, QUERIES, D_V),
    "vmap": torch.vmap(lambda q, k, v: (q @ k.mT).softmax(-1) @ v),
}


def tensors() -> tuple[Tensor, Tensor, Tensor]:
    return (
        torch.randn(BATCH, HEADS, QUERIES, D_K),
        torch.randn(BATCH, HEADS, KEYS, D_K),
        torch.randn(BATCH, HEADS, KEYS, D_V),
    )


@pytest.mark.parametrize("how", PRODUCTS)
@pytest.mark.parametrize("context", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_attention_is_found_however_its_products_are_written(how: str, context: Callable) -> None:
    q, k, v = tensors()
    observed = observe(lambda: PRODUCTS[how](q, k, v), context=context)
    for mine, theirs in zip(
        (q, k, v), (observed.only.q, observed.only.k, observed.only.v), strict=True
    ):
        torch.testing.assert_close(theirs, mine, atol=0, rtol=0)
    assert_explains_its_output(observed.only)
    assert_nothing_changed(observed)


def test_one_head_without_a_batch_is_found() -> None:
    q, k, v = (x[0, 0] for x in tensors())
    observed = observe(lambda: (q @ k.T).softmax(-1) @ v)
    assert observed.only.q.shape == (1, 1, QUERIES, D_K)
    assert_explains_its_output(observed.only)


def test_one_query_as_a_vector_is_found() -> None:
    q, k, v = (x[0, 0] for x in tensors())
    observed = observe(lambda: (k @ q[0]).softmax(-1) @ v)
    assert observed.only.q.shape == (1, 1, 1, D_K)
    assert_explains_its_output(observed.only)


def test_heads_in_a_loop_are_calls_of_their_own() -> None:
    q, k, v = tensors()
    observed = observe(lambda: [(q[:, h] @ k[:, h].mT).softmax(-1) @ v[:, h] for h in range(HEADS)])
    assert len(observed.calls) == HEADS
    for h, call in enumerate(observed.calls):
        torch.testing.assert_close(call.operands.q[:, 0], q[:, h], atol=0, rtol=0)
        assert_explains_its_output(call.operands)


def test_weights_that_are_used_twice_are_two_calls() -> None:
    q, k, v = tensors()

    def run() -> list[Tensor]:
        w = (q @ k.mT).softmax(-1)
        return [w @ v, w @ (2 * v)]

    observed = observe(run)
    assert len(observed.calls) == 2
    for call in observed.calls:
        assert_explains_its_output(call.operands)


def test_a_learned_query_is_found() -> None:
    class Pooling(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.query = nn.Parameter(torch.randn(D_K))

        def forward(self, x: Tensor) -> Tensor:
            return (x @ self.query).softmax(-1) @ x

    model, x = Pooling(), torch.randn(KEYS, D_K)
    observed = observe(lambda: model(x), model)
    assert_explains_its_output(observed.only)


class Projected(nn.Module):
    """Attention with heads split off projections, rotated, and joined by an output layer."""

    def __init__(self, fused: bool) -> None:
        super().__init__()
        self.WQ, self.WK, self.WV = nn.Linear(9, 12), nn.Linear(9, 12), nn.Linear(9, 18)
        self.WO = nn.Linear(18, 11)
        self.fused = fused

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        q = self.WQ(x).unflatten(-1, (HEADS, 4)).transpose(1, 2)
        k = self.WK(memory).unflatten(-1, (HEADS, 4)).transpose(1, 2)
        v = self.WV(memory).unflatten(-1, (HEADS, 6)).transpose(1, 2)
        q, k = self.rotated(q), self.rotated(k)
        if self.fused:
            y = nn.functional.scaled_dot_product_attention(q, k, v[..., :4])
            y = torch.cat([y, v[:, :, : q.shape[2], 4:]], -1)
        else:
            y = (q @ k.mT).softmax(-1) @ v
        return self.WO(y.transpose(1, 2).reshape(*x.shape[:2], 18))

    @staticmethod
    def rotated(x: Tensor) -> Tensor:
        angle = torch.arange(x.shape[-2])[:, None].float()
        return x * angle.cos() + torch.cat([-x[..., 2:], x[..., :2]], -1) * angle.sin()


@pytest.mark.parametrize("context", [torch.enable_grad, torch.inference_mode])
def test_self_and_cross_attention_are_told_apart(context: Callable) -> None:
    model, x, memory = Projected(fused=False), torch.randn(2, 5, 9), torch.randn(2, 5, 9)
    assert observe(lambda: model(x, x), model, context).only.same_source is True
    assert observe(lambda: model(x, memory), model, context).only.same_source is False


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_a_product_of_onednn_is_one_with_a_parameter_and_a_cache_has_its_source(
    context: Callable,
) -> None:
    stored = torch.randn(2, 24, 8)  # parameters that lie in one storage, as a file's do
    W, WO = nn.Parameter(stored[0].mT.contiguous().mT), nn.Parameter(stored[1, :8])
    linear = torch.ops.mkldnn._linear_pointwise

    def run() -> Tensor:
        x = torch.randn(1, 5, 8)
        packed = linear(x, W, None, "none", [], "").unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
        q, k, v = packed[0], packed[1], packed[2]
        cos, sin = torch.randn(2, 5, 4)
        q, k = (torch.addcmul(t * cos, t.roll(2, -1), sin) for t in (q, k))
        cache = k.new_zeros(1, 2, 9, 4)  # more rows than are used
        cache[:, :, :5].copy_(k)
        y = F.scaled_dot_product_attention(q, cache[:, :, :5], v)
        return linear(y.transpose(1, 2).flatten(2), WO, torch.zeros(8), "none", [], "")

    observed = observe(run, context=context)
    assert_nothing_changed(observed)
    assert_explains_its_output(observed.only)
    assert observed.only.same_source is True
    assert observed.only.projection is not None
    projection = observed.only.projection()
    assert projection is not None
    torch.testing.assert_close(projection, WO.mT.unflatten(0, (2, 4)), atol=0, rtol=0)


@pytest.mark.parametrize("context", [torch.enable_grad, torch.inference_mode])
def test_the_output_projection_is_found_head_by_head(context: Callable) -> None:
    model, x = Projected(fused=False), torch.randn(2, 5, 9)
    observed = observe(lambda: model(x, x), model, context)
    assert observed.only.projection is not None
    W = observed.only.projection()
    assert W is not None
    assert W.shape == (HEADS, 6, 11)
    again = torch.einsum("bhtd,hdo->bto", observed.only.output, W) + model.WO.bias
    torch.testing.assert_close(again, observed.watched)


def largest(weights: Tensor) -> Tensor:
    values, places = weights.topk(2, -1)
    return torch.zeros_like(weights).scatter_(-1, places, values)


NO_ATTENTION: dict[str, tuple[Callable[[Tensor, Tensor, Tensor], Tensor], str]] = {
    "a classifier": (lambda q, k, v: (q @ k.mT).softmax(-1), "no softmax fed a product"),
    "linear attention": (
        lambda q, k, v: q.softmax(-1) @ (k.softmax(-2).mT @ v),
        "its input does not come from a product",
    ),
    "talking heads": (
        lambda q, k, v: torch.einsum("bhts,hg->bgts", (q @ k.mT).softmax(-1), torch.eye(HEADS)) @ v,
        "not over the axis of the softmax",
    ),
    "a softmax over queries": (
        lambda q, k, v: (q @ k.mT).softmax(-2) @ v,
        "not over the axis of the softmax",
    ),
    "a softmax over heads": (
        lambda q, k, v: (q @ k.mT).softmax(1) @ v,
        "not over one side of the product",
    ),
    "division after the second product": (
        lambda q, k, v: ((q @ k.mT).exp() @ v) / (q @ k.mT).exp().sum(-1, keepdim=True),
        "enters a product before it is divided by its sum",
    ),
    "weights that were rolled": (
        lambda q, k, v: (q @ k.mT).softmax(-1).roll(1, -1) @ v,
        "changed by roll before the product",
    ),
    "similarities that were rolled": (
        lambda q, k, v: (q @ k.mT).roll(1, -1).softmax(-1) @ v,
        "roll was applied to the similarities",
    ),
    "the largest weights alone": (
        lambda q, k, v: largest((q @ k.mT).softmax(-1)) @ v,
        "softmax .*changed by topk before the product",
    ),
    "weights that were squared": (
        lambda q, k, v: (q @ k.mT).softmax(-1) ** 2 @ v,
        "softmax .*changed by pow before the product",
    ),
    "sigmoid attention": (
        lambda q, k, v: (q @ k.mT).sigmoid() @ v,
        "sigmoid was applied to the similarities, and no softmax",
    ),
    "linear attention of features": (
        lambda q, k, v: q.exp() @ (k.exp().mT @ v),
        "^no softmax ran$",
    ),
    "no examples": (
        lambda q, k, v: (q[:0] @ k[:0].mT).softmax(-1) @ v[:0],
        "the call was empty: there are no examples, or no tokens",
    ),
    "no examples of a fused operation": (
        lambda q, k, v: F.scaled_dot_product_attention(
            q[:0] @ torch.eye(q.shape[-1]), k[:0], v[:0]
        ),
        "the call was empty: there are no examples, or no tokens",
    ),
    "a write that is not understood": (
        lambda q, k, v: (q @ k.mT).cumsum_(-1).softmax(-1) @ v,
        "cumsum_.* wrote into the similarities",
    ),
}


@pytest.mark.parametrize("what", NO_ATTENTION)
def test_what_is_no_attention_is_not_recorded_and_says_why(what: str) -> None:
    program, reason = NO_ATTENTION[what]
    observed = observe(lambda: program(*tensors()))
    assert not observed.calls
    with pytest.raises(AssertionError, match=reason):
        raise AssertionError(observed.misses.text())


def test_only_is_asked_before_a_call_is_kept() -> None:
    model = nn.Sequential(Projected(False), nn.Identity())
    x = torch.randn(2, 5, 9)
    asked: list[str | None] = []

    def only(path: str | None) -> bool:
        asked.append(path)
        return False

    observed = observe(lambda: model[0](x, x), model, only=only)
    assert not observed.calls
    assert asked == ["0"]
    assert_nothing_changed(observed)


def test_weights_multiplied_with_themselves_leave_the_attention_as_it_was() -> None:
    q, k, v = (torch.randn(BATCH, HEADS, KEYS, D_K) for _ in range(3))

    def run() -> Tensor:
        weights = (q @ k.mT).softmax(-1)
        return weights @ v + (weights @ weights).sum()

    observed = observe(run)
    assert_explains_its_output(observed.only)
    assert "multiplied with itself" in observed.misses.text()


def test_an_attention_whose_axes_became_one_says_which_it_was() -> None:
    q, k, v = (torch.randn(BATCH, HEADS, KEYS, D_K) for _ in range(3))

    def run() -> Tensor:
        weights = (q @ k.mT).softmax(-1)
        return weights @ v + (weights @ (weights @ torch.randn(KEYS, KEYS)).mT.exp()).sum()

    observed = observe(run)
    with pytest.raises(RecordingError, match="cannot be laid out") as raised:
        [call.q for call in observed.calls]
    assert __file__ in str(raised.value)
