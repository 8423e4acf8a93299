"""Batch and heads are told apart where a model flattened them."""

import pytest
import torch
from torch import Tensor, nn

from tests.recording.recomputed import Observed, assert_explains_its_output, observe

BATCH, TOKENS, HEADS, D_K = 2, 5, 3, 4
WIDTH = HEADS * D_K


class Heads(nn.Module):
    """Projections whose heads are arranged in one way or another before one product."""

    def __init__(self, arrange: str, kv_heads: int = HEADS) -> None:
        super().__init__()
        self.WQ = nn.Linear(8, WIDTH)
        self.WK, self.WV = nn.Linear(8, kv_heads * D_K), nn.Linear(8, kv_heads * D_K)
        self.arrange, self.kv_heads = arrange, kv_heads

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (W(x) for W in (self.WQ, self.WK, self.WV))
        return getattr(self, self.arrange)(q, k, v, *x.shape[:2])

    def flattened(self, q: Tensor, k: Tensor, v: Tensor, b: int, t: int) -> Tensor:
        q, k, v = (
            x.view(b, t, HEADS, D_K).transpose(1, 2).reshape(b * HEADS, t, D_K) for x in (q, k, v)
        )
        return torch.bmm(torch.bmm(q, k.mT).softmax(-1), v)

    def heads_first(self, q: Tensor, k: Tensor, v: Tensor, b: int, t: int) -> Tensor:
        q, k, v = (x.view(b, t, HEADS, D_K).permute(2, 0, 1, 3) for x in (q, k, v))
        return (q @ k.mT).softmax(-1) @ v

    def sequence_first(self, q: Tensor, k: Tensor, v: Tensor, b: int, t: int) -> Tensor:
        q, k, v = (
            x.transpose(0, 1).contiguous().view(t, b * HEADS, D_K).transpose(0, 1)
            for x in (q, k, v)
        )
        return torch.bmm(torch.bmm(q, k.mT).softmax(-1), v)

    def folded(self, q: Tensor, k: Tensor, v: Tensor, b: int, t: int) -> Tensor:
        return (q.view(b, t * HEADS, D_K) @ k.mT).softmax(-1) @ v  # all heads share one key head

    def grouped(self, q: Tensor, k: Tensor, v: Tensor, b: int, t: int) -> Tensor:
        g = HEADS // self.kv_heads
        q = q.view(b, t, self.kv_heads, g, D_K).permute(0, 2, 3, 1, 4)
        k, v = (x.view(b, t, self.kv_heads, 1, D_K).permute(0, 2, 3, 1, 4) for x in (k, v))
        return (q @ k.mT).softmax(-1) @ v


def check(model: Heads, x: Tensor, observed: Observed) -> None:
    heads = model.kv_heads
    q, k, v = (
        W(x).unflatten(-1, (n, D_K)).transpose(1, 2)
        for W, n in ((model.WQ, HEADS), (model.WK, heads), (model.WV, heads))
    )
    torch.testing.assert_close(observed.only.q, q)
    torch.testing.assert_close(observed.only.k, k)
    torch.testing.assert_close(observed.only.v, v)
    assert_explains_its_output(observed.only)


@pytest.mark.parametrize("arrange", ["flattened", "heads_first", "sequence_first"])
@pytest.mark.parametrize("batch", [1, BATCH, HEADS])
def test_batch_and_heads_are_restored(arrange: str, batch: int) -> None:
    model, x = Heads(arrange), torch.randn(batch, TOKENS, 8)
    with torch.no_grad():
        check(model, x, observe(lambda: model(x), model))


@pytest.mark.parametrize("batch", [1, BATCH])
def test_heads_among_the_rows_are_restored(batch: int) -> None:
    model, x = Heads("folded", kv_heads=1), torch.randn(batch, TOKENS, 8)
    with torch.no_grad():
        check(model, x, observe(lambda: model(x), model))


def test_grouped_heads_in_an_axis_of_their_own_are_restored() -> None:
    model, x = Heads("grouped", kv_heads=1), torch.randn(BATCH, TOKENS, 8)
    with torch.no_grad():
        check(model, x, observe(lambda: model(x), model))


def test_windows_are_a_batch() -> None:
    model, x = Heads("flattened"), torch.randn(BATCH * 4, TOKENS, 8)
    with torch.no_grad():
        check(model, x, observe(lambda: model(x), model))


@pytest.mark.parametrize("shape", [(1, 1, 5, 5), (1, 3, 5, 5), (2, 1, 1, 5), (2, 3, 5, 1)])
def test_a_bias_is_laid_out_like_the_similarities(shape: tuple[int, ...]) -> None:
    bias = torch.randn(shape)

    class Biased(Heads):
        def flattened(self, q: Tensor, k: Tensor, v: Tensor, b: int, t: int) -> Tensor:
            q, k, v = (
                x.view(b, t, HEADS, D_K).transpose(1, 2).reshape(b * HEADS, t, D_K)
                for x in (q, k, v)
            )
            scores = (q @ k.mT).view(b, HEADS, t, t) + bias
            return torch.bmm(scores.view(b * HEADS, t, t).softmax(-1), v)

    model, x = Biased("flattened"), torch.randn(BATCH, TOKENS, 8)
    observed = observe(lambda: model(x), model)
    assert observed.only.scores[0].operand is not None
    torch.testing.assert_close(observed.only.scores[0].operand(), bias, atol=0, rtol=0)
    assert_explains_its_output(observed.only)
