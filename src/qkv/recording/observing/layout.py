"""(batch, heads, queries, keys): which axes are which, and tensors laid out that way."""

from collections.abc import Callable, Iterable
from typing import NamedTuple

from torch import Tensor

from qkv.recording.calls.held import Held
from qkv.recording.observing.axes import (
    Axes,
    Axis,
    Factor,
    UnclearError,
    joined,
    laid_out,
    resolved,
    unify,
)
from qkv.recording.observing.nodes import Node, Product


class Roles(NamedTuple):
    """What the factors of the similarities' axes are."""

    batch: Axis
    heads: Axis
    queries: Axis
    keys: Axis


class Laid:
    """A held tensor, laid out whenever it is asked for."""

    __slots__ = ("axes", "grouped", "groups", "held", "instead", "repeated")

    def __init__(
        self,
        held: Held,
        axes: Axes,
        groups: Iterable[Axis],
        *,
        repeated: Axis | None = None,
        grouped: int | None = None,
        instead: list[tuple[Factor, Factor]] | None = None,
    ) -> None:
        """Keep what `laid_out` takes."""
        self.held = held
        self.axes = axes
        self.groups = tuple(groups)
        self.repeated = repeated or []
        self.grouped = grouped
        self.instead = dict(instead or ())

    def check(self) -> None:
        """Raise UnclearError where it cannot be laid out, without doing it."""
        wanted = {factor for group in self.groups for factor in resolved(group)}
        mine = {self.instead.get(factor, factor) for factor in resolved(joined(self.axes))}
        if not mine <= wanted:
            raise UnclearError("an operand has axes that the similarities lack")

    def __call__(self) -> Tensor:
        """Return the view."""
        tensor = self.held.tensor
        missing = len(self.axes) - tensor.dim()
        x = tensor[(None,) * missing] if missing else tensor
        return laid_out(
            x,
            self.axes,
            self.groups,
            repeated=self.repeated,
            grouped=self.grouped,
            instead=self.instead,
        )


class Changed:
    """A laid out tensor that is changed before it acts: a divisor becomes its reciprocal."""

    __slots__ = ("change", "laid")

    def __init__(self, laid: Laid, change: Callable[[Tensor], Tensor]) -> None:
        """Keep both."""
        self.laid = laid
        self.change = change

    def __call__(self) -> Tensor:
        """Return what acts."""
        return self.change(self.laid())


def roles(similarities: Node, dim: int, product: Product) -> tuple[Roles, bool]:
    """Tell batch, heads, queries and keys apart; also whether the queries are the product's rows.

    Keys are what the softmax runs over, and one side of the product; queries are the other side.
    Heads are split from the same axis as the width that the product sums over.

    Raises:
        UnclearError: the softmax is not over one side of the product.
    """
    axes = [resolved(factors) for factors in similarities.axes]
    rows, columns = resolved(product.rows), resolved(product.columns)
    if axes[dim] == columns:
        queries, keys, by_rows = rows, columns, True
    elif axes[dim] == rows:
        queries, keys, by_rows = columns, rows, False
    else:
        raise UnclearError("the softmax is not over one side of the product")
    others = [factors for place, factors in enumerate(axes) if place != dim]
    lineage = product.lineage
    if not queries:
        ones = [place for place, factors in enumerate(others) if not factors]
        leading = [f for place, f in enumerate(others) if not ones or place != ones[-1]]
        return Roles(*_batch_and_heads(leading, lineage), queries, keys), by_rows
    if any(factor not in joined(others) for factor in queries):
        raise UnclearError("the softmax is over a part of the queries, or they were sliced")
    others = [
        factors for factors in others if not factors or any(f not in queries for f in factors)
    ]
    leading = [[factor for factor in factors if factor not in queries] for factors in others]
    batch, heads = _batch_and_heads(leading, lineage)
    folded = [factor for factor in queries if factor.lineage & lineage]
    if folded and len(folded) < len(queries):  # heads among the rows: they share a key head
        before, heads = (batch, heads) if _shares(heads, lineage) else (batch + heads, [])
        rest = [factor for factor in queries if factor not in folded]
        return Roles(before, heads + folded, rest, keys), by_rows
    return Roles(batch, heads, queries, keys), by_rows


def _batch_and_heads(leading: list[Axis], lineage: frozenset[object]) -> tuple[Axis, Axis]:
    related = [place for place, factors in enumerate(leading) if _shares(factors, lineage)]
    if not related and len(leading) < 2:
        only = joined(leading)
        return (only[:-1], only[-1:]) if len(only) > 1 else (only, [])
    place = related[-1] if related else len(leading) - 1
    axis = leading[place]
    start = next((i for i, factor in enumerate(axis) if factor.lineage & lineage), 0)
    before = [factor for i, factors in enumerate(leading) if i != place for factor in factors]
    return before + axis[:start], axis[start:]


def _shares(factors: Axis, lineage: frozenset[object]) -> bool:
    return any(factor.lineage & lineage for factor in factors)


class Projected:
    """The product of an attention's output with a parameter.

    Args:
        held: the parameter as the product read it.
        output: the node of the operand that came from the attention.
        parameter: the node of the parameter.
        by_left: whether the attention's output is the left operand.
    """

    def __init__(self, held: Held, output: Node, parameter: Node, by_left: bool) -> None:
        """Keep what is laid out when asked."""
        self.held = held
        self.output = output
        self.parameter = parameter
        self.by_left = by_left

    def laid_out(self, heads: Axis, width: Axis) -> Tensor | None:
        """Return (heads, d_v, n_out), or None where the output was mixed before."""
        theirs = self.output.axes[-1 if self.by_left else -2]
        inputs, outputs = self.parameter.axes[-2:] if self.by_left else self.parameter.axes[:-3:-1]
        try:
            unify(inputs, theirs)
            return laid_out(self.held.tensor, self.parameter.axes, (heads, width, outputs))
        except UnclearError:
            return None
