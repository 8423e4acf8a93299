"""What a program puts in the place of similarities or adds to them, and whether that hides keys."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from math import inf

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from qkv.core.mask import Mask
from qkv.core.mask_parts import Pairs, Part
from qkv.core.operations import BLOCKED
from qkv.recording.calls.masks import Closed, Forbidden, blocks_of, recognised
from qkv.recording.calls.readings import Readings

VANISHING = 104.0
"""exp(−104) is 0 in float32 and below 1E-45: a logit that much below another has no weight."""


@dataclass(eq=False)
class Filled:
    """A number put in the place of some similarities.

    Attributes:
        values: a mask of bools, or of numbers that are 0 or not.
        when: what they are where the number is put.
        number: mostly −∞ or a number as low as there is.
        readings: what was read of it before.
    """

    values: Shaped[Tensor, "#batch #heads #queries #keys"]
    when: bool
    number: float
    readings: Readings = field(default_factory=Readings)

    @property
    def closed(self) -> Closed:
        """Say which entries of a part are filled."""
        return torch.Tensor.bool if self.when else torch.logical_not

    @property
    def by_reference(self) -> Part:
        """The mask as a part of a `Mask`."""
        return Forbidden(self.values) if self.when else Pairs(self.values.bool())

    def recognised(self, queries: int, keys: int) -> Mask | None:
        """Return what it hides as a band and hidden keys, if it is nothing else."""
        return self.readings.once(
            self.values,
            ("filled", self.when, queries, keys),
            lambda: recognised(self.values, self.closed, queries, keys),
        )


@dataclass(eq=False)
class Summand:
    """Numbers added to similarities.

    Attributes:
        values: the numbers: a bias, or 0 and something very low, or both in one.
        factor: what they are multiplied by.
        readings: what was read of them before.
        hides: whether what is meant to hide does, as far as is known.
    """

    values: Float[Tensor, "#batch #heads #queries #keys"]
    factor: float
    readings: Readings = field(default_factory=Readings)
    hides: bool = True

    @cached_property
    def low(self) -> float:
        """The least number."""
        return self._once("low", lambda b: float(self._times(b).min()), min)

    @cached_property
    def cut(self) -> float:
        """What lies at or below is meant to hide: two kinds of numbers are far apart."""
        if not self.low <= -VANISHING:
            return -inf  # nothing is: a bias
        return BLOCKED if self.low <= BLOCKED else self.low / 2

    @property
    def spread(self) -> float:
        """The largest of the numbers that hide nothing, without its sign."""
        return self._kept if self.hides else self._largest

    @cached_property
    def _kept(self) -> float:
        return self._once("kept", self._largest_kept, max)

    @cached_property
    def _largest(self) -> float:
        return self._once("largest", lambda b: float(self._times(b).abs().max()), max)

    @cached_property
    def finite(self) -> bool:
        """Whether something is hidden by a number rather than by −∞."""
        if self.low > -inf:
            return self.low <= self.cut
        return self._once("finite", lambda b: float((self.closed(b) & (b > -inf)).any()), max) > 0

    def closed(self, block: Tensor) -> Tensor:
        """Say which entries of a part are meant to hide."""
        return self._times(block) <= self.cut

    def recognised(self, queries: int, keys: int) -> Mask | None:
        """Return what it hides as a band and hidden keys, if it is nothing else."""
        return self.readings.once(
            self.values,
            ("added", self.factor, queries, keys),
            lambda: recognised(self.values, self.closed, queries, keys),
        )

    def _largest_kept(self, block: Tensor) -> float:
        hidden = self.closed(block)
        if bool((hidden | (block == 0)).all()):  # the usual mask: two values
            return 0.0
        return float(self._times(block).masked_fill(hidden, 0.0).abs().max())

    def _once(
        self, what: str, of: Callable[[Tensor], float], joined: Callable[..., float]
    ) -> float:
        """Ask every block of the values, and join the answers."""

        def read() -> float:
            blocks = (block for _, block in blocks_of(self.values) if block.numel())
            return joined((of(block) for block in blocks), default=0.0)

        return self.readings.once(self.values, (what, self.factor), read)

    def _times(self, block: Tensor) -> Tensor:
        wide = block.to(torch.promote_types(block.dtype, torch.float32))
        return wide if self.factor == 1 else wide * self.factor
