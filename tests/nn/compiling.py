"""Compiles and exports our modules as a user's program does: run as
`python compiling.py BACKEND CASE…`.

A process of its own, because the enforcement of shapes that the tests switch on is traced too.
Prints a JSON object: for each case the largest difference from the module that is not compiled,
or what went wrong.
"""

import json
import sys
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from qkv import Mask, MaskedSelfAttention, MultiHeadAttention, SelfAttention

CASES: dict[str, tuple[object, dict[str, object]]] = {
    "no mask": (False, {}),
    "causal": (True, {}),
    "causal and padding": (Mask.causal() & Mask.padding([5, 3]), {}),
    "all padding": (Mask.padding([0, 5]), {}),
    "window, grouped": (Mask.window(2), {"num_heads": 4, "kv_heads": 2}),
    "documents": (Mask.documents(torch.tensor([0, 0, 1, 1, 1])), {}),
    "unequal widths": (True, {"d_k": 3, "d_v": 6, "bias": True}),
    "soft cap": (True, {"softcap": 2.0}),
    "trained bias": (Mask.bias(torch.zeros(1, 1, 5, 5).requires_grad_()), {}),
}


class Block(nn.Module):
    """A causal self-attention, as a model holds it."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = MultiHeadAttention(4, num_heads=2, n_out=4)

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(x, x, x, mask=True)


def compiled(mask: object, options: dict[str, object], backend: str) -> float:
    layer = MultiHeadAttention(4, n_out=4, **{"num_heads": 2, **options})
    fast = torch.compile(layer, fullgraph=True, backend=backend)
    x = torch.randn(2, 5, 4)
    results = []
    for run in (layer, fast):
        out = run(x, x, x, mask=mask)
        gradients = torch.autograd.grad(out.square().sum(), list(layer.parameters()))
        results.append(torch.cat([t.flatten() for t in (out, *gradients)]))
    with torch.no_grad():
        still = (fast(x, x, x, mask=mask) - layer(x, x, x, mask=mask)).abs().max()
    return max((results[0] - results[1]).abs().max().item(), still.item())


def single(backend: str) -> float:
    worst = 0.0
    for layer in (SelfAttention(4), MaskedSelfAttention(4, mask=True)):
        x = torch.randn(5, 4)
        fast = torch.compile(layer, fullgraph=True, backend=backend)
        worst = max(worst, (fast(x) - layer(x)).abs().max().item())
    return worst


def exported() -> float:
    block = Block().eval()
    sizes = {0: torch.export.Dim("batch"), 1: torch.export.Dim("tokens", min=2, max=64)}
    program = torch.export.export(block, (torch.randn(2, 5, 4),), dynamic_shapes=(sizes,))
    if "scaled_dot_product_attention" not in str(program.graph):
        raise AssertionError("the graph holds no fused attention")
    x = torch.randn(3, 9, 4)
    return (program.module()(x) - block(x)).abs().max().item()


def attempted(case: Callable[[], float]) -> float | str:
    torch.compiler.reset()
    torch.manual_seed(0)
    try:
        return case()
    except Exception as error:  # the report names it, whatever it is
        return f"{type(error).__name__}: {error}"[:2000]


def report(backend: str, names: list[str]) -> dict[str, float | str]:
    cases: dict[str, Callable[[], float]] = {
        name: partial(compiled, mask, options, backend) for name, (mask, options) in CASES.items()
    }
    cases |= {"single heads": partial(single, backend), "export": exported}
    return {name: attempted(cases[name]) for name in names or cases}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(report(sys.argv[1], sys.argv[2:])))
