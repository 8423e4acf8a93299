"""What a whole transformer layer computes, written down as one Calculation."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from qkv.core.calculation import Calculation
from qkv.core.mask import Mask
from qkv.core.steps import Projection
from qkv.core.working import Working
from qkv.errors import ArgumentError, ShapeError
from qkv.nn import attention_steps
from qkv.nn.attending import MaskLike, as_mask
from qkv.nn.attention import MultiHeadAttention
from qkv.nn.explain import (
    Batch,
    example_index,
    recipe_of,
    write_encodings,
    write_masks,
    write_turn,
)
from qkv.nn.feed_forward import FeedForward
from qkv.nn.layer_steps import FeedForward as FeedForwardSteps
from qkv.nn.layer_steps import Norm, feed_forward, normalise, residual
from qkv.nn.rotary import Angles

MOST = 10_000_000
"""Numbers at most: parameters are written down too, and all of it is recomputed and rounded."""

DIGITS = "₀₁₂₃"


class Layer(Protocol):
    """The parts that every layer has; one that looks at a memory has `cross` and `cross_norm`."""

    attention: MultiHeadAttention
    attention_norm: nn.Module
    feed_forward: FeedForward
    feed_forward_norm: nn.Module
    norm_first: bool


@torch.no_grad()
def explain_layer(
    layer: nn.Module,
    x: Float[Tensor, "*batch tokens n_embed"],
    memory: Float[Tensor, "*batch keys n_embed"] | None = None,
    mask: MaskLike = False,
    *,
    memory_mask: MaskLike = False,
    tokens: Sequence[str] | None = None,
    memory_tokens: Sequence[str] | None = None,
    batch: Batch = 0,
    angles: Angles | None = None,
) -> Calculation:
    """Write down one example; what the layer and its parts really gave stands beside it.

    Args:
        layer: an `EncoderLayer` or a `DecoderLayer`.
        x: what goes into it.
        memory: what the encoder gave, for a layer with cross-attention.
        mask, memory_mask: who may look at whom, of x and of the memory.
        tokens, memory_tokens: labels of the rows.
        batch: which example.
        angles: of a rotary layer's positions; by default 0, 1, 2, …

    Raises:
        ArgumentError: the layer is too large to be written down, or holds what cannot be.
        ShapeError, MaskError: what the layer itself raises.
    """
    mask, memory_mask = as_mask(mask), as_mask(memory_mask)
    _check_size(layer, x, memory)
    example = example_index(x.shape[:-2], batch)
    inputs: dict[str, Any] = {"mask": mask, "angles": angles}
    if memory is not None:
        inputs |= {"memory": memory, "memory_mask": memory_mask}
    with _observed(layer) as seen:
        layer(x, **inputs)  # first: it says what does not fit
    w = Working(_title(layer, memory))
    state, told = write_encodings(w, "inputs/encodings", x[example], tokens), None
    if memory is not None:
        rows = memory[example_index(memory.shape[:-2], batch)]
        told = write_encodings(w, "inputs/memory", rows, memory_tokens)
    writer = _Writer(layer, w, told)
    masks = writer.masks(state, state, mask, example, "mask")
    memory_masks = writer.masks(state, told or state, memory_mask, example, "memory mask")
    turn = write_turn(w, writer.own, angles, state, "inputs/", x.shape[:-2], example)
    state = writer.attention(state, masks, turn)
    if told is not None:
        state = writer.cross_attention(state, told, memory_masks)
    state = writer.feed_forward(state)
    steps = {**writer.outputs, "": state}
    return w.finish({step: seen[part][example] for part, step in steps.items()})


class _Writer:
    """Writes the parts of a layer, one after the other.

    Attributes:
        w: where they are written.
        own: the self-attention.
        outputs: the step that each submodule's output must equal, by the submodule's name.
    """

    def __init__(self, layer: nn.Module, w: Working, memory: str | None) -> None:
        self.module, self.layer, self.w = layer, cast(Layer, layer), w
        self.own = self.layer.attention
        self.outputs: dict[str, str] = {}
        self.within = "" if memory is None else "self-attention/"
        self.number = 0

    def masks(
        self, x: str, keys: str, mask: Mask | None, example: tuple[int, ...], name: str
    ) -> list[str | None]:
        """Write who may look at whom; None for each head where there is no mask."""
        names = f"inputs/{name}", f"inputs/{name} of head {{}}"
        recipe = recipe_of(self.own)
        return write_masks(self.w, recipe, mask, (x, keys), example, names)

    def attention(self, x: str, masks: list[str | None], turn: attention_steps.Turn | None) -> str:
        """Write self-attention and what is around it."""
        recipe = recipe_of(self.own, within=self.within)

        def part(x: str) -> str:
            return attention_steps.attention(self.w, recipe, x, x, x, masks, turn)["output"]

        return self._around(x, "attention", part)

    def cross_attention(self, x: str, memory: str, masks: list[str | None]) -> str:
        """Write the look at the memory and what is around it."""
        recipe = recipe_of(cast(MultiHeadAttention, self.module.cross), within="cross-attention/")

        def part(x: str) -> str:
            return attention_steps.attention(self.w, recipe, x, memory, memory, masks)["output"]

        return self._around(x, "cross", part)

    def feed_forward(self, x: str) -> str:
        """Write the feed-forward network and what is around it."""
        module = self.layer.feed_forward
        W1, W2 = _projection(module.W1), _projection(module.W2)
        W3 = None if module.W3 is None else _projection(module.W3)
        recipe = FeedForwardSteps(W1, W2, W3, module.activation)
        return self._around(
            x, "feed_forward", lambda x: feed_forward(self.w, x, recipe, "feed-forward/")
        )

    def _around(self, x: str, name: str, part: Callable[[str], str]) -> str:
        """norm(x + part(x)), or x + part(norm(x)) where the norm comes first."""
        self.number += 1
        section, digit = f"norm {self.number}/", DIGITS[self.number]
        norm = norm_recipe(f"{name}_norm", getattr(self.module, f"{name}_norm"), self.w.tensor(x))
        if self.layer.norm_first:
            normed = normalise(self.w, x, norm, f"N{digit}", section)
            change = part(normed)
            state = residual(self.w, x, change, f"X{digit}", _section(change))
        else:
            change = part(x)
            both = residual(self.w, x, change, f"R{digit}", _section(change))
            normed = state = normalise(self.w, both, norm, f"X{digit}", section)
        self.outputs |= {name: change, f"{name}_norm": normed}
        return state


def norm_recipe(name: str, module: nn.Module, like: Tensor) -> Norm:
    """Return what a normalisation does.

    Raises:
        ArgumentError: it is neither a LayerNorm nor an RMSNorm.
    """
    if isinstance(module, nn.LayerNorm):
        return Norm(module.eps, module.weight, module.bias, centred=True)
    if isinstance(module, nn.RMSNorm):
        eps = torch.finfo(like.dtype).eps if module.eps is None else module.eps
        return Norm(eps, module.weight, None, centred=False)
    raise ArgumentError(
        f"{name} is a {type(module).__name__}; what can be written down is nn.LayerNorm and "
        f"nn.RMSNorm"
    )


@contextmanager
def _observed(layer: nn.Module) -> Iterator[dict[str, Tensor]]:
    """Run a layer without dropout and keep what its parts give, by name; its own is ""."""
    modes = {module: module.training for module in layer.modules()}
    seen: dict[str, Tensor] = {}

    def keep(name: str) -> Any:
        return lambda module, arguments, output: seen.update({name: output})

    hooks = [layer.register_forward_hook(keep(""))]
    hooks += [part.register_forward_hook(keep(name)) for name, part in layer.named_children()]
    layer.eval()
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()
        for module, mode in modes.items():
            module.training = mode


def _check_size(layer: nn.Module, x: Tensor, memory: Tensor | None) -> None:
    """Refuse what are no rows, and more numbers than anybody can use."""
    for name, rows in (("x", x), ("memory", memory)):
        if rows is not None and rows.dim() < 2:
            raise ShapeError(f"{name} is {tuple(rows.shape)}; wanted (*batch, tokens, n_embed)")
    parts = cast(Layer, layer)
    tokens, width = x.shape[-2:]
    looked_at = tokens + (0 if memory is None else memory.shape[-2])
    parameters = sum(parameter.numel() for parameter in layer.parameters())
    values = 12 * parts.feed_forward.W1.out_features + 30 * width
    weights = 8 * parts.attention.num_heads * looked_at
    count = parameters + tokens * (values + weights)
    if count > MOST:
        raise ArgumentError(
            f"the layer would take about {count:,} numbers, {parameters:,} of them parameters; a "
            f"whole layer is written down up to {MOST:,}: choose fewer tokens or a smaller "
            f"model, or one head (explain with head=, in the command --head)"
        )


def _title(layer: nn.Module, memory: Tensor | None) -> str:
    from qkv.nn.layers import DecoderLayer

    parts = cast(Layer, layer)
    kind = "Decoder" if isinstance(layer, DecoderLayer) else "Encoder"
    heads = parts.attention.num_heads
    order = "pre-norm" if parts.norm_first else "post-norm"
    bridge = ", with cross-attention" if memory is not None else ""
    return f"{kind} layer{bridge}, {heads} head{'s' if heads > 1 else ''}, {order}"


def _projection(linear: nn.Linear) -> Projection:
    return Projection(linear.weight, linear.bias)


def _section(name: str) -> str:
    return f"{name.rpartition('/')[0]}/"
