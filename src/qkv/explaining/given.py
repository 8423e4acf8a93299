"""A teacher's own numbers: encodings, weights and mask from JSON or from a workbook of ours."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from qkv.core.calculation import Calculation
from qkv.core.mask import Mask
from qkv.core.operations import BLOCKED
from qkv.core.recompute import Array
from qkv.errors import ArgumentError, FileError
from qkv.explaining.tensors import explain_tensors
from qkv.nn.attention import Attention, MultiHeadAttention
from qkv.show.reading import read_inputs

FORM = (
    'wanted {"tokens": […], "encodings": [[…], …]} and, if you like, "WQ", "WK", "WV" '
    '(rows × columns as PyTorch stores them), "bQ", "bK", "bV", "heads": [{"WQ": …}, …], "WO", '
    '"bO", "key encodings", "key tokens", "mask" ("causal", or rows of true and false)'
)


@dataclass(frozen=True, eq=False)
class Given:
    """What stands in a file: matrices by the name of their step, and labels of rows."""

    matrices: Mapping[str, Array]
    labels: Mapping[str, Sequence[str]] = field(default_factory=dict)
    causal: bool = False

    def find(self, *names: str) -> str | None:
        """Return the full name of the first of these that is there, whatever its section."""
        for name in names:
            for key in self.matrices:
                if key == name or key.endswith(f"/{name}"):
                    return key
        return None

    def tensor(self, *names: str) -> Tensor | None:
        """Return the first of these matrices, in float32."""
        name = self.find(*names)
        if name is None:
            return None
        return torch.from_numpy(np.array(self.matrices[name])).to(torch.float32)

    def tokens(self, *names: str) -> Sequence[str] | None:
        """Return the labels of the first of these matrices."""
        name = self.find(*names)
        return None if name is None else self.labels.get(name)


def explain_given(
    path: Path, *, mask: bool = False, num_heads: int = 1, seed: int = 42
) -> Calculation:
    """Write down attention with the numbers in a file; weights it lacks come from the seed.

    Raises:
        FileError: it is not there, or neither JSON nor a workbook of ours.
        ArgumentError: what it holds does not make an attention calculation.
    """
    given = _workbook(path) if path.suffix.lower() == ".xlsx" else _json(path)
    wanted_mask = _mask(given, mask)
    if given.find("queries") and given.find("keys") and given.find("values"):
        return _explain_projected(given, wanted_mask)
    encodings = _encodings(given, "")
    if encodings is None:
        raise ArgumentError(f"{path} holds no encodings; {FORM}")
    keys = _encodings(given, "key ")
    layer = _layer(given, encodings.shape[-1], num_heads, seed)
    return layer.explain(
        encodings,
        keys,
        mask=wanted_mask if wanted_mask is not None else False,
        tokens=given.tokens("encodings", "query encodings", "embeddings", "query embeddings"),
        key_tokens=given.tokens("key encodings", "key embeddings"),
    )


def _encodings(given: Given, kind: str) -> Tensor | None:
    """Encodings as they stand, or embeddings with positions added."""
    kinds = (kind,) if kind else ("", "query ")
    found = given.tensor(*(f"{k}encodings" for k in kinds))
    if found is not None:
        return found
    embeddings = given.tensor(*(f"{k}embeddings" for k in kinds))
    positions = given.tensor(*(f"{k}positions" for k in kinds))
    return None if embeddings is None or positions is None else embeddings + positions


def _explain_projected(given: Given, mask: Mask | None) -> Calculation:
    heads = _sections(given, "queries")
    q, k, v = (
        torch.stack([_wanted(given, f"{head}{name}") for head in heads])
        for name in ("queries", "keys", "values")
    )
    tokens, key_tokens = given.tokens("queries"), given.tokens("keys")
    return explain_tensors(q, k, v, mask=mask, tokens=tokens, key_tokens=key_tokens)


def _layer(given: Given, n_embed: int, num_heads: int, seed: int) -> Attention | MultiHeadAttention:
    """A layer of the file's size, with its weights."""
    heads = _sections(given, "WQ") or _sections(given, "WK") or _sections(given, "WV") or [""]
    count = len(heads) if heads != [""] else num_heads
    sizes = {"d_k": given.tensor("WQ", "WK"), "d_v": given.tensor("WV")}
    options: dict[str, Any] = {k: len(w) for k, w in sizes.items() if w is not None}
    biases = ("bQ", "bK", "bV", "bO")
    options["bias"] = tuple(f"W{name[1]}" for name in biases if given.find(name))
    output = given.tensor("WO")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if count == 1 and output is None:
            layer: Attention | MultiHeadAttention = Attention(n_embed, **options)
        else:
            n_out = None if output is None else len(output)
            layer = MultiHeadAttention(n_embed, num_heads=count, n_out=n_out, **options)
    _fill(layer, given, heads)
    return layer


def _fill(layer: Attention | MultiHeadAttention, given: Given, heads: list[str]) -> None:
    with torch.no_grad():
        for letter in "QKV":
            linear = getattr(layer, f"W{letter}")
            for number, head in enumerate(heads):
                rows = layer.rows(f"W{letter}", number)
                _copy(linear.weight[rows], given, f"{head}W{letter}")
                if linear.bias is not None:
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


def _sections(given: Given, name: str) -> list[str]:
    """Prefixes "head 1/", "head 2/", … under which a name stands, or [""], or []."""
    found = [key.removesuffix(name) for key in given.matrices if re.search(rf"(^|/){name}$", key)]
    return sorted(found, key=lambda prefix: [int(n) for n in re.findall(r"\d+", prefix)])


def _wanted(given: Given, name: str) -> Tensor:
    value = given.tensor(name)
    if value is None:
        raise ArgumentError(f"the file holds no {name!r}; it has: {', '.join(given.matrices)}")
    return value


def _mask(given: Given, causal: bool) -> Mask | None:
    if causal or given.causal:
        return Mask.causal()
    names = [name for name in given.matrices if re.search(r"(^|/)mask$", name)]
    if not names:
        return None
    matrices = [torch.from_numpy(np.array(given.matrices[name])) for name in names]
    stack = torch.stack([m.masked_fill(m <= BLOCKED, -torch.inf) for m in matrices])
    return Mask.bias(stack[None].to(torch.float32) if len(stack) > 1 else stack[0].float())


def _workbook(path: Path) -> Given:
    inputs = read_inputs(path)
    return Given(inputs.values, inputs.rows)


def _json(path: Path) -> Given:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise FileError(f"{path} is not there") from error
    except (OSError, UnicodeDecodeError) as error:
        raise FileError(f"{path} cannot be read as text: {error}") from error
    except json.JSONDecodeError as error:
        raise FileError(f"{path} is not JSON ({error}); {FORM}") from error
    if not isinstance(content, dict):
        raise ArgumentError(f"{path} holds a {type(content).__name__}; {FORM}")
    heads = content.pop("heads", [])
    if not isinstance(heads, list) or not all(isinstance(head, dict) for head in heads):
        raise ArgumentError(f'"heads" has to be a list of objects; {FORM}')
    for number, head in enumerate(heads, start=1):
        content.update({f"head {number}/{name}": value for name, value in head.items()})
    tokens = {name: content.pop(name, None) for name in ("tokens", "key tokens")}
    causal = content.get("mask") == "causal"
    if causal:
        del content["mask"]
    matrices = {name: _matrix(name, value) for name, value in content.items()}
    labels = {
        "encodings": _labels("tokens", tokens["tokens"]),
        "key encodings": _labels("key tokens", tokens["key tokens"]),
    }
    return Given(matrices, {k: v for k, v in labels.items() if v is not None}, causal)


def _labels(name: str, value: Any) -> list[str] | None:
    if value is None:
        return None
    if not isinstance(value, list) or not all(isinstance(token, str) for token in value):
        raise ArgumentError(f'"{name}" has to be a list of texts; {FORM}')
    return value


KNOWN = re.compile(r"(head \d+/)?(W[QKVO]|b[QKVO]|mask|queries|keys|values)|(key )?encodings")


def _matrix(name: str, value: Any) -> Array:
    if not KNOWN.fullmatch(name):
        raise ArgumentError(f'the file holds "{name}", which means nothing here; {FORM}')
    if name.rpartition("/")[2].startswith("b") and isinstance(value, list):
        value = value if value and isinstance(value[0], list) else [value]
    try:
        matrix = np.array(value)
    except ValueError as error:
        raise ArgumentError(f'"{name}" has rows of different lengths') from error
    if matrix.ndim != 2 or matrix.dtype.kind not in "bif" or not matrix.size:
        raise ArgumentError(f'"{name}" has to be a matrix: rows of numbers of the same length')
    if name.endswith("mask") and matrix.dtype.kind != "f":
        return np.where(matrix.astype(bool), 0.0, -np.inf)
    return matrix.astype(np.float64)
