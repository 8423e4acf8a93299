"""A teacher's own numbers: encodings, weights and mask from JSON or from a workbook of ours."""

from math import isclose
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from qkv.core.calculation import Calculation
from qkv.core.mask import Mask
from qkv.core.operations import BLOCKED, Operation
from qkv.errors import ArgumentError
from qkv.explaining.given_file import FORM, Given, read_given
from qkv.explaining.tensors import explain_tensors
from qkv.explaining.text import check_size
from qkv.nn.attention import Attention, MultiHeadAttention

PROJECTED = ("queries", "keys", "values")
WEIGHTS = ("WQ", "WK", "WV", "bQ", "bK", "bV")
BEHIND = ("WO", "bO")
ENCODED = tuple(
    f"{kind}{name}"
    for kind in ("", "query ", "key ", "value ")
    for name in ("encodings", "embeddings", "positions")
)


def explain_given(
    path: Path, *, mask: bool = False, num_heads: int | None = None, seed: int = 42
) -> Calculation:
    """Write down attention with the numbers in a file; weights it lacks come from the seed.

    Args:
        path: JSON, or a workbook that qkv wrote and a person may have changed.
        mask: whether a token sees only what precedes it, where the file has no mask of its own.
        num_heads: heads, where the file has no weights of them; 1 by default.
        seed: what weights are drawn from that the file lacks.

    Raises:
        FileError: it is not there, or neither JSON nor a workbook of ours.
        ArgumentError: what it holds does not make an attention calculation, or an argument says
            otherwise than the file.
    """
    given = read_given(path)
    if all(given.find(name) for name in PROJECTED):
        given.refuse_others(*PROJECTED, "mask")
        heads = _heads(given, PROJECTED, num_heads)
        calculation = _explain_projected(given, heads, _mask(given, heads, mask))
    else:
        encodings = _encodings(given, "", "query ")
        if encodings is None:
            raise ArgumentError(f"{path} holds no encodings; {FORM}")
        given.refuse_others(*ENCODED, *WEIGHTS, *BEHIND, "mask")
        heads = _heads(given, WEIGHTS, num_heads)
        layer = _layer(given, heads, encodings.shape[-1], seed)
        calculation = _explain_encoded(given, layer, encodings, _mask(given, heads, mask))
    _check_constants(given, calculation)
    _check_range(given, calculation)
    return calculation


def _heads(given: Given, names: tuple[str, ...], num_heads: int | None) -> list[str]:
    """Sections of the heads: those in the file, or as many as are asked for."""
    found = given.prefixes(*names)
    if not found:
        return [""] if num_heads in (None, 1) else [f"head {i + 1}/" for i in range(num_heads)]
    if num_heads not in (None, len(found)):
        raise ArgumentError(
            f"num_heads is {num_heads}, but {given.source} holds the numbers of {len(found)}"
        )
    if "" in found and len(found) > 1:
        raise ArgumentError(f"{given.source} holds numbers in heads and beside them")
    return found


def _explain_projected(given: Given, heads: list[str], mask: Mask | None) -> Calculation:
    q, k, v = (_stacked(given, [f"{head}{name}" for head in heads]) for name in PROJECTED)
    check_size(q.shape[-2], k.shape[-2], len(heads), cut=False)
    return explain_tensors(
        q, k, v, mask=mask, scale=_constant(given, "scale"), softcap=_constant(given, "cap"),
        tokens=given.tokens, key_tokens=given.key_tokens,
    )  # fmt: skip


def _explain_encoded(
    given: Given, layer: Attention | MultiHeadAttention, encodings: Tensor, mask: Mask | None
) -> Calculation:
    keys, values = _encodings(given, "key "), _encodings(given, "value ")
    if keys is None and given.key_tokens is not None:
        raise ArgumentError('there are "key tokens", but no "key encodings" for them')
    if keys is None and values is not None:
        keys = encodings
    check_size(len(encodings), len(encodings if keys is None else keys), layer.num_heads, cut=False)
    return layer.explain(
        encodings, keys, values, mask=False if mask is None else mask,
        tokens=given.tokens, key_tokens=given.key_tokens,
    )  # fmt: skip


def _encodings(given: Given, *kinds: str) -> Tensor | None:
    """Encodings as they stand, or embeddings with positions added."""
    found = given.tensor(*(f"{kind}encodings" for kind in kinds))
    if found is not None:
        return found
    embeddings = given.tensor(*(f"{kind}embeddings" for kind in kinds))
    positions = given.tensor(*(f"{kind}positions" for kind in kinds))
    if embeddings is None or positions is None:
        return None
    if embeddings.shape != positions.shape:
        raise ArgumentError(
            f"embeddings are {tuple(embeddings.shape)}, positions {tuple(positions.shape)}; "
            f"wanted the same"
        )
    return embeddings + positions


def _layer(
    given: Given, heads: list[str], n_embed: int, seed: int
) -> Attention | MultiHeadAttention:
    """A layer of the file's size, with its weights."""
    output = given.tensor("WO")
    if output is None and given.find("bO"):
        raise ArgumentError(f'{given.source} holds "bO" but no "WO"; the bias belongs behind it')
    sizes = {"d_k": given.tensor("WQ", "WK"), "d_v": given.tensor("WV")}
    options: dict[str, Any] = {name: len(w) for name, w in sizes.items() if w is not None}
    options |= {"scale": _constant(given, "scale"), "softcap": _constant(given, "cap")}
    options["bias"] = tuple(f"W{letter}" for letter in "QKVO" if given.find(f"b{letter}"))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if heads == [""] and output is None:
            layer: Attention | MultiHeadAttention = Attention(n_embed, **options)
        else:
            n_out = None if output is None else len(output)
            layer = MultiHeadAttention(n_embed, num_heads=len(heads), n_out=n_out, **options)
    _fill(layer, given, heads)
    return layer


@torch.no_grad()
def _fill(layer: Attention | MultiHeadAttention, given: Given, heads: list[str]) -> None:
    for letter in "QKV":
        linear = getattr(layer, f"W{letter}")
        for number, head in enumerate(heads):
            rows = layer.rows(f"W{letter}", number)
            _copy(linear.weight[rows], given, f"{head}W{letter}")
            if linear.bias is not None:
                linear.bias[rows] = 0  # a head without a bias beside one that has one
                _copy(linear.bias[rows][None], given, f"{head}b{letter}")
    if isinstance(layer, MultiHeadAttention) and layer.WO is not None:
        _copy(layer.WO.weight, given, "WO")
        if layer.WO.bias is not None:
            _copy(layer.WO.bias[None], given, "bO")


def _copy(target: Tensor, given: Given, name: str) -> None:
    value = given.tensor(name)
    if value is None:
        return
    if value.shape != target.shape:
        raise ArgumentError(
            f"{name} is {tuple(value.shape)}; with these encodings and weights it has to be "
            f"{tuple(target.shape)}"
        )
    if not value.isfinite().all():
        raise ArgumentError(f"{name} holds a number that is not finite")
    target.copy_(value)


def _stacked(given: Given, names: list[str]) -> Tensor:
    """The same matrix of every head."""
    found: list[Tensor] = []
    for name in names:
        value = given.tensor(name)
        if value is None:
            raise ArgumentError(f"the file holds no {name!r}; it has: {', '.join(given.matrices)}")
        if found and value.shape != found[0].shape:
            raise ArgumentError(
                f"{name} is {tuple(value.shape)}, {names[0]} is {tuple(found[0].shape)}; heads "
                f"have the same size"
            )
        found.append(value)
    return torch.stack(found)


def _mask(given: Given, heads: list[str], causal: bool) -> Mask | None:
    prefixes = given.prefixes("mask")
    if causal and (given.causal or prefixes):
        raise ArgumentError(
            f"{given.source} has a mask of its own; leave mask away (in the command: --mask)"
        )
    if causal or given.causal:
        return Mask.causal()
    if not prefixes:
        return None
    if any("head" in prefix for prefix in prefixes) and prefixes != heads:
        raise ArgumentError("there are masks in some heads; wanted one in each, or one for all")
    stack = _stacked(given, [f"{prefix}mask" for prefix in prefixes])
    stack = stack.masked_fill(stack <= BLOCKED, -torch.inf)
    return Mask.bias(stack[None] if len(stack) > 1 else stack[0])


def _constant(given: Given, name: str) -> float | None:
    """A number of the recipe, the same in every head; None where the file has none."""
    found = {n: x for n, x in given.constants.items() if n.rpartition("/")[2] == name}
    if not found:
        return None
    if len(set(found.values())) > 1:
        raise ArgumentError(f"{', '.join(found)} differ; wanted one number for every head")
    return next(iter(found.values()))


def _check_constants(given: Given, calculation: Calculation) -> None:
    """Raise ArgumentError where a constant was changed that follows from the sizes."""
    steps = {step.name: step for step in calculation if step.operation is Operation.CONSTANT}
    for name, number in given.constants.items():
        restored = steps[name].value.item() if name in steps else np.nan
        if not isclose(number, restored, rel_tol=1e-6):
            raise ArgumentError(
                f"{name} is {number:g} in {given.source}, but follows from the sizes: "
                f"{restored:g}; change it back"
            )


def _check_range(given: Given, calculation: Calculation) -> None:
    """Raise ArgumentError where numbers of the file grew beyond what float32 can hold."""
    for step in calculation:
        if np.isnan(step.value).any() or np.isposinf(step.value).any():
            raise ArgumentError(
                f"{step.name} grow beyond what float32 can hold; wanted smaller numbers in "
                f"{given.source}"
            )
