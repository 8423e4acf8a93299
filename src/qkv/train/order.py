"""Which examples a step takes: a function of the seed and the step, and of nothing else.

So what was interrupted goes on where it was without a word about where that is, and several
processes agree on every batch without asking each other.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from qkv.errors import ArgumentError

Examples = npt.NDArray[np.int64]
"""Numbers of examples."""


class Order(ABC):
    """An endless sequence of batches, epoch after epoch."""

    @abstractmethod
    def epoch(self, number: int) -> list[Examples]:
        """Return the batches of one epoch; the same for the same number."""

    def batches(self, step: int = 0) -> Iterator[Examples]:
        """Go through the batches from a step on, for ever."""
        number = 0
        while True:
            batches = self.epoch(number)
            yield from batches[step:]
            step, number = max(0, step - len(batches)), number + 1


class Shuffled(Order):
    """Every example once an epoch, in an order of chance; what fills no batch is left out.

    Args:
        count: number of examples.
        batch: examples a step; fewer where there are not as many.
        seed: of the order.

    Raises:
        ArgumentError: there are no examples.
    """

    def __init__(self, count: int, batch: int, seed: int) -> None:
        """Remember the sizes."""
        if count < 1:
            raise ArgumentError("there are no examples to train on; wanted 1 or more")
        self._count, self._batch, self._seed = count, min(batch, count), seed

    def epoch(self, number: int) -> list[Examples]:
        """Return the batches of one epoch."""
        order = np.random.default_rng((self._seed, number)).permutation(self._count)
        starts = range(0, self._count - self._batch + 1, self._batch)
        return [order[i : i + self._batch] for i in starts]


class OfLikeLength(Order):
    """Every example once an epoch, those of like length together, so that little is padding.

    Examples are drawn in pools of many batches, sorted by length within a pool, and cut where a
    batch would hold more than so many tokens, padding counted; then the batches are shuffled.

    Args:
        lengths: tokens of each example.
        batch: tokens a step, padding counted; a longer example is a batch by itself.
        seed: of the order.

    Raises:
        ArgumentError: there are no examples, or one without tokens.
    """

    POOL = 100
    """Batches, of examples of the usual length, in a pool."""

    def __init__(self, lengths: npt.ArrayLike, batch: int, seed: int) -> None:
        """Remember the sizes."""
        self._lengths = np.asarray(lengths, np.int64)
        if self._lengths.size < 1:
            raise ArgumentError("there are no examples to train on; wanted 1 or more")
        if self._lengths.min() < 1:
            at = int(self._lengths.argmin())
            raise ArgumentError(f"example {at} has {self._lengths[at]} tokens; wanted 1 or more")
        self._batch, self._seed = batch, seed

    def epoch(self, number: int) -> list[Examples]:
        """Return the batches of one epoch."""
        random = np.random.default_rng((self._seed, number))
        order = random.permutation(len(self._lengths))
        size = max(1, int(self.POOL * self._batch / self._lengths.mean()))
        pools = (order[i : i + size] for i in range(0, len(order), size))
        batches = [batch for pool in pools for batch in self._cut(pool)]
        return [batches[i] for i in random.permutation(len(batches))]

    def _cut(self, pool: Examples) -> Iterator[Examples]:
        order = pool[np.argsort(self._lengths[pool], kind="stable")]
        start = 0
        for i, length in enumerate(self._lengths[order].tolist()):
            if i > start and length * (i + 1 - start) > self._batch:
                yield order[start:i]
                start = i
        yield order[start:]
