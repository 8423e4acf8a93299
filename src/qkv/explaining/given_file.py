"""What stands in a teacher's file: JSON, or a workbook of ours as a person has changed it."""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from qkv.core.recompute import Array
from qkv.errors import ArgumentError, FileError
from qkv.models.formats.files import read_json
from qkv.show.reading import read_inputs

FORM = (
    'wanted {"tokens": […], "encodings": [[…], …]} and, if you like, "WQ", "WK", "WV" '
    '(rows × columns as PyTorch stores them), "bQ", "bK", "bV", "heads": [{"WQ": …}, …], "WO", '
    '"bO", "key encodings", "key tokens", "mask" ("causal", rows of true and false, or rows of '
    "numbers with a point, which are added)"
)

PER_HEAD = ("WQ", "WK", "WV", "bQ", "bK", "bV", "mask", "queries", "keys", "values")
"""What each head may have of its own."""

ONCE = ("encodings", "key encodings", "WO", "bO")
"""What is there once, however many heads there are."""

ROWS = ("encodings", "query encodings", "embeddings", "query embeddings", "queries")
KEY_ROWS = ("key encodings", "key embeddings", "keys")
"""Matrices of a workbook whose rows are the tokens, and the tokens that are looked at."""


@dataclass(frozen=True, eq=False)
class Given:
    """What stands in a file.

    Attributes:
        source: the file.
        matrices: by the name of their step: "WQ", "head 2/WK", "inputs/encodings", "mask".
        tokens, key_tokens: labels of the tokens that look, and of those that are looked at.
        causal: whether the file asks for a causal mask.
        constants: numbers of the recipe by the name of their step: "scale", "head 1/cap".
    """

    source: Path
    matrices: Mapping[str, Array]
    tokens: Sequence[str] | None = None
    key_tokens: Sequence[str] | None = None
    causal: bool = False
    constants: Mapping[str, float] = field(default_factory=dict)

    def find(self, *names: str) -> str | None:
        """Return the full name of the first of these that is there, whatever its section."""
        return next((key for name in names for key in self.matrices if _short(key) == name), None)

    def tensor(self, *names: str) -> Tensor | None:
        """Return the first of these matrices, in float32; a full name is meant as it stands."""
        full = names[0] if names[0] in self.matrices else self.find(*names)
        if full is None:
            return None
        return torch.from_numpy(np.array(self.matrices[full])).to(torch.float32)

    def prefixes(self, *names: str) -> list[str]:
        """Return what stands before these names: "head 1/", "head 2/", … or "" at the top."""
        found = {key.removesuffix(_short(key)) for key in self.matrices if _short(key) in names}
        return sorted(found, key=lambda prefix: [int(n) for n in re.findall(r"\d+", prefix)])

    def refuse_others(self, *names: str) -> None:
        """Raise ArgumentError where the file holds anything but these."""
        others = [key for key in self.matrices if _short(key) not in names]
        if others:
            raise ArgumentError(
                f"{self.source} holds {', '.join(others)}, which cannot go with "
                f"{', '.join(key for key in self.matrices if key not in others)}"
            )


def read_given(path: Path) -> Given:
    """Read a file.

    Raises:
        FileError: it is not there, or neither JSON nor a workbook of ours.
        ArgumentError: it holds what has no meaning here.
    """
    return _workbook(path) if path.suffix.lower() == ".xlsx" else _json(path)


def _short(name: str) -> str:
    return name.rpartition("/")[2]


def _workbook(path: Path) -> Given:
    inputs = read_inputs(path)
    rows = {_short(name): labels for name, labels in reversed(list(inputs.rows.items()))}
    tokens, key_tokens = (
        next((rows[name] for name in names if name in rows), None) for names in (ROWS, KEY_ROWS)
    )
    return Given(path, inputs.values, tokens, key_tokens, constants=inputs.constants)


def _json(path: Path) -> Given:
    if not os.path.exists(path):
        raise FileError(f"{path} is not there; wanted JSON, or a workbook (.xlsx) of ours")
    try:
        content = read_json(path)
    except FileError as error:
        raise FileError(f"{error}; {FORM}") from error
    heads = content.pop("heads", None)
    tokens, key_tokens = (
        _labels(name, content.pop(name, None)) for name in ("tokens", "key tokens")
    )
    causal = content.get("mask") == "causal"
    if causal:
        del content["mask"]
    _check_names(content, (*PER_HEAD, *ONCE))
    content |= _heads(heads, content)
    matrices = {name: _matrix(name, value) for name, value in content.items()}
    return Given(path, matrices, tokens, key_tokens, causal)


def _heads(heads: object, beside: Mapping[str, object]) -> dict[str, object]:
    """What a list of heads holds, by the names of the steps."""
    if heads is None:
        return {}
    if not isinstance(heads, list) or not heads or not all(isinstance(h, dict) for h in heads):
        raise ArgumentError(f'"heads" has to be a list of objects, one or more; {FORM}')
    double = [name for name in beside if name in PER_HEAD and name != "mask"]
    if double:
        raise ArgumentError(f'"{double[0]}" stands beside "heads"; say in which head it belongs')
    found: dict[str, object] = {}
    for number, head in enumerate(heads, start=1):
        if not head:
            raise ArgumentError(f'head {number} of "heads" is empty; {FORM}')
        _check_names(head, PER_HEAD)
        found |= {f"head {number}/{name}": value for name, value in head.items()}
    return found


def _check_names(content: Mapping[str, object], known: Sequence[str]) -> None:
    for name in content:
        if name not in known:
            raise ArgumentError(f'the file holds "{name}", which means nothing here; {FORM}')


def _labels(name: str, value: object) -> list[str] | None:
    if value is None:
        return None
    if not isinstance(value, list) or not all(isinstance(token, str) for token in value):
        raise ArgumentError(f'"{name}" has to be a list of texts; {FORM}')
    return value


def _matrix(name: str, value: object) -> Array:
    if _short(name).startswith("b") and isinstance(value, list) and value:
        value = value if isinstance(value[0], list) else [value]
    if not isinstance(value, list) or not all(isinstance(row, list) and row for row in value):
        value = []
    if not value:
        raise ArgumentError(f'"{name}" has to be a matrix: rows of numbers of the same length')
    if len({len(row) for row in value}) > 1:
        raise ArgumentError(f'"{name}" has rows of different lengths')
    return _mask(name, value) if _short(name) == "mask" else _numbers(name, value)


def _numbers(name: str, rows: list[list[object]]) -> Array:
    strange = [x for row in rows for x in row if type(x) not in (int, float)]
    if strange:
        raise ArgumentError(f'"{name}" has to be a matrix of numbers; it holds {strange[0]!r:.40}')
    try:
        return np.array([[float(x) for x in row] for row in rows])  # type: ignore[arg-type]
    except OverflowError as error:
        raise ArgumentError(f'"{name}" holds a number too large to calculate with') from error


def _mask(name: str, rows: list[list[object]]) -> Array:
    """Return M: 0 where true and −∞ where false, or the numbers that are added."""
    entries = [x for row in rows for x in row]
    if all(type(x) is bool for x in entries):
        return np.where(np.array(rows, dtype=bool), 0.0, -np.inf)
    if all(type(x) is int for x in entries):
        raise ArgumentError(
            f'"{name}" holds integers, which could mean either; wanted true (may look) and false, '
            f"or numbers with a point, which are added: 0.0 and -1e30"
        )
    return _numbers(name, [[-np.inf if x == "-inf" else x for x in row] for row in rows])
