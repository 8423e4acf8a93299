"""The article's code, unchanged, and the article's numbers, as constants."""

import numpy as np
import pytest
import torch

from qkv import Attention, MaskedSelfAttention, MultiHeadAttention, SelfAttention
from tests.reference import agree

ENCODINGS = [[1.16, 0.23], [0.57, 1.36], [4.41, -2.16]]  # "draw a map"
TOKENS = ["draw", "a", "map"]
WQ = [[0.5406, 0.5869], [-0.1657, 0.6496]]
WK = [[-0.1549, 0.1427], [-0.3443, 0.4153]]
WV = [[0.6233, -0.5188], [0.6146, 0.1323]]
SELF = [[1.0100, 1.0641], [0.2040, 0.7057], [3.4989, 2.2427]]
MASKED = [[0.6038, 0.7434], [-0.0062, 0.6072], [3.4989, 2.2427]]
TWO_HEADS = [
    [1.0100, 1.0641, -0.7081, -0.8268],
    [0.2040, 0.7057, -0.7417, -0.9193],
    [3.4989, 2.2427, -0.7190, -0.8447],
]
DIGITS = 5e-5 + 1e-9  # four digits after the point


@pytest.fixture
def c() -> torch.Tensor:
    torch.manual_seed(42)
    return torch.tensor(ENCODINGS)


def test_the_weights_are_the_articles(c: torch.Tensor) -> None:
    sa = SelfAttention(n_embed=2, row=0, col=1)
    for weight, wanted in ((sa.WQ.weight, WQ), (sa.WK.weight, WK), (sa.WV.weight, WV)):
        agree(weight, wanted, DIGITS)
        assert isinstance(weight, torch.nn.Parameter)
    assert sa.WQ.bias is None


def test_self_attention(c: torch.Tensor) -> None:
    sa = SelfAttention(n_embed=2, row=0, col=1)
    out = sa(c)
    agree(out, SELF, DIGITS)
    assert out.grad_fn is not None


def test_the_numbers_on_the_way(c: torch.Tensor) -> None:
    record = SelfAttention(n_embed=2, row=0, col=1).explain(c, tokens=TOKENS)
    first = 1.16 * 0.5406 + 0.23 * 0.5869
    assert first == pytest.approx(0.7621, abs=DIGITS)
    assert record["queries"][0, 0] == pytest.approx(first, abs=2 * DIGITS)
    agree(record["weights"][0], [0.357, 0.401, 0.242], 5e-4)
    assert record["weights"][2, 2] == pytest.approx(0.896, abs=5e-4)
    agree(record.by_hand(4).calculation["values"][:, 0], [0.6037, -0.3503, 3.8694], 1e-12)
    score = 0.357 * 0.6037 + 0.401 * -0.3503 + 0.242 * 3.8694
    assert record["output"][0, 0] == pytest.approx(1.0100, abs=DIGITS)
    assert score == pytest.approx(1.0100, abs=2e-3)
    agree(record["output"], SELF, DIGITS)
    assert record.step("weights").rows == record.step("weights").columns == tuple(TOKENS)
    record.verify()


def test_the_article_by_hand_lands_on_the_same_numbers(c: torch.Tensor) -> None:
    hand = SelfAttention(n_embed=2, row=0, col=1).explain(c).by_hand(places=4)
    agree(hand.calculation.result, SELF, 5e-4)
    assert hand.drift < 5e-4


def test_masked_self_attention(c: torch.Tensor) -> None:
    msa = MaskedSelfAttention(n_embed=2, row=0, col=1, mask=True)
    out = msa(c)
    agree(out, MASKED, DIGITS)
    agree(out[0], (c @ msa.WV.weight.mT)[0].detach(), 1e-6)
    agree(msa.explain(c)["output"], MASKED, DIGITS)


def test_the_switch_off_is_self_attention(c: torch.Tensor) -> None:
    agree(MaskedSelfAttention(n_embed=2, row=0, col=1)(c), SELF, DIGITS)
    torch.manual_seed(42)
    agree(MaskedSelfAttention(2, 0, 1, False)(c), SELF, DIGITS)


def test_one_class_for_all_three(c: torch.Tensor) -> None:
    a = Attention(n_embed=2, row=0, col=1)
    agree(a(c, c, c), SELF, DIGITS)
    agree(a(c, c, c, mask=True), MASKED, DIGITS)
    agree(a(c, c, c, True), MASKED, DIGITS)


def test_one_head(c: torch.Tensor) -> None:
    mha = MultiHeadAttention(n_embed=2, row=0, col=1, num_heads=1)
    agree(mha(c, c, c), SELF, DIGITS)
    assert len(mha.heads) == 1


def test_two_heads(c: torch.Tensor) -> None:
    mha = MultiHeadAttention(n_embed=2, row=0, col=1, num_heads=2)
    agree(mha(c, c, c), TWO_HEADS, DIGITS)
    agree(mha.heads[0].WQ.weight, WQ, DIGITS)
    record = mha.explain(c, tokens=TOKENS)
    agree(record.result, TWO_HEADS, DIGITS)
    agree(record["head 1/output"], np.array(TWO_HEADS)[:, :2], DIGITS)


def test_two_heads_mask_although_the_articles_do_not(c: torch.Tensor) -> None:
    mha = MultiHeadAttention(n_embed=2, row=0, col=1, num_heads=2)
    out = mha(c, c, c, mask=True)
    agree(out[:, :2], MASKED, DIGITS)
    values = c @ mha.WV.weight.mT
    agree(out[0], values[0].detach(), 1e-6)
    agree(out[2], TWO_HEADS[2], DIGITS)
    assert (out[:2] - torch.tensor(TWO_HEADS)[:2]).abs().amin(1).min() > 0.05


def test_three_heads_give_six_values_a_token(c: torch.Tensor) -> None:
    assert MultiHeadAttention(n_embed=2, row=0, col=1, num_heads=3)(c, c, c).shape == (3, 6)


def test_each_head_is_drawn_as_a_module_of_its_own(c: torch.Tensor) -> None:
    alone = [SelfAttention(n_embed=2, row=0, col=1) for _ in range(3)]
    torch.manual_seed(42)
    mha = MultiHeadAttention(n_embed=2, row=0, col=1, num_heads=3)
    for head, module in zip(mha.heads, alone, strict=True):
        for name in ("WQ", "WK", "WV"):
            assert torch.equal(getattr(head, name).weight, getattr(module, name).weight)
    agree(mha(c, c, c), torch.cat([module(c) for module in alone], -1).detach(), 1e-6)


def test_a_pytorch_linear_layer_draws_the_same_weights(c: torch.Tensor) -> None:
    linear = [torch.nn.Linear(2, 2, bias=False) for _ in range(3)]
    torch.manual_seed(42)
    sa = SelfAttention(n_embed=2, row=0, col=1)
    for name, layer in zip(("WQ", "WK", "WV"), linear, strict=True):
        assert torch.equal(getattr(sa, name).weight, layer.weight)
