"""Axes as products of factors, so that views, splits and flattened axes need no cases.

An axis is a list of factors, slowest first; an axis of size 1 is the empty list. (batch · heads)
flattened is [batch, heads]; a head split off the width splits the width's factor in place, and
whoever shares that factor sees it split. A view's axes follow from its strides alone.
"""

from collections.abc import Iterable, Sequence
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor


class UnclearError(Exception):
    """Axes that cannot be told apart, or a pattern that is no attention; the text says why."""


class Factor:
    """A factor of an axis. It can be split in two, or found to be the same as another.

    Attributes:
        size: how many places it has.
        parts: what it was split into, slower first.
        same: what it turned out to be.
        lineage: marks of the axes that it is a piece of; slices and splits inherit them.
    """

    __slots__ = ("lineage", "parts", "same", "size")

    def __init__(self, size: int, lineage: frozenset[object] | None = None) -> None:
        """Start a lineage of its own where none is given."""
        self.size = size
        self.parts: tuple[Factor, Factor] | None = None
        self.same: Factor | None = None
        self.lineage: frozenset[object] = lineage or frozenset((object(),))


Axis = list[Factor]
Axes = list[Axis]


class Layout(NamedTuple):
    """How a tensor lies in its storage."""

    shape: torch.Size
    stride: tuple[int, ...]
    offset: int | torch.SymInt

    @classmethod
    def of(cls, tensor: Tensor) -> "Layout":
        """Read it off a tensor."""
        return cls(tensor.shape, tensor.stride(), tensor.storage_offset())

    def places(self) -> int:
        """Return how many places of its storage it shows: repeats count once."""
        return prod(n for n, stride in zip(self.shape, self.stride, strict=True) if stride)


def axis(size: int) -> Axis:
    """Return an axis of which nothing else is known."""
    return [] if size == 1 else [Factor(size)]


def resolved(factors: Iterable[Factor]) -> Axis:
    """Follow what was found out since: identities and splits."""
    out: Axis = []
    for factor in factors:
        while factor.same is not None:
            factor = factor.same  # noqa: PLW2901
        if factor.parts is None:
            out.append(factor)
        else:
            out += resolved(factor.parts)
    return out


def size(factors: Iterable[Factor]) -> int:
    """Return the places of an axis made of these factors."""
    return prod(factor.size for factor in factors)


def joined(axes: Iterable[Axis]) -> Axis:
    """Return the factors of several axes, one after the other."""
    return [factor for factors in axes for factor in factors]


def split(factor: Factor, inner: int) -> tuple[Factor, Factor]:
    """Split a factor into (size / inner) · inner."""
    if factor.size % inner:
        raise UnclearError(f"an axis of {factor.size} was cut into pieces of {inner}")
    factor.parts = (Factor(factor.size // inner, factor.lineage), Factor(inner, factor.lineage))
    return factor.parts


def pairs(left: Iterable[Factor], right: Iterable[Factor]) -> list[tuple[Factor, Factor]]:
    """Pair two axes of one size factor by factor, splitting where one is finer."""
    xs, ys, out = resolved(left)[::-1], resolved(right)[::-1], []
    while xs and ys:
        x, y = xs.pop(), ys.pop()
        if x is not y and x.size > y.size:
            x, rest = split(x, x.size // y.size)
            xs.append(rest)
        elif x is not y and y.size > x.size:
            y, rest = split(y, y.size // x.size)
            ys.append(rest)
        if x.size != y.size:
            raise UnclearError(f"axes of {x.size} and {y.size} do not fit")
        out.append((x, y))
    if xs or ys:
        raise UnclearError("axes of different sizes were multiplied")
    return out


def unify(left: Iterable[Factor], right: Iterable[Factor]) -> None:
    """Make two axes one: a product found them to be the same."""
    for x, y in pairs(left, right):
        if x is not y:
            x.same = y
            y.lineage |= x.lineage


def of_view(view: Layout, owner: Layout, axes: Axes) -> tuple[Axes, Axis]:
    """Return the axes of a view, and those of its factors that only repeat (stride 0).

    The owner's factors are digits of an offset in mixed radix; a view's axis is a run of digits.
    """
    digits: list[tuple[int, Factor]] = []
    for length, stride, factors in zip(owner.shape, owner.stride, axes, strict=True):
        if length != 1:
            for factor in reversed(resolved(factors)):
                digits.append((stride, factor))
                stride *= factor.size  # noqa: PLW2901
    digits.sort(key=lambda digit: digit[0])
    pieces = [(n, step) for n, step in zip(view.shape, view.stride, strict=True) if n > 1 and step]
    for _, step in pieces:
        _cut(digits, step)
    out: Axes = []
    repeated: Axis = []
    left = dict(digits)
    for length, stride in zip(view.shape, view.stride, strict=True):
        if length == 1:
            out.append([])
        elif stride == 0:
            out.append(axis(length))
            repeated += out[-1]
        else:
            out.append(_run(left, length, stride))
    return out, repeated


def _run(left: dict[int, Factor], length: int, stride: int) -> Axis:
    """Take the digits that an axis of this length and stride runs over."""
    out, got = list[Factor](), 1
    while got < length:
        factor = left.pop(stride * got, None)
        if factor is None:
            raise UnclearError("a view mixes axes, or its rows overlap")
        if got * factor.size > length:  # a slice: part of a digit, which stays whole
            factor = Factor(-(-length // got), factor.lineage)
        out.insert(0, factor)
        got *= factor.size
    if got != length:
        raise UnclearError("a view mixes axes")
    return out


def _cut(digits: list[tuple[int, Factor]], stride: int) -> None:
    """Split the digit that holds a stride, so that one starts there."""
    for place, (step, factor) in enumerate(digits):
        if step == stride:
            return
        if step < stride < step * factor.size:
            if stride % step:
                break
            outer, inner = split(factor, stride // step)
            digits[place : place + 1] = [(step, inner), (stride, outer)]
            return
    raise UnclearError("a view skips places, or its rows overlap")


def laid_out(
    tensor: Tensor,
    axes: Axes,
    groups: Sequence[Axis],
    *,
    repeated: Iterable[Factor] = (),
    grouped: int | None = None,
    instead: dict[Factor, Factor] | None = None,
) -> Tensor:
    """View a tensor with these axes as axes of the given groups of factors, 1 where it lacks one.

    Args:
        tensor: has the axes `axes`; an axis may be 1 where its factors are broadcast.
        axes: the factors of each axis.
        groups: the factors of each axis wanted, slowest first.
        repeated: factors over which the tensor only repeats.
        grouped: the group whose trailing repeats are taken once: heads that share keys.
        instead: factors to read as others (a product's rows for its operand's rows).

    Raises:
        UnclearError: the tensor has factors that no group has.
    """
    instead = instead or {}

    def read(factors: Iterable[Factor]) -> Axis:
        return [instead.get(factor, factor) for factor in resolved(factors)]

    once = set(read(repeated))
    sizes, mine = list[int](), list[Factor]()
    for length, factors in zip(tensor.shape, map(read, axes), strict=True):
        sizes += [1] * len(factors) if length == 1 else [factor.size for factor in factors]
        mine += factors
    wanted = [read(group) for group in groups]
    order = [factor for group in wanted for factor in group if factor in mine]
    if len(order) != len(mine):
        raise UnclearError("an operand has axes that the similarities lack")
    x = tensor.reshape(sizes).permute([mine.index(factor) for factor in order])
    start, shape = 0, list[int]()
    for number, group in enumerate(wanted):
        x, length = _merged(x, start, group, mine, once if number == grouped else None)
        shape.append(prod(x.shape[start : start + length]))
        start += length
    return x.reshape(shape)


def _merged(
    x: Tensor, start: int, group: Axis, mine: Axis, once: set[Factor] | None
) -> tuple[Tensor, int]:
    """Make the axes from `start` on ready to be merged into one group; return how many they are.

    A group of which the tensor has a part is expanded, except trailing factors of grouped heads.
    """
    here = [factor for factor in group if factor in mine]
    while once is not None and here and here[-1] in once:
        x = x.select(start + len(here) - 1, 0)
        here.pop()
    if all(length == 1 for length in x.shape[start : start + len(here)]):
        return x, len(here)
    needed = group
    if once is not None:
        while needed and needed[-1] not in here:
            needed = needed[:-1]
    for place, factor in enumerate(needed):
        if factor not in here:
            x = x.unsqueeze(start + place)
    before, after = x.shape[:start], x.shape[start + len(needed) :]
    return x.expand(*before, *(factor.size for factor in needed), *after), len(needed)
