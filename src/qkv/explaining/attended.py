"""What goes into the attentions of a model while it runs, whatever its family."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from inspect import signature
from typing import Any, cast

import torch
from torch import Tensor, nn

from qkv.core.calculation import Calculation
from qkv.core.mask import Mask
from qkv.core.recompute import Array
from qkv.nn.attending import as_mask
from qkv.nn.attention import MultiHeadAttention
from qkv.nn.explain import example_mask, explain
from qkv.nn.explain_layer import explain_layer
from qkv.nn.layers import EncoderLayer
from qkv.nn.rotary import Angles
from qkv.weights.matrix import Weights

CROSS = "cross"
"""The kind of attention in which a decoder looks at what an encoder gave."""

Labels = Sequence[str]


@dataclass(frozen=True, eq=False)
class Attended:
    """One attention as it ran, and the layer around it; one example, the first of a batch.

    Attributes:
        attention: the module.
        enc_q, enc_k: what queries, and keys and values, were made of.
        mask: who could look at whom.
        angles: of rotary positions.
        layer: the layer that the attention is a part of.
        inputs: what went into that layer, by the names of its `forward`.
    """

    attention: MultiHeadAttention
    enc_q: Tensor
    enc_k: Tensor
    mask: Mask | None
    angles: Angles | None
    layer: EncoderLayer
    inputs: Mapping[str, Any]

    def explain(self, head: int, tokens: Labels, key_tokens: Labels) -> Calculation:
        """Write one head down, counted from 0, without the projection behind it."""
        own = self.enc_k is self.enc_q
        return explain(
            self.attention, self.enc_q, self.enc_k, self.enc_k, self.mask, head=head,
            tokens=tokens, key_tokens=None if own else key_tokens, angles=self.angles,
        )  # fmt: skip

    def explain_layer(self, tokens: Labels, memory_tokens: Labels) -> Calculation:
        """Write the whole layer down."""
        given = dict(self.inputs)
        x = given.pop("x", None) if "x" in given else given.pop("y")
        given.pop("cache", None)
        labels = memory_tokens if given.get("memory") is not None else None
        return explain_layer(self.layer, x, **given, tokens=tokens, memory_tokens=labels)

    @torch.no_grad()
    def weights(self) -> Array:
        """softmax(Q Kᵀ / √d_k + M) of every head: (heads, queries, keys)."""
        a = self.attention
        q, k, _ = a.project(self.enc_q[:1], self.enc_k[:1], self.enc_k[:1], self.angles)
        mask = None
        if self.mask is not None:
            mask = Mask.bias(example_mask(self.mask, q.shape[-2], k.shape[-2], (0,))[None].to(q))
        weights = Weights(q, k, mask=mask, scale=a.scale, softcap=a.softcap)
        whole: Array = weights.dense(weights.shape.numel())[0].to("cpu", torch.float64).numpy()
        return whole


def attended(model: nn.Module, *inputs: Tensor) -> dict[str, tuple[Attended, ...]]:
    """Run a model once; return its attentions layer by layer, by their kind.

    The kinds are "encoder", "decoder" and "cross", as far as the model has them.
    """
    calls: dict[nn.Module, dict[str, Any]] = {}

    def keep(module: nn.Module, args: tuple[Any, ...], named: dict[str, Any]) -> None:
        calls[module] = dict(signature(module.forward).bind(*args, **named).arguments)

    watched = [m for m in model.modules() if isinstance(m, EncoderLayer | MultiHeadAttention)]
    hooks = [module.register_forward_pre_hook(keep, with_kwargs=True) for module in watched]
    try:
        with torch.no_grad():
            model(*inputs)
    finally:
        for hook in hooks:
            hook.remove()
    found: dict[str, tuple[Attended, ...]] = {}
    towers = cast(Mapping[str, nn.Module], model.towers)
    for name, tower in towers.items():
        layers = cast(Sequence[EncoderLayer], tower.layers)
        found[name] = tuple(_attended(layer, "attention", calls) for layer in layers)
        if getattr(layers[0], CROSS, None) is not None:
            found[CROSS] = tuple(_attended(layer, CROSS, calls) for layer in layers)
    return found


def _attended(
    layer: EncoderLayer, name: str, calls: Mapping[nn.Module, dict[str, Any]]
) -> Attended:
    module = cast(MultiHeadAttention, getattr(layer, name))
    call = calls[module]
    mask = as_mask(call.get("mask", False))
    angles = call.get("angles")
    return Attended(module, call["enc_q"], call["enc_k"], mask, angles, layer, calls[layer])
