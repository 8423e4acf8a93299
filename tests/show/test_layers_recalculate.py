"""LibreOffice computes every cell of a whole layer's workbook and lands on NumPy's numbers."""

from functools import partial

import pytest
import torch
from torch import nn

from qkv.core.calculation import Calculation
from qkv.core.mask import Mask
from qkv.core.operations import INPUTS
from qkv.nn.explain_layer import explain_layer
from qkv.nn.layers import DecoderLayer, EncoderLayer
from qkv.nn.rotary import Rotary
from tests.show import libreoffice

WORDS = ["draw", "a", "map"]


def drawn(layer: nn.Module) -> nn.Module:
    """Make γ and β random too: with 1 and 0 a workbook without them would be the same."""
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return layer


def encoder() -> Calculation:
    """The encoder of BERT: post-norm, LayerNorm, GELU by erf, biases."""
    return explain_layer(drawn(EncoderLayer(6, 2, 8)), torch.randn(3, 6), tokens=WORDS)


def llama() -> Calculation:
    """Pre-norm, RMSNorm, rotary positions, grouped heads, SwiGLU, no biases."""
    layer = DecoderLayer(
        8, 4, 6, cross=False, kv_heads=2, d_head=6, norm=partial(nn.RMSNorm, eps=1e-5),
        norm_first=True, activation="silu", gated=True, bias=False, feed_forward_bias=False,
        rotary=Rotary(6),
    )  # fmt: skip
    return explain_layer(drawn(layer), torch.randn(2, 5, 8), mask=True, batch=1)


def gpt() -> Calculation:
    """Pre-norm, LayerNorm, GELU by tanh; and a part of each head that turns, in pairs."""
    layer = DecoderLayer(
        6, 2, 8, cross=False, norm_first=True, activation="gelu_tanh", d_head=6,
        rotary=Rotary(6, layout="pairs", part=4),
    )  # fmt: skip
    return explain_layer(drawn(layer), torch.randn(3, 6), mask=True, tokens=WORDS)


def bridge() -> Calculation:
    """The original decoder: post-norm, ReLU, cross-attention over a memory with padding."""
    layer = drawn(DecoderLayer(6, 3, 5, activation="relu"))
    hidden = Mask.padding([4, 2])
    return explain_layer(
        layer, torch.randn(2, 3, 6), torch.randn(2, 4, 6), mask=True, memory_mask=hidden,
        batch=1, tokens=WORDS, memory_tokens=["dibuja", "un", "mapa", "."],
    )  # fmt: skip


@pytest.mark.slow
def test_every_cell_of_a_whole_layer_is_recalculated(tmp_path):
    layers = {made.__name__: made() for made in (encoder, llama, gpt, bridge)}
    for calculation in layers.values():
        calculation.verify()
    libreoffice.assert_all_recalculate(layers, tmp_path)


def test_a_step_of_a_layer_can_be_left_to_a_person(tmp_path):
    told = encoder()
    told.to_excel(tmp_path / "layer.xlsx", blank="variance")
    assert (tmp_path / "layer.xlsx").stat().st_size > 10_000


@pytest.mark.parametrize("made", [encoder, llama, gpt, bridge])
def test_every_given_number_is_used(made):
    told = made()
    used = {operand for step in told for operand in step.operands}
    assert {step.name for step in told if step.operation in INPUTS} <= used
