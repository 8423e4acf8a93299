"""PyTorch's own fast path for its attention is entered, and recorded as what it is."""

import warnings
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.recording.recomputed import (
    assert_explains_its_output,
    assert_nothing_changed,
    observe,
    weights,
)

CONTEXTS = [torch.enable_grad, torch.no_grad, torch.inference_mode]


def test_pytorchs_fast_path_is_entered_and_left_as_it_is() -> None:
    layer = nn.TransformerEncoderLayer(24, 4, 40, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=True).eval()
    x = torch.randn(2, 6, 24)
    padding = torch.tensor([[False] * 6, [False] * 4 + [True] * 2])
    with pytest.warns(UserWarning, match="nested tensors is in prototype"):
        run = observe(lambda: encoder(x, src_key_padding_mask=padding), encoder, torch.no_grad)
    assert_nothing_changed(run)
    assert [call.path for call in run.calls] == ["layers.0", "layers.1"]
    for call in run.calls:
        w = weights(call.operands)
        assert not w[1, :, :, 4:].any(), "padding is hidden"
        assert w[0, :, :, 4:].all()


NATIVE: dict[str, Callable[[], nn.Module]] = {
    "attention": lambda: nn.MultiheadAttention(24, 4, batch_first=True),
    "one head": lambda: nn.MultiheadAttention(24, 1, batch_first=True),
    "a layer": lambda: nn.TransformerEncoderLayer(24, 4, 32, batch_first=True),
    "an encoder": lambda: nn.TransformerEncoder(
        nn.TransformerEncoderLayer(24, 4, 32, batch_first=True), 2
    ),
}


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("made", NATIVE)
@pytest.mark.parametrize("batch", [1, 2])
def test_the_fast_path_attends_to_itself_with_a_scale(
    made: str, context: Callable, batch: int
) -> None:
    module, x = NATIVE[made]().eval(), torch.randn(batch, 5, 24)
    inputs = (x, x, x) if isinstance(module, nn.MultiheadAttention) else (x,)
    run = observe(lambda: module(*inputs), module, context)
    attention = next(m for m in module.modules() if isinstance(m, nn.MultiheadAttention))
    heads, d_k = attention.num_heads, 24 // attention.num_heads
    with torch.no_grad():
        q, k, v = F.linear(x, attention.in_proj_weight, attention.in_proj_bias).chunk(3, -1)
    for call in run.calls:
        assert (call.kind, call.shape) == ("self", (batch, heads, 5, 5))
        assert call.scale == pytest.approx(d_k**-0.5)
        assert_explains_its_output(call.operands)
    for mine, theirs in ((run.calls[0].q, q), (run.calls[0].k, k), (run.calls[0].v, v)):
        split = theirs.unflatten(-1, (heads, d_k)).transpose(1, 2)
        torch.testing.assert_close(mine, split)
    assert_nothing_changed(run)


@pytest.mark.parametrize("context", CONTEXTS)
def test_attention_to_something_else_is_told_from_attention_to_itself(context: Callable) -> None:
    x, y = torch.randn(2, 5, 24), torch.randn(2, 7, 24)
    alone = nn.MultiheadAttention(24, 4, batch_first=True).eval()
    layer = nn.TransformerDecoderLayer(24, 4, 32, batch_first=True)
    decoder = nn.TransformerDecoder(layer, 1).eval()

    def kinds(model: nn.Module, *inputs: Tensor) -> list[str]:
        return [call.kind for call in observe(lambda: model(*inputs), model, context).calls]

    assert kinds(alone, x, y, y) == ["cross"]
    assert kinds(alone, x, x, x) == ["self"]
    assert kinds(decoder, x, y) == ["self", "cross"]


def test_queries_of_padding_are_nothing_on_the_fast_path() -> None:
    layer = nn.TransformerEncoderLayer(24, 4, 40, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=True).eval()
    padding = torch.tensor([[False] * 6, [False] * 4 + [True] * 2])
    x = torch.randn(2, 6, 24)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The PyTorch API of nested tensors")
        run = observe(lambda: encoder(x, src_key_padding_mask=padding), encoder, torch.no_grad)
    assert not run.only.output[1, :, 4:].any()
    assert_explains_its_output(run.only)
