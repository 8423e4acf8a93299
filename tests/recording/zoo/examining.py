"""Run a model plain and watched, and set what was seen beside what the model itself returns."""

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import qkv
from qkv.errors import RecordingError
from qkv.recording.calls.call import Call
from tests.recording.zoo.architectures import EAGER, Architecture, NotPlain, build
from tests.recording.zoo.inputs import Inputs

WORDS = ("bias", "causal", "window", "padding", "other")


@dataclass(frozen=True)
class Seen:
    """One attention as it was recorded, reduced to what the tests compare.

    Attributes:
        scale: a number, or "learned" where every head has its own.
        mask: in words, in the order of WORDS.
        weights: largest difference from the weights that the model returns; None where it
            returns none.
        closed: whether what the recovered mask blocks has no weight in the model, save in rows that
            may look at nothing.
        error: of the recomputed output, in eps of the output's scale.
        finite: whether weights are free of NaN.
    """

    path: str | None
    place: str
    how: str
    heads: int
    kv_heads: int
    width: int
    shape: tuple[int, ...]
    scale: float | str
    softcap: float | None
    sinks: bool
    mask: str
    weights: float | None
    closed: bool | None
    error: float
    finite: bool


@dataclass(frozen=True)
class Examined:
    """One model on one of its paths."""

    implementation: str
    seen: tuple[Seen, ...]
    returned: int
    same_bits: bool


def tensors(output: Any) -> Iterator[Tensor]:
    """Every tensor of a model's output, in order."""
    if isinstance(output, Tensor):
        yield output
    elif isinstance(output, Mapping):
        for part in output.values():
            yield from tensors(part)
    elif isinstance(output, tuple | list):
        for part in output:
            yield from tensors(part)


def sow() -> None:
    """Start every source of random numbers that models draw from anew."""
    torch.manual_seed(1)
    np.random.seed(1)
    random.seed(1)


def same_bits(a: Any, b: Any) -> bool:
    """Whether two outputs hold the same numbers, bit for bit; NaN is a number here."""
    ours, theirs = list(tensors(a)), list(tensors(b))
    return len(ours) == len(theirs) and all(
        x.shape == y.shape and x.dtype == y.dtype and torch.equal(_bits(x), _bits(y))
        for x, y in zip(ours, theirs, strict=True)
    )


def _bits(x: Tensor) -> Tensor:
    """The bytes of a tensor: NaN equals itself and −0 is not 0."""
    return x.detach().contiguous().reshape(-1).view(torch.uint8)


def attentions(output: Mapping[str, Any]) -> list[Tensor]:
    """The weights that a model returned, in the order in which it calculated them.

    A decoder's layers attend to themselves and then to what the encoder gave.
    """
    if output.get("cross_attentions") and output.get("decoder_attentions"):
        own = output["decoder_attentions"]
        pairs = zip(own, output["cross_attentions"], strict=True)
        rest = {
            k: v for k, v in output.items() if k not in ("cross_attentions", "decoder_attentions")
        }
        return [*attentions(rest), *(weights for pair in pairs for weights in pair)]
    found: list[Tensor] = []
    for name, value in output.items():
        if "attentions" in name and value is not None:
            found.extend(tensors(value))
        elif isinstance(value, Mapping):
            found.extend(attentions(value))
    return found


def examine_module(
    model: nn.Module, inputs: Inputs, returned: Mapping[int, Tensor], averaged: bool = False
) -> tuple[tuple[Seen, ...], bool]:
    """Run a model with and without the watch, and compare."""
    with torch.no_grad():
        sow()
        plain = model(**inputs)
        sow()
        with qkv.watch(model) as seen:
            watched = model(**inputs)
        calls = [call for call in seen if _laid_out(call)] if len(seen) else []
        facts = tuple(_facts(call, returned.get(i), averaged) for i, call in enumerate(calls))
    return facts, same_bits(plain, watched)


def _laid_out(call: Call) -> bool:
    """Whether it is an attention as (batch, heads, queries, keys); a call that is none says so."""
    try:
        return call.operands is not None
    except RecordingError:
        return False


def _facts(call: Call, returned: Tensor | None, averaged: bool) -> Seen:
    weights = call.weights.dense()
    if returned is not None and returned.numel() == weights.numel():
        returned = returned.reshape(weights.shape)  # some have (batch, heads) as one axis
        recovered = weights.mean(1, keepdim=True) if averaged else weights
        lively = weights.sum(-1, keepdim=True) > 0  # fused, a row that sees nothing gives nothing
        difference = float(((recovered - returned) * lively).abs().max())
        blocked = _blocked(call)
        closed = bool(((returned == 0) | ~blocked | blocked.all(-1, keepdim=True)).all())
    else:
        difference, closed = (None, None) if returned is None else (float("inf"), False)
    return Seen(
        path=call.path,
        place=f"{call.file.rsplit('/', 1)[-1]}:{call.line}",
        how=call.operands.how,
        heads=call.q.shape[1],
        kv_heads=call.k.shape[1],
        width=call.q.shape[-1],
        shape=tuple(weights.shape),
        scale=call.scale if isinstance(call.scale, float) else "learned",
        softcap=call.softcap,
        sinks=call.sinks is not None,
        mask=mask_in_words(call),
        weights=difference,
        closed=closed,
        error=call.error_eps,
        finite=bool(weights.isfinite().all()),
    )


def _blocked(call: Call) -> Tensor:
    """What the recovered mask blocks: (batch, heads, queries, keys), any axis 1."""
    queries, keys = call.q.shape[-2], call.k.shape[-2]
    if call.mask is None:
        return torch.zeros(1, 1, queries, keys, dtype=torch.bool)
    return call.mask.matrix(queries, keys) < -1e20


def mask_in_words(call: Call) -> str:
    """What a call blocks or adds."""
    blocking = call.blocking
    said = {
        "bias": blocking.biased,
        "causal": blocking.causal,
        "window": blocking.window is not None,
        "padding": blocking.padding is not None,
        "other": blocking.other,
    }
    return " ".join(word for word in WORDS if said[word])


@cache
def examine(entry: Architecture) -> tuple[Examined, ...]:
    """Everything about one architecture: its eager path, and its fused one where it has it."""
    found = []
    eager = build(entry, EAGER)
    with torch.no_grad():
        sow()
        references = attentions(eager(**entry.inputs(), output_attentions=True))
    for implementation in entry.implementations:
        model = build(entry, implementation)
        order = range(len(references)) if entry.returned is None else entry.returned
        returned = dict(zip(order, references, strict=bool(order)))
        seen, same = examine_module(model, entry.inputs(), returned, averaged=entry.averaged)
        found.append(Examined(implementation, seen, len(references), same))
    return tuple(found)


@cache
def examine_not_plain(entry: NotPlain) -> tuple[Examined, str]:
    """What was recorded, and what an empty recording says that it saw instead."""
    model = build(entry, EAGER)
    seen, same = examine_module(model, entry.inputs(), {})
    with torch.no_grad(), qkv.watch(model) as recording:
        model(**entry.inputs())
    said = ""
    try:
        list(recording)
    except RecordingError as error:
        said = str(error)
    return Examined(EAGER, seen, 0, same), said
