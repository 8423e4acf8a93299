"""Which attentions a recording holds, as the command tells them."""

from dataclasses import replace

import torch
from torch import nn

from qkv import watch
from qkv.cli.attentions import attentions_of


def test_the_kind_of_a_module_is_what_any_of_its_calls_says():
    attention = nn.MultiheadAttention(8, 2, batch_first=True)
    x = torch.randn(1, 5, 8)
    with watch(attention) as seen:
        for _ in range(3):
            attention(x, x, x)
    calls = list(seen)
    calls[0].revise(lambda operands: replace(operands, same_source=None))
    assert calls[0].kind == "unknown"
    (one,) = attentions_of(seen)
    assert (one.kind, one.facts.kind) == ("self", "self")
