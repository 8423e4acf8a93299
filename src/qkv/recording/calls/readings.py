"""What was read of masks: each of them once, however many layers have it."""

from collections import deque
from collections.abc import Callable, Hashable
from typing import NamedTuple, TypeVar, cast
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

Answer = TypeVar("Answer")
Answers = dict[Hashable, object]

NEWEST = 2
"""Masks that are kept to be compared: a model has one, or one of a window besides."""


class Read(NamedTuple):
    """A mask that was read.

    Attributes:
        values, version: the tensor, and how often something had been written into it.
        answers: by question.
    """

    values: Tensor
    version: int
    answers: Answers


class Readings:
    """Remembers what was found in tensors, while these live and nothing is written into them.

    Of layers that share a mask the first reads it. Where each layer is given a copy, as PyTorch's
    fused operations make of a mask of bools, the copy is compared with the newest ones: one pass
    over it, where reading takes several. Answers must not hold the tensor that they are about.
    """

    def __init__(self) -> None:
        """Nothing has been read yet."""
        Known = WeakKeyDictionary[torch.UntypedStorage, tuple[int, dict[Hashable, Answers]]]
        self._known: Known = WeakKeyDictionary()
        self._newest = deque[Read](maxlen=NEWEST)

    def once(self, values: Tensor, question: Hashable, read: Callable[[], Answer]) -> Answer:
        """Return what was found before, or read it.

        Args:
            values: the tensor; another view of the same memory is another one.
            question: what is asked of it.
            read: finds the answer.
        """
        if values.is_inference():
            return read()  # nothing counts what is written into such a tensor
        answers = self._answers(values)
        if question not in answers:
            answers[question] = read()
        return cast(Answer, answers[question])

    def _answers(self, values: Tensor) -> Answers:
        storage, version = values.untyped_storage(), values._version
        known, views = self._known.get(storage, (version, {}))
        if known != version:
            views = {}
        self._known[storage] = version, views
        view = (values.storage_offset(), values.shape, values.stride(), values.dtype)
        if view not in views:
            views[view] = self._of_equal(values)
            self._newest.append(Read(values, version, views[view]))
        return views[view]

    def _of_equal(self, values: Tensor) -> Answers:
        for other, version, answers in self._newest:
            alike = other.shape == values.shape and other.dtype == values.dtype
            alike = alike and other.device == values.device and other._version == version
            if alike and torch.equal(other, values):
                return answers
        return {}
