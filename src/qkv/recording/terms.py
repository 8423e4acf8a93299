"""What a program puts in the place of similarities or adds to them, and whether that hides keys."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from math import inf

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from qkv.core.mask_parts import Pairs, Part
from qkv.core.operations import BLOCKED
from qkv.recording.masks import Closed, Forbidden, blocks_of

VANISHING = 104.0
"""exp(−104) is 0 in float32 and below 1E-45: a logit that much below another has no weight."""


@dataclass(eq=False)
class Filled:
    """A number put in the place of some similarities.

    Attributes:
        values: a mask of bools.
        when: what they are where the number is put.
        number: mostly −∞ or a number as low as there is.
    """

    values: Bool[Tensor, "#batch #heads #queries #keys"]
    when: bool
    number: float

    @property
    def closed(self) -> Closed:
        """Say which entries of a part are filled."""
        return torch.Tensor.clone if self.when else torch.logical_not

    @property
    def by_reference(self) -> Part:
        """The mask as a part of a `Mask`."""
        return Forbidden(self.values) if self.when else Pairs(self.values)


@dataclass(eq=False)
class Summand:
    """Numbers added to similarities.

    Attributes:
        values: the numbers: a bias, or 0 and something very low, or both in one.
        factor: what they are multiplied by.
    """

    values: Float[Tensor, "#batch #heads #queries #keys"]
    factor: float

    @cached_property
    def low(self) -> float:
        """The least number."""
        return min((float(self._times(block).min()) for block in self._blocks()), default=0.0)

    @cached_property
    def cut(self) -> float:
        """What lies at or below is meant to hide: two kinds of numbers are far apart."""
        if not self.low <= -VANISHING:
            return -inf  # nothing is: a bias
        return BLOCKED if self.low <= BLOCKED else self.low / 2

    @cached_property
    def spread(self) -> float:
        """The largest of the numbers that hide nothing, without its sign."""
        return max((self._largest_kept(block) for block in self._blocks()), default=0.0)

    @cached_property
    def finite(self) -> bool:
        """Whether something is hidden by a number rather than by −∞."""
        if self.low > -inf:
            return self.low <= self.cut
        return any(bool((self.closed(b) & (b > -inf)).any()) for b in self._blocks())

    def closed(self, block: Tensor) -> Tensor:
        """Say which entries of a part are meant to hide."""
        return self._times(block) <= self.cut

    def _largest_kept(self, block: Tensor) -> float:
        hidden = self.closed(block)
        if bool((hidden | (block == 0)).all()):  # the usual mask: two values
            return 0.0
        return float(self._times(block).masked_fill(hidden, 0.0).abs().max())

    def _blocks(self) -> Iterator[Tensor]:
        return (block for _, block in blocks_of(self.values))

    def _times(self, block: Tensor) -> Tensor:
        wide = block.to(torch.promote_types(block.dtype, torch.float32))
        return wide if self.factor == 1 else wide * self.factor
