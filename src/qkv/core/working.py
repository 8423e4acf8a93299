"""`Working`: writes a Calculation down step by step while PyTorch computes it."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np
import torch
from torch import Tensor

from qkv.core.calculation import Calculation, Step
from qkv.core.operations import SELECTING, Operation, compute
from qkv.core.recompute import Array
from qkv.errors import ArgumentError, NameNotFoundError, ShapeError

Labels = Sequence[str] | None


class Working:
    """The working of a calculation, as a pupil shows it: every intermediate result is kept.

        w = Working("softmax")
        x = w.given("x", tensor, symbol="X", says="three judges' marks")
        w.step(Operation.ROW_SUM, "sum", x, symbol="z")
        calculation = w.finish()

    Each call returns the step's name, which later steps take as their operand.
    """

    def __init__(self, title: str) -> None:
        """Start an empty working."""
        self._title = title
        self._steps: dict[str, Step] = {}
        self._tensors: dict[str, Tensor] = {}

    def given(
        self,
        name: str,
        value: Tensor,
        *,
        symbol: str,
        says: str = "",
        rows: Labels = None,
        columns: Labels = None,
        blocks: bool = False,
    ) -> str:
        """Write down an input; where it `blocks` (a mask) it may hold −∞.

        Raises:
            ArgumentError: it holds a number that is not finite; says where.
            ShapeError: it is not a matrix, or labels and axes differ in length.
        """
        value = value.detach()
        if value.dim() != 2:
            raise ShapeError(f"{name} has {value.dim()} axes; a step is a matrix with 2")
        if not value.is_floating_point():
            raise ArgumentError(f"{name} is {value.dtype}; wanted floats: tensor.float()")
        allowed = value.isfinite() | (value.isneginf() & blocks)
        bad = (~allowed).nonzero()
        if len(bad):
            row, column = bad[0].tolist()
            raise ArgumentError(
                f"{name} holds {value[row, column].item()} in row {row}, column {column}; "
                f"wanted finite numbers"
            )
        return self._add(Operation.GIVEN, name, (), value, (symbol, says), (rows, columns))

    def constant(self, name: str, number: float, *, symbol: str, like: str, says: str = "") -> str:
        """Write down a number that follows from the sizes or the recipe, in `like`'s precision."""
        value = torch.full((1, 1), number, dtype=torch.float64)
        self._add(Operation.CONSTANT, name, (), value, (symbol, says), (None, None))
        self._tensors[name] = value.to(self._tensors[like])
        return name

    def step(
        self,
        operation: Operation,
        name: str,
        *operands: str,
        symbol: str,
        says: str = "",
        rows: Labels = None,
        columns: Labels = None,
        selection: Sequence[int] = (),
    ) -> str:
        """Compute one operation of earlier steps and write it down.

        Raises:
            NameNotFoundError: an operand is no earlier step.
            ShapeError: the operands do not fit each other.
        """
        unknown = [operand for operand in operands if operand not in self._steps]
        if unknown:
            raise NameNotFoundError(
                f"{name} uses {unknown[0]!r}, which is no earlier step; there are: "
                f"{', '.join(self._steps)}"
            )
        tensors = [self._tensors[operand] for operand in operands]
        try:
            value = compute(operation, tensors, tuple(selection))
        except (RuntimeError, IndexError) as error:
            shapes = ", ".join(f"{o} is {tuple(self._tensors[o].shape)}" for o in operands)
            raise ShapeError(f"{name} cannot be computed by {operation}: {shapes}") from error
        known = _labels(operation, [self._steps[o] for o in operands], tuple(selection), symbol)
        named = (rows or known[0], columns or known[1])
        chosen = tuple(selection) if operation in SELECTING else ()
        return self._add(operation, name, operands, value, (symbol, says), named, chosen)

    def tensor(self, name: str) -> Tensor:
        """Return what PyTorch computed for a step, in its own precision."""
        return self._tensors[name]

    def labels(self, name: str) -> tuple[str, ...]:
        """Return the labels of a step's rows."""
        return self._steps[name].rows

    def finish(self, observed: Mapping[str, Tensor] | None = None) -> Calculation:
        """Return the Calculation; `observed` are results of the real path by step name."""
        eps = max(torch.finfo(tensor.dtype).eps for tensor in self._tensors.values())
        seen = {name: _frozen(value) for name, value in (observed or {}).items()}
        return Calculation(self._title, tuple(self._steps.values()), eps, MappingProxyType(seen))

    def _add(
        self,
        operation: Operation,
        name: str,
        operands: tuple[str, ...],
        value: Tensor,
        told: tuple[str, str],
        named: tuple[Labels, Labels],
        selection: tuple[int, ...] = (),
    ) -> str:
        if name in self._steps:
            raise ArgumentError(f"a step is named {name!r} already; every step has its own name")
        symbol, says = told
        labels = (_numbered(named[0], value.shape[0]), _numbered(named[1], value.shape[1]))
        for axis, names, size in zip(("rows", "columns"), labels, value.shape, strict=True):
            if len(names) != size:
                raise ShapeError(f"{name} has {size} {axis}, but {len(names)} labels for them")
        self._tensors[name] = value
        self._steps[name] = Step(
            name, symbol, operation, operands, _frozen(value), *labels, says, selection
        )
        return name


def _frozen(value: Tensor) -> Array:
    array = np.array(value.detach().to("cpu", torch.float64).numpy(), order="C")
    array.setflags(write=False)
    return array


def _numbered(labels: Labels, size: int) -> tuple[str, ...]:
    return tuple(labels) if labels is not None else tuple(str(i + 1) for i in range(size))


def _labels(
    operation: Operation, operands: list[Step], selection: tuple[int, ...], symbol: str
) -> tuple[Labels, Labels]:
    """Labels of a result, from those of its operands."""
    x, y = operands[0], operands[-1]
    match operation:
        case Operation.TRANSPOSE:
            return x.columns, x.rows
        case Operation.PRODUCT:
            return x.rows, y.columns
        case Operation.PRODUCT_TRANSPOSED:
            return x.rows, y.rows
        case Operation.ROW_MAXIMUM | Operation.ROW_SUM | Operation.ROW_MEAN:
            return x.rows, (symbol,)
        case Operation.CONCATENATE:
            return x.rows, [label for part in operands for label in part.columns]
        case Operation.COLUMNS:
            return x.rows, [x.columns[i] for i in selection]
        case Operation.ROWS:
            return [x.rows[i] for i in selection], x.columns
    return x.rows, x.columns
