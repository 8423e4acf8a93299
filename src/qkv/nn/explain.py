"""What a module's forward pass computes, written down as a Calculation."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from qkv.core.calculation import Calculation
from qkv.core.mask import Mask
from qkv.core.operations import Operation
from qkv.core.steps import Recipe
from qkv.core.working import Working
from qkv.errors import ArgumentError, MaskError, ShapeError
from qkv.nn import attention_steps
from qkv.nn.attending import AttentionLayer
from qkv.nn.rotary import Angles

Batch = int | tuple[int, ...]

SYMBOLS = {"encodings": "X", "query encodings": "X", "key encodings": "Y", "value encodings": "Z",
           "memory": "Y"}  # fmt: skip
"""What encodings are called in equations, by the name of the step."""


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
    angles: Angles | None = None,
) -> Calculation:
    """Write down one example; the layer's own output for it stands beside it as `observed`.

    Keys default to the queries' encodings, values to the keys'; the angles of a rotary layer to
    those of the positions 0, 1, 2, …
    """
    enc_k = enc_q if enc_k is None else enc_k
    enc_v = enc_k if enc_v is None else enc_v
    same = enc_k is enc_q
    if same and key_tokens is not None:
        raise ArgumentError("key_tokens go with keys of their own; wanted tokens alone")
    recipe = recipe_of(layer, head)
    for name, x in (("enc_q", enc_q), ("enc_k", enc_k), ("enc_v", enc_v)):
        layer.check(name, x)
    queries, keys, values = (x[example_index(x.shape[:-2], batch)] for x in (enc_q, enc_k, enc_v))
    w = Working(_title(layer, recipe, mask, same))
    name = f"{recipe.inputs}{'encodings' if same else 'query encodings'}"
    x_q = x_k = x_v = write_encodings(w, name, queries, tokens)
    if not same:
        x_k = x_v = write_encodings(w, f"{recipe.inputs}key encodings", keys, key_tokens)
    if enc_v is not enc_k:
        labels = tokens if same else key_tokens
        x_v = write_encodings(w, f"{recipe.inputs}value encodings", values, labels)
    example = example_index(enc_q.shape[:-2], batch)
    outputs = _as_in_evaluation(layer, enc_q, enc_k, enc_v, mask, angles)
    seen = tuple(output[example] for output in outputs)
    masks = _masks(w, recipe, mask, (x_q, x_k), example)
    turn = write_turn(w, layer, angles, x_q, recipe.inputs, enc_q.shape[:-2], example)
    return _write(w, recipe, (x_q, x_k, x_v), seen, masks, turn)


@torch.no_grad()
def explain_written(
    w: Working, layer: AttentionLayer, queries: str, keys: str, mask: Mask | None
) -> Calculation:
    """Go on from encodings that are written down already, to the end of the layer."""
    x_q, x_k = w.tensor(queries), w.tensor(keys)
    recipe = recipe_of(layer)
    seen = _as_in_evaluation(layer, x_q, x_k, x_k, mask, None)
    masks = _masks(w, recipe, mask, (queries, keys), ())
    turn = write_turn(w, layer, None, queries, recipe.inputs, (), ())
    return _write(w, recipe, (queries, keys, keys), seen, masks, turn)


def recipe_of(layer: AttentionLayer, head: int | None = None, within: str = "") -> Recipe:
    """Return what a layer does, with the group that its heads share keys and values in."""
    group = layer.num_heads // layer.kv_heads
    return replace(layer.recipe(head), group=group, within=within)


def _write(
    w: Working,
    recipe: Recipe,
    encodings: tuple[str, str, str],
    seen: tuple[Tensor, ...],
    masks: list[str | None],
    turn: attention_steps.Turn | None,
) -> Calculation:
    """Write the steps of a layer; `seen` is what its real path gave, per head and joined."""
    per_head, joined = seen
    outputs = attention_steps.attention(w, recipe, *encodings, masks, turn)
    observed = {outputs[f"head {h.number}"]: per_head[h.number - 1] for h in recipe.heads}
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
    layer: AttentionLayer,
    enc_q: Tensor,
    enc_k: Tensor,
    enc_v: Tensor,
    mask: Mask | None,
    angles: Angles | None,
) -> tuple[Tensor, Tensor]:
    """Run the layer's own path without dropout: every head, and joined. Its mode stays."""
    training = layer.training
    layer.training = False
    try:
        per_head = layer.context(enc_q, enc_k, enc_v, mask, angles)
        return per_head, layer.join(per_head)
    finally:
        layer.training = training


def write_encodings(w: Working, path: str, x: Tensor, tokens: Sequence[str] | None) -> str:
    """Write down what goes in, one row a token; the symbol follows from the name.

    Raises:
        ArgumentError: there is no row, or there are more or fewer labels.
    """
    name = path.rpartition("/")[2]
    if tokens is not None and len(tokens) != len(x):
        raise ArgumentError(f"there are {len(tokens)} tokens for the {len(x)} rows of {name}")
    if not len(x):
        raise ArgumentError(f"{name} have no tokens; wanted one row a token")
    return w.given(path, x, symbol=SYMBOLS[name], rows=tokens, says="one row a token")


def write_masks(
    w: Working,
    recipe: Recipe,
    mask: Mask | None,
    encodings: tuple[str, str],
    example: tuple[int, ...],
    names: tuple[str, str],
) -> list[str | None]:
    """Write M down, once or for every head; return its names, one a head.

    Args:
        w: where it is written.
        recipe: the layer; M goes with each of its heads.
        mask: M, or None.
        encodings: names of those of queries and keys, a row and a column of M for each token.
        example: which one of the batch.
        names: of one M for all heads, and of one of several; `{}` is the number of the head.
    """
    if mask is None:
        return [None] * len(recipe.heads)
    rows, columns = (w.labels(encoding) for encoding in encodings)
    matrices = example_mask(mask, len(rows), len(columns), example)
    shared = len(matrices) == 1
    written: list[str | None] = []
    for head in recipe.heads:
        if shared and written:
            written.append(written[0])
            continue
        m = matrices[0 if shared else head.number - 1].to(w.tensor(encodings[0]))
        biased = bool((m.isfinite() & (m != 0)).any())
        says = "what is added to a similarity" if biased else "0 where a token may look"
        written.append(
            w.given(
                names[0] if shared else names[1].format(head.number), m,
                symbol="M", says=f"{says}, −∞ where not", blocks=True, rows=rows, columns=columns,
            )
        )  # fmt: skip
    return written


def _masks(
    w: Working,
    recipe: Recipe,
    mask: Mask | None,
    encodings: tuple[str, str],
    example: tuple[int, ...],
) -> list[str | None]:
    names = f"{recipe.inputs}mask", "head {}/mask" if recipe.joins else "mask"
    return write_masks(w, recipe, mask, encodings, example, names)


def write_turn(
    w: Working,
    layer: AttentionLayer,
    angles: Angles | None,
    x: str,
    inputs: str,
    axes: Sequence[int],
    example: tuple[int, ...],
) -> attention_steps.Turn | None:
    """Write the cosines and sines of a rotary layer's positions down; None where it has none.

    Args:
        w: where it is written.
        layer: the attention.
        angles: of the positions, with or without the batch axes; None for 0, 1, 2, …
        x: name of the encodings, one row a position.
        inputs: prefix of the names.
        axes, example: the batch axes, and which of them is written.
    """
    rotary, encodings = layer.rotary, w.tensor(x)
    if rotary is None:
        return None
    if angles is None:
        positions = torch.arange(len(encodings), device=encodings.device)
        angles = rotary.angles(positions, encodings.dtype)
    names = []
    for name, symbol, wave in (("cosines", "cos", angles.cos), ("sines", "sin", angles.sin)):
        one = wave if wave.dim() == 2 else wave.expand(*axes, *wave.shape[-3:])[example][0]
        says = f"the {name[:-1]} of each position's angles; pairs further right turn more slowly"
        names.append(
            w.given(
                f"{inputs}{name}", one.to(encodings), symbol=symbol, rows=w.labels(x), says=says
            )
        )
    halves = rotary.layout == "halves"
    operation = Operation.ROTATE_HALVES if halves else Operation.ROTATE_PAIRS
    return attention_steps.Turn(names[0], names[1], operation)


def _title(layer: AttentionLayer, recipe: Recipe, mask: Mask | None, same: bool) -> str:
    kind = ("Masked self-attention" if mask else "Self-attention") if same else "Cross-attention"
    if layer.num_heads == 1:
        return kind
    if not recipe.joins:
        return f"{kind}, head {recipe.heads[0].number} of {layer.num_heads}"
    return f"{kind}, {layer.num_heads} heads"
