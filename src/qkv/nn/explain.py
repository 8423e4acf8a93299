"""What a module's forward pass computes, written down as a Calculation."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from qkv.core import steps
from qkv.core.calculation import Calculation
from qkv.core.mask import Mask
from qkv.core.working import Working
from qkv.errors import ArgumentError, MaskError, ShapeError

if TYPE_CHECKING:
    from qkv.nn.attending import AttentionLayer


@torch.no_grad()
def explain(
    layer: "AttentionLayer",
    enc_q: Tensor,
    enc_k: Tensor,
    enc_v: Tensor,
    mask: Mask | None,
    *,
    head: int | None = None,
    tokens: Sequence[str] | None = None,
    key_tokens: Sequence[str] | None = None,
    batch: int | tuple[int, ...] = 0,
) -> Calculation:
    """Write down one example; the layer's own fused output stands beside it as `observed`."""
    recipe = layer.recipe(head)
    for name, x in (("enc_q", enc_q), ("enc_k", enc_k), ("enc_v", enc_v)):
        layer.check(name, x)
    example = example_index(enc_q.shape[:-2], batch)
    queries, keys, values = (x[example_index(x.shape[:-2], batch)] for x in (enc_q, enc_k, enc_v))
    same = enc_k is enc_q
    key_tokens = tokens if same and key_tokens is None else key_tokens
    w = Working(_title(layer, recipe, mask, same))
    x_q = _encodings(w, recipe, "encodings" if same else "query encodings", queries, tokens)
    x_k = x_v = x_q
    if not same:
        x_k = x_v = _encodings(w, recipe, "key encodings", keys, key_tokens)
    if enc_v is not enc_k:
        x_v = _encodings(w, recipe, "value encodings", values, key_tokens)
    return write(w, layer, recipe, (x_q, x_k, x_v), mask, example)


@torch.no_grad()
def write(
    w: Working,
    layer: "AttentionLayer",
    recipe: steps.Recipe,
    encodings: tuple[str, str, str],
    mask: Mask | None,
    batch: int | tuple[int, ...] = 0,
) -> Calculation:
    """Go on from encodings that are written down already, to the end of the layer."""
    x_q, x_k, x_v = encodings
    q, k, v = (w.tensor(name) for name in encodings)
    numbers = [head.number - 1 for head in recipe.heads]
    matrices = None if mask is None else _matrices(mask, len(q), len(k), batch)
    names = _masks(w, recipe, matrices, numbers, (x_q, x_k))
    outputs = steps.layer(w, recipe, x_q, x_k, x_v, names)
    example = None if matrices is None else Mask.bias(matrices[None])
    observed = _observed(layer, recipe, (q, k, v), example, outputs)
    return w.finish(observed)


def example_index(axes: Sequence[int], batch: int | tuple[int, ...]) -> tuple[int, ...]:
    """Return one number for each batch axis; those that `batch` leaves out are 0.

    Raises:
        ShapeError: there is no such example.
    """
    index = (batch,) if isinstance(batch, int) else batch
    if not axes and index == (0,):
        return ()
    index = (*index, *(0 for _ in axes[len(index) :]))
    if len(index) != len(axes) or any(not -n <= i < n for i, n in zip(index, axes, strict=True)):
        raise ShapeError(f"batch is {batch}, but the batch axes are {tuple(axes)}")
    return index


def _encodings(
    w: Working, recipe: steps.Recipe, name: str, x: Tensor, tokens: Sequence[str] | None
) -> str:
    if tokens is not None and len(tokens) != len(x):
        raise ArgumentError(f"there are {len(tokens)} tokens for the {len(x)} rows of {name}")
    if not len(x):
        raise ArgumentError(f"{name} have no tokens; wanted one row a token")
    symbol = {"encodings": "X", "query encodings": "X", "key encodings": "Y"}.get(name, "Z")
    return w.given(f"{recipe.inputs}{name}", x, symbol=symbol, rows=tokens, says="one row a token")


def _matrices(mask: Mask, queries: int, keys: int, batch: int | tuple[int, ...]) -> Tensor:
    """M of one example, axes (heads or 1, queries, keys)."""
    whole = mask.matrix(queries, keys)
    if whole.dim() == 2:
        return whole[None]
    axes, index = whole.shape[:-3], (batch,) if isinstance(batch, int) else batch
    aligned = ((0,) * len(axes) + index)[len(index) :]  # broadcast as tensors are, from the right
    for axis, i in zip(axes, aligned, strict=True):
        if axis != 1 and not -axis <= i < axis:
            raise MaskError(f"mask has the batch axes {tuple(axes)}, but not the example {batch}")
        whole = whole[0 if axis == 1 else i]
    return whole


def _masks(
    w: Working,
    recipe: steps.Recipe,
    matrices: Tensor | None,
    heads: list[int],
    encodings: tuple[str, str],
) -> list[str | None]:
    if matrices is None:
        return [None] * len(heads)
    rows, columns = (w.labels(name) for name in encodings)
    says = "0 where a token may look, −∞ where not"
    like = w.tensor(encodings[0])
    names: list[str | None] = []
    for head in heads:
        shared = len(matrices) == 1
        if shared and names:
            names.append(names[0])
            continue
        section = recipe.inputs if shared or not recipe.joins else f"head {head + 1}/"
        m = matrices[0 if shared else head].to(like)
        names.append(
            w.given(
                f"{section}mask", m, symbol="M", says=says, blocks=True, rows=rows, columns=columns
            )
        )
    return names


def _observed(
    layer: "AttentionLayer",
    recipe: steps.Recipe,
    encodings: tuple[Tensor, Tensor, Tensor],
    mask: Mask | None,
    outputs: dict[str, str],
) -> dict[str, Tensor]:
    """Run the layer's own path, as in evaluation, and name its results as the steps are named."""
    training = layer.training
    layer.training = False
    try:
        per_head = layer.context(*encodings, mask)
    finally:
        layer.training = training
    observed = {outputs[f"head {head.number}"]: per_head[head.number - 1] for head in recipe.heads}
    if recipe.joins:
        observed[outputs["output"]] = layer.join(per_head)
    return observed


def _title(layer: "AttentionLayer", recipe: steps.Recipe, mask: Mask | None, same: bool) -> str:
    kind = ("Masked self-attention" if mask else "Self-attention") if same else "Cross-attention"
    if layer.num_heads == 1:
        return kind
    if not recipe.joins:
        return f"{kind}, head {recipe.heads[0].number} of {layer.num_heads}"
    return f"{kind}, {layer.num_heads} heads"
