"""What a module's forward pass computes, written down as a Calculation."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from qkv.core import steps
from qkv.core.calculation import Calculation
from qkv.core.mask import Mask
from qkv.core.working import Working
from qkv.errors import ArgumentError, MaskError, ShapeError
from qkv.nn.attending import AttentionLayer

Batch = int | tuple[int, ...]


@torch.no_grad()
def explain(
    layer: AttentionLayer,
    enc_q: Tensor,
    enc_k: Tensor | None,
    enc_v: Tensor | None,
    mask: Mask | None,
    *,
    head: int | None = None,
    tokens: Sequence[str] | None = None,
    key_tokens: Sequence[str] | None = None,
    batch: Batch = 0,
) -> Calculation:
    """Write down one example; the layer's own output for it stands beside it as `observed`.

    Keys default to the queries' encodings, values to the keys'.
    """
    enc_k = enc_q if enc_k is None else enc_k
    enc_v = enc_k if enc_v is None else enc_v
    same = enc_k is enc_q
    if same and key_tokens is not None:
        raise ArgumentError("key_tokens go with keys of their own; wanted tokens alone")
    recipe = layer.recipe(head)
    for name, x in (("enc_q", enc_q), ("enc_k", enc_k), ("enc_v", enc_v)):
        layer.check(name, x)
    queries, keys, values = (x[example_index(x.shape[:-2], batch)] for x in (enc_q, enc_k, enc_v))
    w = Working(_title(layer, recipe, mask, same))
    x_q = _encodings(w, recipe, "encodings" if same else "query encodings", queries, tokens)
    x_k = x_v = x_q
    if not same:
        x_k = x_v = _encodings(w, recipe, "key encodings", keys, key_tokens)
    if enc_v is not enc_k:
        labels = tokens if same else key_tokens
        x_v = _encodings(w, recipe, "value encodings", values, labels)
    example = example_index(enc_q.shape[:-2], batch)
    outputs = _as_in_evaluation(layer, enc_q, enc_k, enc_v, mask)
    seen = tuple(output[example] for output in outputs)
    matrices = None if mask is None else example_mask(mask, len(queries), len(keys), example)
    return _write(w, recipe, (x_q, x_k, x_v), seen, matrices)


@torch.no_grad()
def explain_written(
    w: Working, layer: AttentionLayer, queries: str, keys: str, mask: Mask | None
) -> Calculation:
    """Go on from encodings that are written down already, to the end of the layer."""
    x_q, x_k = w.tensor(queries), w.tensor(keys)
    seen = _as_in_evaluation(layer, x_q, x_k, x_k, mask)
    matrices = None if mask is None else example_mask(mask, len(x_q), len(x_k), ())
    return _write(w, layer.recipe(), (queries, keys, keys), seen, matrices)


def _write(
    w: Working,
    recipe: steps.Recipe,
    encodings: tuple[str, str, str],
    seen: tuple[Tensor, ...],
    matrices: Float[Tensor, "_ queries keys"] | None,
) -> Calculation:
    """Write the steps of a layer.

    `seen` is what its real path gave, for every head and joined; `matrices` are M.
    """
    per_head, joined = seen
    numbers = [head.number - 1 for head in recipe.heads]
    names = _masks(w, recipe, matrices, numbers, encodings[:2])
    outputs = steps.layer(w, recipe, *encodings, names)
    observed = {outputs[f"head {number + 1}"]: per_head[number] for number in numbers}
    if recipe.joins:
        observed[outputs["output"]] = joined
    return w.finish(observed)


def example_index(axes: Sequence[int], batch: Batch) -> tuple[int, ...]:
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


def example_mask(
    mask: Mask, queries: int, keys: int, example: tuple[int, ...]
) -> Float[Tensor, "_ queries keys"]:
    """Return M of one example; axes (heads or 1, queries, keys)."""
    whole = mask.matrix(queries, keys)
    if whole.dim() == 2:
        return whole[None]
    axes = whole.shape[:-3]
    aligned = ((0,) * len(axes) + example)[len(example) :]  # broadcast as tensors: from the right
    for axis, i in zip(axes, aligned, strict=True):
        if axis != 1 and not -axis <= i < axis:
            raise MaskError(f"mask has the batch axes {tuple(axes)}, but not the example {example}")
        whole = whole[0 if axis == 1 else i]
    return whole


def _as_in_evaluation(
    layer: AttentionLayer, enc_q: Tensor, enc_k: Tensor, enc_v: Tensor, mask: Mask | None
) -> tuple[Tensor, Tensor]:
    """Run the layer's own path without dropout: every head, and joined. Its mode stays."""
    training = layer.training
    layer.training = False
    try:
        per_head = layer.context(enc_q, enc_k, enc_v, mask)
        return per_head, layer.join(per_head)
    finally:
        layer.training = training


def _encodings(
    w: Working, recipe: steps.Recipe, name: str, x: Tensor, tokens: Sequence[str] | None
) -> str:
    if tokens is not None and len(tokens) != len(x):
        raise ArgumentError(f"there are {len(tokens)} tokens for the {len(x)} rows of {name}")
    if not len(x):
        raise ArgumentError(f"{name} have no tokens; wanted one row a token")
    symbol = {"encodings": "X", "query encodings": "X", "key encodings": "Y"}.get(name, "Z")
    return w.given(f"{recipe.inputs}{name}", x, symbol=symbol, rows=tokens, says="one row a token")


def _masks(
    w: Working,
    recipe: steps.Recipe,
    matrices: Tensor | None,
    heads: list[int],
    encodings: tuple[str, ...],
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


def _title(layer: AttentionLayer, recipe: steps.Recipe, mask: Mask | None, same: bool) -> str:
    kind = ("Masked self-attention" if mask else "Self-attention") if same else "Cross-attention"
    if layer.num_heads == 1:
        return kind
    if not recipe.joins:
        return f"{kind}, head {recipe.heads[0].number} of {layer.num_heads}"
    return f"{kind}, {layer.num_heads} heads"
