"""How a model is trained, whatever it learns: one frozen record, checked before anything runs."""

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, get_args

from qkv.errors import ArgumentError

Precision = Literal["float32", "bfloat16", "float64"]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How a model is trained.

    Attributes:
        steps: how often the weights are changed.
        batch: the size of the batch of a step, over all processes; the task says of what.
        learning_rate: the largest that there is, after the warm-up.
        final_share: the last learning rate, as a share of the largest: 0.1 is a tenth of it.
        warmup: steps in which the learning rate rises from nothing.
        weight_decay: of AdamW (Loshchilov and Hutter 2019); matrices shrink by it, vectors do not.
        betas: of AdamW, how slowly the two running means move.
        clip: the length to which longer gradients are cut; None leaves them as they are.
        accumulate: into so many parts each process cuts its batch, where memory is short.
        precision: of the products: float32, bfloat16 (by autocast; the weights stay float32), or
            float64 (all of it, to compare with).
        label_smoothing: the share of the target that is spread over the whole vocabulary.
        measure_every: steps from one measure on held-out data to the next.
        save_every: steps from one checkpoint to the next.
        patience: after so many measures that are no better than the best, training ends; None
            never ends it.
        seed: of the weights, of the order of the examples, and of dropout.

    Raises:
        ArgumentError: a value that cannot be meant; names the argument.
    """

    steps: int
    batch: int
    learning_rate: float = 1e-3
    final_share: float = 0.1
    warmup: int = 100
    weight_decay: float = 0.01
    betas: tuple[float, float] = (0.9, 0.98)
    clip: float | None = 1.0
    accumulate: int = 1
    precision: Precision = "float32"
    label_smoothing: float = 0.0
    measure_every: int = 500
    save_every: int = 500
    patience: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        """Check every value."""
        for field in fields(self):
            value = getattr(self, field.name)
            test, wanted = WANTED[field.name]
            if isinstance(value, bool) or not test(value):
                raise ArgumentError(f"{field.name} is {value!r}; wanted {wanted}")

    def in_steps(self, steps: int) -> "Settings":
        """Return the same settings for fewer steps or more; warm-up is at most a tenth of them.

        Raises:
            ArgumentError: steps below 1.
        """
        changed = replace(self, steps=steps)
        return replace(changed, warmup=min(self.warmup, steps // 10))


def _whole(least: int) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, int) and value >= least


def _number(least: float, most: float) -> Callable[[Any], bool]:
    return lambda value: (
        isinstance(value, int | float)
        and abs(value) <= sys.float_info.max
        and least <= value <= most
    )


def _betas(value: Any) -> bool:
    two = isinstance(value, tuple) and len(value) == 2
    return two and all(_number(0, 1)(beta) and beta < 1 for beta in value)


POSITIVE = (_whole(1), "a whole number above 0")
SHARE = (_number(0, 1), "a number from 0 to 1")
WANTED: dict[str, tuple[Callable[[Any], bool], str]] = {
    "steps": POSITIVE,
    "batch": POSITIVE,
    "learning_rate": (lambda v: _number(0, math.inf)(v) and v > 0, "a number above 0"),
    "final_share": SHARE,
    "warmup": (_whole(0), "a whole number, 0 or more"),
    "weight_decay": (_number(0, math.inf), "a number, 0 or more"),
    "betas": (_betas, "two numbers, from 0 to below 1"),
    "clip": (
        lambda v: v is None or (_number(0, math.inf)(v) and v > 0),
        "a number above 0, or None",
    ),
    "accumulate": POSITIVE,
    "precision": (lambda v: v in get_args(Precision), f"one of {', '.join(get_args(Precision))}"),
    "label_smoothing": (lambda v: _number(0, 1)(v) and v < 1, "a number from 0 to below 1"),
    "measure_every": POSITIVE,
    "save_every": POSITIVE,
    "patience": (lambda v: v is None or _whole(1)(v), "a whole number above 0, or None"),
    "seed": (lambda v: _whole(0)(v) and v < 2**63, "a whole number from 0 to below 2**63"),
}
"""A test of each value, and what it wants."""
