"""The same weights and inputs as PyTorch's and Hugging Face's attention: the same numbers."""

import pytest
import torch
from torch import Tensor, nn

from qkv import Mask, MultiHeadAttention
from tests.reference import agree, array

BATCH, TOKENS, WIDTH, HEADS = 2, 7, 12, 3
LENGTHS = [7, 4]
PADDING = Mask.padding(LENGTHS)
HIDDEN = torch.arange(TOKENS) >= torch.tensor(LENGTHS)[:, None]
CAUSAL = torch.ones(TOKENS, TOKENS, dtype=torch.bool).triu(1)
MASKS = {
    "none": (False, {}),
    "causal": (True, {"attn_mask": CAUSAL}),
    "padding": (PADDING, {"key_padding_mask": HIDDEN}),
    "both": (Mask.causal() & PADDING, {"attn_mask": CAUSAL, "key_padding_mask": HIDDEN}),
}


def ours(*, bias: bool = True, n_out: int | None = WIDTH) -> MultiHeadAttention:
    d = WIDTH // HEADS
    return MultiHeadAttention(WIDTH, num_heads=HEADS, d_k=d, d_v=d, n_out=n_out, bias=bias).eval()


def inputs(tokens: int = TOKENS) -> Tensor:
    return torch.randn(BATCH, tokens, WIDTH)


def copied(layer: MultiHeadAttention, peer: nn.MultiheadAttention) -> None:
    """Give our layer the weights of PyTorch's; its biases are zero until they are drawn."""
    with torch.no_grad():
        if peer.in_proj_bias is not None:
            peer.in_proj_bias.normal_()
            peer.out_proj.bias.normal_()
        for name, weight in zip(("WQ", "WK", "WV"), peer.in_proj_weight.chunk(3), strict=True):
            getattr(layer, name).weight.copy_(weight)
        layer.WO.weight.copy_(peer.out_proj.weight)
        if peer.in_proj_bias is not None:
            for name, bias in zip(("WQ", "WK", "WV"), peer.in_proj_bias.chunk(3), strict=True):
                getattr(layer, name).bias.copy_(bias)
            layer.WO.bias.copy_(peer.out_proj.bias)


@pytest.mark.parametrize("bias", [False, True], ids=["without bias", "with bias"])
@pytest.mark.parametrize(("mask", "theirs"), MASKS.values(), ids=MASKS)
def test_pytorchs_multihead_attention(bias: bool, mask: object, theirs: dict[str, Tensor]) -> None:
    layer = ours(bias=bias)
    peer = nn.MultiheadAttention(WIDTH, HEADS, bias=bias, batch_first=True).eval()
    copied(layer, peer)
    x = inputs()
    wanted, weights = peer(x, x, x, average_attn_weights=False, **theirs)
    agree(layer(x, x, x, mask=mask), array(wanted), 1e-6)
    agree(peer(x, x, x, need_weights=False, **theirs)[0], array(wanted), 1e-6)
    for example, head in ((0, 0), (1, 2)):
        record = layer.explain(x, mask=mask, batch=example, head=head)
        agree(record["weights"], array(weights[example, head]), 1e-6)


def test_pytorchs_gradients_and_cross_attention() -> None:
    layer, peer = ours(), nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
    copied(layer, peer)
    x, y = inputs(5), inputs()
    out = layer(x, y, y, mask=PADDING)
    wanted = peer(x, y, y, key_padding_mask=HIDDEN, need_weights=False)[0]
    agree(out, array(wanted), 1e-6)
    out.square().sum().backward()
    wanted.square().sum().backward()
    agree(layer.WQKV.grad, array(peer.in_proj_weight.grad), 1e-4)
    agree(layer.bQKV.grad, array(peer.in_proj_bias.grad), 1e-4)
    agree(layer.WO.weight.grad, array(peer.out_proj.weight.grad), 1e-4)


def bert(implementation: str) -> tuple[object, nn.Module, MultiHeadAttention]:
    from transformers import BertConfig
    from transformers.models.bert.modeling_bert import BertAttention

    config = BertConfig(
        hidden_size=WIDTH, num_attention_heads=HEADS, attn_implementation=implementation
    )
    peer = BertAttention(config).eval()
    layer = ours()
    theirs = {"WQ": peer.self.query, "WK": peer.self.key, "WV": peer.self.value}
    with torch.no_grad():
        for name, linear in {**theirs, "WO": peer.output.dense}.items():
            getattr(layer, name).weight.copy_(linear.weight)
            getattr(layer, name).bias.copy_(linear.bias.normal_())
    return config, peer, layer


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("kind", ["none", "padding", "both"])
def test_hugging_faces_bert_attention(implementation: str, kind: str) -> None:
    _, peer, layer = bert(implementation)
    x = inputs()
    mask = MASKS[kind][0]
    hidden = {
        "none": None,
        "padding": HIDDEN[:, None, None],
        "both": HIDDEN[:, None, None] | CAUSAL,
    }
    added = None
    if hidden[kind] is not None:
        added = torch.zeros(hidden[kind].shape).masked_fill(hidden[kind], torch.finfo().min)
    alone = ours(n_out=None)
    alone.load_state_dict({k: v for k, v in layer.state_dict().items() if "WO" not in k})
    agree(alone(x, x, x, mask=mask), array(peer.self(x, attention_mask=added)[0]), 1e-6)
    wanted = peer(x, attention_mask=added)[0]
    normed = peer.output.LayerNorm(layer(x, x, x, mask=mask) + x)
    agree(normed, array(wanted), 2e-6)


def test_a_peer_with_other_weights_is_told_apart() -> None:
    layer, peer = ours(), nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
    copied(layer, peer)
    with torch.no_grad():
        layer.WQ.weight[0, 0] += 0.5
    x = inputs()
    with pytest.raises(AssertionError):
        agree(layer(x, x, x), array(peer(x, x, x)[0]), 1e-6)
