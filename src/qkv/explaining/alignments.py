"""How the words of a translation came to look where they did: the calculation, step by step."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from qkv.core.calculation import Calculation, Step
from qkv.core.operations import Operation
from qkv.errors import ArgumentError
from qkv.explaining.aligned import before, written
from qkv.explaining.attended import CROSS, Attended, attended
from qkv.explaining.inputs import name_of
from qkv.models.recurrent import Recurrent
from qkv.models.translating import Translator

SIMILARITIES = "similarities"

CELLS = 6_000
"""Computed numbers of a system at most; of more, what leads to the similarities is left out."""


def alignment_steps(model: Translator, text: str, ids: Sequence[int]) -> Calculation:
    """Write down what a translation looked at, token by token.

    Of a transformer it is the cross-attention of the last layer but one, in the head that chooses
    most clearly.

    Args:
        model: wrote the translation.
        text: what it read.
        ids: the tokens of the translation, the one that ended it included or not.

    Raises:
        ArgumentError: a text without a token, or too long; a translation of nothing; or a model
            without attention.
    """
    told = written(model, ids)
    if not told:
        raise ArgumentError("ids hold no token but what ends a text: nothing looked at anything")
    source, given = model.tokenizer(text).ids, before(model, told)
    later = [*given[1:], told[-1]]  # a row is named after the token that it told
    tokens, keys = ([name_of(model.tokenizer, number) for number in row]
                    for row in (later, source))  # fmt: skip
    if isinstance(model, Recurrent):
        return _shortened(model.explain(source, given, tokens=tokens, key_tokens=keys))
    crossed = attended(model, torch.tensor([list(source)]), torch.tensor([given]))[CROSS]
    layer = crossed[max(0, len(crossed) - 2)]
    return _shortened(layer.explain(_clearest(layer), tokens, keys))


def joined(title: str, parts: Mapping[str, Calculation]) -> Calculation:
    """Return several calculations as one, each a section of its own; `parts` names them.

    Raises:
        ArgumentError: there are none.
    """
    if not parts:
        raise ArgumentError("parts are none; wanted one calculation or more")
    steps = [
        replace(
            step, name=f"{name}/{step.name}",
            operands=tuple(f"{name}/{operand}" for operand in step.operands),
        )
        for name, part in parts.items()
        for step in part
    ]  # fmt: skip
    observed = {f"{name}/{key}": value for name, part in parts.items()
                for key, value in part.observed.items()}  # fmt: skip
    return Calculation(title, tuple(steps), max(part.eps for part in parts.values()), observed)


def _clearest(layer: Attended) -> int:
    """Return the head whose largest weights are the largest."""
    return int(layer.weights().max(axis=-1).mean(axis=-1).argmax())


def _shortened(told: Calculation) -> Calculation:
    """Begin with the similarities, where what leads to them is too much to read."""
    if sum(step.value.size for step in told if not step.is_input) <= CELLS:
        return told
    names = [step.name for step in told]
    first = names.index(SIMILARITIES)
    kept = [_given(told.steps[first])]
    rest = told.steps[first + 1 :]
    later = {step.name for step in rest}
    used = {name for step in rest for name in step.operands} - later - {SIMILARITIES}
    borrowed = [_given(step) for step in told.steps[:first] if step.name in used]
    return replace(told, steps=(*borrowed, *kept, *rest))


def _given(step: Step) -> Step:
    if step.is_input:
        return step
    return replace(step, operation=Operation.GIVEN, operands=(), selection=())
