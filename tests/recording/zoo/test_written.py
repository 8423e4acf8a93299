"""Attention as people write it: one calculation, in many spellings."""

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import qkv
from qkv.recording.calls.call import Call
from tests.recording.zoo.examining import same_bits

BATCH, TOKENS, HEADS, WIDTH = 3, 7, 4, 6
EMBEDDED = HEADS * WIDTH
WITHIN = 1e-5
EPS = 16

Written = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""(batch, tokens, n_embed) of queries, keys and values, and who may look at whom: joined heads."""


def _heads(x: Tensor) -> Tensor:
    return x.view(BATCH, -1, HEADS, WIDTH).transpose(1, 2)


def _joined(x: Tensor) -> Tensor:
    return x.transpose(1, 2).reshape(BATCH, -1, EMBEDDED)


def plain(q: Tensor, k: Tensor, v: Tensor, open_: Tensor) -> Tensor:
    """Three products, as in every tutorial."""
    scores = _heads(q) @ _heads(k).transpose(-2, -1) / math.sqrt(WIDTH)
    return _joined(scores.masked_fill(~open_, -math.inf).softmax(-1) @ _heads(v))


def einsum(q: Tensor, k: Tensor, v: Tensor, open_: Tensor) -> Tensor:
    """Einstein's sums, heads in the middle."""
    q, k, v = (x.view(BATCH, -1, HEADS, WIDTH) for x in (q, k, v))
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) * WIDTH**-0.5
    weights = torch.where(open_, scores, torch.tensor(-1e30)).softmax(-1)
    return torch.einsum("bhqk,bkhd->bqhd", weights, v).reshape(BATCH, -1, EMBEDDED)


def einsum_keys_first(q: Tensor, k: Tensor, v: Tensor, open_: Tensor) -> Tensor:
    """The transposed matrix: each query's weights stand in a column."""
    q, k, v = (x.view(BATCH, -1, HEADS, WIDTH) for x in (q, k, v))
    scores = torch.einsum("bkhd,bqhd->bhkq", k, q) / WIDTH**0.5
    weights = scores.masked_fill(~open_.transpose(-2, -1), -math.inf).softmax(-2)
    return torch.einsum("bhkq,bkhd->bqhd", weights, v).reshape(BATCH, -1, EMBEDDED)


def baddbmm(q: Tensor, k: Tensor, v: Tensor, open_: Tensor) -> Tensor:
    """Heads in the batch, the mask added within the product."""
    flat = [_heads(x).reshape(BATCH * HEADS, -1, WIDTH) for x in (q, k, v)]
    added = torch.zeros(open_.shape).masked_fill(~open_, torch.finfo(torch.float32).min)
    added = added.expand(BATCH, HEADS, -1, -1).reshape(BATCH * HEADS, *added.shape[-2:])
    scores = torch.baddbmm(added, flat[0], flat[1].transpose(1, 2), beta=1, alpha=WIDTH**-0.5)
    return _joined(torch.bmm(scores.softmax(-1), flat[2]).view(BATCH, HEADS, -1, WIDTH))


def baddbmm_into_nothing(q: Tensor, k: Tensor, v: Tensor, open_: Tensor) -> Tensor:
    """The same with an uninitialised tensor and beta 0, which saves an addition."""
    flat = [_heads(x).reshape(BATCH * HEADS, -1, WIDTH) for x in (q, k, v)]
    nothing = torch.empty(BATCH * HEADS, TOKENS, TOKENS)
    scores = torch.baddbmm(nothing, flat[0], flat[1].mT, beta=0, alpha=WIDTH**-0.5)
    scores = scores.view(BATCH, HEADS, TOKENS, TOKENS).masked_fill(~open_, -math.inf)
    return _joined(scores.softmax(-1) @ flat[2].view(BATCH, HEADS, -1, WIDTH))


def in_place(q: Tensor, k: Tensor, v: Tensor, open_: Tensor) -> Tensor:
    """Nothing is allocated twice."""
    scores = _heads(q) @ _heads(k).mT
    scores.mul_(WIDTH**-0.5)
    scores.masked_fill_(~open_, -math.inf)
    return _joined(torch.softmax(scores, -1, dtype=torch.float32) @ _heads(v))


def by_index(q: Tensor, k: Tensor, v: Tensor, open_: Tensor) -> Tensor:
    """The mask written by indexing, queries scaled before the product."""
    scores = (_heads(q) * WIDTH**-0.5) @ _heads(k).mT
    scores[~open_.expand_as(scores)] = -math.inf
    return _joined(F.softmax(scores, dim=-1) @ _heads(v))


def both_scaled(q: Tensor, k: Tensor, v: Tensor, open_: Tensor) -> Tensor:
    """Queries and keys each scaled by the fourth root, as Whisper's authors do."""
    scores = (_heads(q) * WIDTH**-0.25) @ (_heads(k) * WIDTH**-0.25).mT
    return _joined((scores + (~open_).float() * -1e9).softmax(-1) @ _heads(v))


def softmax_in_double(q: Tensor, k: Tensor, v: Tensor, open_: Tensor) -> Tensor:
    """The softmax in another precision, and back."""
    scores = (_heads(q) @ _heads(k).mT * WIDTH**-0.5).double()
    return _joined(scores.masked_fill(~open_, -math.inf).softmax(-1).to(q.dtype) @ _heads(v))


def softmax_by_hand(q: Tensor, k: Tensor, v: Tensor, open_: Tensor) -> Tensor:
    """The largest taken off, exponentials, their sum."""
    scores = (_heads(q) @ _heads(k).mT / WIDTH**0.5).masked_fill(~open_, -math.inf)
    powers = (scores - scores.amax(-1, keepdim=True)).exp()
    return _joined(powers / powers.sum(-1, keepdim=True) @ _heads(v))


def by_head(q: Tensor, k: Tensor, v: Tensor, open_: Tensor) -> Tensor:
    """Heads cut out of the last axis, put beside each other as one batch."""
    cut = [torch.cat(x.chunk(HEADS, -1), 0) for x in (q, k, v)]
    scores = cut[0] @ cut[1].mT / WIDTH**0.5
    masked = scores.masked_fill(~open_[:, 0].repeat(HEADS, 1, 1), -math.inf)
    return torch.cat((masked.softmax(-1) @ cut[2]).chunk(HEADS, 0), -1)


def packed(q: Tensor, k: Tensor, v: Tensor, open_: Tensor) -> Tensor:
    """All three in one tensor, as after one packed projection."""
    together = torch.stack((q, k, v)).view(3, BATCH, -1, HEADS, WIDTH).permute(0, 1, 3, 2, 4)
    q, k, v = together.unbind(0)
    return _joined((q @ k.mT * WIDTH**-0.5).masked_fill(~open_, -math.inf).softmax(-1) @ v)


def fused(q: Tensor, k: Tensor, v: Tensor, open_: Tensor) -> Tensor:
    """PyTorch's own call."""
    return _joined(F.scaled_dot_product_attention(_heads(q), _heads(k), _heads(v), attn_mask=open_))


SPELLINGS = (
    plain,
    einsum,
    einsum_keys_first,
    baddbmm,
    baddbmm_into_nothing,
    in_place,
    by_index,
    both_scaled,
    softmax_in_double,
    softmax_by_hand,
    packed,
    fused,
)


class Model(nn.Module):
    """Projections, one of the spellings, and a projection back."""

    def __init__(self, written: Written) -> None:
        super().__init__()
        self.written = written
        self.q, self.k, self.v, self.out = (nn.Linear(EMBEDDED, EMBEDDED) for _ in range(4))

    def forward(self, x: Tensor, open_: Tensor) -> Tensor:
        return self.out(self.written(self.q(x), self.k(x), self.v(x), open_))


def _problem(written: Written) -> tuple[Model, Tensor, Tensor, Tensor]:
    """Return a model, its input, who may look at whom, and the weights in float64."""
    model = Model(written)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3)  # peaked
    x = torch.randn(BATCH, TOKENS, EMBEDDED)
    open_ = torch.ones(BATCH, 1, TOKENS, TOKENS, dtype=torch.bool).tril()
    open_[1, ..., 2] = False  # padding in the middle, so that no row is empty
    exact = model.double()
    q, k = (_heads(part(x.double())).detach() for part in (exact.q, exact.k))
    logits = torch.einsum("bhqd,bhkd->bhqk", q, k) / WIDTH**0.5
    wanted = logits.masked_fill(~open_, -math.inf).softmax(-1)
    return model.float(), x, open_, wanted


@pytest.mark.parametrize("inference", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("written", SPELLINGS, ids=lambda written: written.__name__)
def test_every_spelling_gives_the_same_weights(
    written: Written, inference: Callable[[], torch.no_grad]
) -> None:
    model, x, open_, wanted = _problem(written)
    with inference():
        alone = model(x, open_)
        with qkv.watch(model) as seen:
            watched = model(x, open_)
    assert same_bits(alone, watched)
    (call,) = list(seen)
    assert call.path == ""
    _compare(call, wanted)


@pytest.mark.parametrize("written", SPELLINGS, ids=lambda written: written.__name__)
def test_every_spelling_trains_the_same(written: Written) -> None:
    model, x, open_, wanted = _problem(written)

    def gradients() -> list[Tensor | None]:
        model.zero_grad(set_to_none=True)
        model(x, open_).square().mean().backward()
        return [parameter.grad for parameter in model.parameters()]

    alone = gradients()
    with qkv.watch(model) as seen:
        watched = gradients()
    assert same_bits(alone, watched)
    (call,) = list(seen)
    _compare(call, wanted)


def _compare(call: Call, wanted: Tensor) -> None:
    recovered = call.weights.dense()
    torch.testing.assert_close(recovered.double(), wanted, rtol=0, atol=WITHIN)
    assert call.error_eps <= EPS
    assert (call.q.shape, call.scale) == (
        (BATCH, HEADS, TOKENS, WIDTH),
        pytest.approx(WIDTH**-0.5, rel=1e-6),
    )
    assert call.blocking.causal
    hidden = call.blocking.padding
    assert hidden is not None
    assert hidden.reshape(-1, TOKENS).nonzero()[:, -1].unique().tolist() == [2]
    assert not call.blocking.biased


def test_heads_that_were_cut_apart_are_a_batch_of_single_heads() -> None:
    model, x, open_, wanted = _problem(by_head)
    with torch.no_grad():
        alone = model(x, open_)
        with qkv.watch(model) as seen:
            watched = model(x, open_)
    assert same_bits(alone, watched)
    (call,) = list(seen)
    single = wanted.transpose(0, 1).reshape(HEADS * BATCH, 1, TOKENS, TOKENS)
    torch.testing.assert_close(call.weights.dense().double(), single, rtol=0, atol=WITHIN)
    assert call.error_eps <= EPS


class ArticleAttention(nn.Module):
    """The article's Attention, on two axes, as its text describes it."""

    def __init__(self, n_embed: int = 2, row: int = 0, col: int = 1) -> None:
        super().__init__()
        self.WQ = nn.Linear(n_embed, n_embed, bias=False)
        self.WK = nn.Linear(n_embed, n_embed, bias=False)
        self.WV = nn.Linear(n_embed, n_embed, bias=False)
        self.row, self.col = row, col

    def forward(self, enc_q: Tensor, enc_k: Tensor, enc_v: Tensor, mask: bool = False) -> Tensor:
        q, k, v = self.WQ(enc_q), self.WK(enc_k), self.WV(enc_v)
        scaled = q @ k.transpose(self.row, self.col) / k.size(self.col) ** 0.5
        if mask:
            future = torch.tril(torch.ones(q.size(self.row), k.size(self.row))) == 0
            scaled = scaled.masked_fill(future, float("-inf"))
        return F.softmax(scaled, dim=self.col) @ v


class ArticleHeads(nn.Module):
    """The article's MultiHeadAttention: heads side by side, concatenated."""

    def __init__(self, n_embed: int = 2, num_heads: int = 1) -> None:
        super().__init__()
        self.heads = nn.ModuleList(ArticleAttention(n_embed) for _ in range(num_heads))

    def forward(self, enc_q: Tensor, enc_k: Tensor, enc_v: Tensor) -> Tensor:
        return torch.cat([head(enc_q, enc_k, enc_v) for head in self.heads], dim=1)


ENCODED = torch.tensor([[1.16, 0.23], [0.57, 1.36], [4.41, -2.16]])
"""The encodings of "draw a map"."""


def test_the_articles_code_gives_the_articles_weights() -> None:
    torch.manual_seed(42)
    model = ArticleAttention()
    with qkv.watch(model) as seen:
        model(ENCODED, ENCODED, ENCODED)
    weights = seen[""].weights.dense()
    assert weights.shape == (1, 1, 3, 3)
    torch.testing.assert_close(
        weights[0, 0, 0], torch.tensor([0.357, 0.401, 0.242]), rtol=0, atol=5e-4
    )
    assert float(weights[0, 0, 2, 2]) == pytest.approx(0.896, abs=5e-4)


def test_the_articles_mask_is_its_triangle() -> None:
    torch.manual_seed(42)
    model = ArticleAttention()
    with qkv.watch(model) as seen:
        model(ENCODED, ENCODED, ENCODED, mask=True)
    assert seen[""].blocking.causal
    assert float(seen[""].weights.dense()[0, 0, 0, 0]) == 1


def test_each_of_the_articles_heads_is_an_attention() -> None:
    torch.manual_seed(42)
    model = ArticleHeads(num_heads=2)
    with torch.no_grad(), qkv.watch(model) as seen:
        output = model(ENCODED, ENCODED, ENCODED)
    assert seen.paths == ("heads.0", "heads.1")
    for number, call in enumerate(seen):
        columns = output[:, 2 * number : 2 * number + 2]
        torch.testing.assert_close(call.output[0, 0], columns, rtol=0, atol=0)
        assert call.error_eps <= EPS
