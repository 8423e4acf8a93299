"""`Form`: a program of scores in the form that it mostly has, softmax(cap(Q Kᵀ · scale) + M).

Whatever a model does between its two products is a list of operations in its own order: divide
by 8, add −10000 here, fill with the least number there, bend by tanh. This file reads the list.
"""

from dataclasses import dataclass, field
from functools import cached_property
from math import isfinite

import torch
from jaxtyping import Float
from torch import Tensor

from qkv.core.mask import Mask
from qkv.core.mask_parts import Band, Part
from qkv.core.operations import BLOCKED
from qkv.recording.calls.masks import (
    Added,
    blocks_of,
    hides_all,
    narrowed,
    offset,
    open_,
)
from qkv.recording.calls.operands import Lazy, Operands, Operation
from qkv.recording.calls.readings import Readings
from qkv.recording.calls.terms import VANISHING, Filled, Summand


@dataclass(frozen=True, eq=False)
class Form:
    """softmax(cap(Q Kᵀ · factor · scale) + M), as far as a program is that.

    Attributes:
        scale: what the similarities are multiplied by.
        factor: what they are multiplied by besides, one number a head or a query (SwinV2).
        softcap: c of c · tanh(… / c), or None.
        mask: who may look at whom, and what is added; None where there is nothing of it.
        plain: whether the form is all that the program does.
        least: whether there are rows that a finite least value hides whole. The form says that
            they look at nothing; the program's softmax makes them uniform.
    """

    scale: float
    factor: Float[Tensor, "#batch #heads #queries 1"] | None
    softcap: float | None
    mask: Mask | None
    plain: bool
    least: bool


@dataclass(eq=False)
class _Reader:
    """Reads a program, operation by operation."""

    operands: Operands
    readings: Readings
    scale: float = 1.0
    factor: Tensor | None = None
    cap: float | None = None
    filled: list[Filled] = field(default_factory=list)
    added: list[Summand] = field(default_factory=list)
    switches: list[Tensor] = field(default_factory=list)  # 1, or 0 where a mask hides besides
    bands: list[Part] = field(default_factory=list)
    floors: list[float] = field(default_factory=list)
    ceilings: list[float] = field(default_factory=list)
    plain: bool = True

    def read(self, operation: Operation) -> None:
        match operation.kind:
            case "multiply":
                self._multiply(operation)
            case "negate":
                self._times(-1.0)
            case "tanh":
                self._tanh()
            case "add":
                self._add(operation)
            case "fill" | "where":
                self._fill(operation)
            case "maximum":
                self._limit(constant(operation.operand, operation.number), None)
            case "clamp":
                self._limit(*(operation.limits or (None, None)))
            case "function":
                self.plain = False
            case "causal":
                own = int(operation.number or 0)
                self.bands.append(Band(None, 0, offset(own, *self.shape)))

    @property
    def shape(self) -> tuple[int, int]:
        return self.operands.q.shape[-2], self.operands.k.shape[-2]

    @property
    def begun(self) -> bool:
        """Whether something other than a multiplication was done."""
        return bool(self.filled or self.added or self.bands or self.floors or self.ceilings)

    def _multiply(self, operation: Operation) -> None:
        number = constant(operation.operand, operation.number)
        if number is not None:
            self._times(number)
            return
        assert operation.operand is not None
        tensor = narrowed(operation.operand())
        if self.begun or (self.cap is not None and tensor.shape[-1] == 1):
            self.plain = False
        elif tensor.shape[-1] == 1:
            self.factor = tensor if self.factor is None else self.factor * tensor
        elif self.readings.once(tensor, "switch", lambda: _is_switch(tensor)):
            self.switches.append(tensor)
        else:
            self.plain = False

    def _times(self, number: float) -> None:
        """(cap(x s) + B) c = c cap(x s) + c B; what is hidden stays so if c is above 0."""
        if number <= 0 and (self.filled or self.bands or self.floors or self.ceilings):
            self.plain = False
        if self.cap is None:
            self.scale *= number
        else:
            self.cap *= number
        for added in self.added:
            added.factor *= number
        for filled in self.filled:
            filled.number *= number
        self.floors = [floor * number for floor in self.floors]
        self.ceilings = [ceiling * number for ceiling in self.ceilings]

    def _tanh(self) -> None:
        if self.begun or self.cap is not None:
            self.plain = False
        else:
            self.cap = 1.0

    def _add(self, operation: Operation) -> None:
        if operation.operand is None:
            one = torch.full((1, 1, 1, 1), operation.number or 0.0, device=self.operands.q.device)
            self.added.append(Summand(one, 1.0, self.readings))
            return
        factor = 1.0 if operation.number is None else operation.number
        self.added.append(Summand(narrowed(operation.operand()), factor, self.readings))

    def _fill(self, operation: Operation) -> None:
        assert operation.operand is not None
        number = constant(operation.other, operation.number)
        if number is None:
            self.plain = False
            return
        values = narrowed(operation.operand())
        self.filled.append(Filled(values, operation.kind == "fill", number, self.readings))

    def _limit(self, low: float | None, high: float | None) -> None:
        if low is None and high is None:
            self.plain = False  # a maximum of two tensors
        if low is not None:
            self.floors.append(low)
        if high is not None:
            self.ceilings.append(high)

    @property
    def bound(self) -> float:
        """No logit that something may be seen by is further from 0."""
        return self._most + 2 * sum(added.spread for added in self.added) + VANISHING

    @cached_property
    def _most(self) -> float:
        """‖q‖ ‖k‖ |scale|, or the cap: no similarity is further from 0."""
        if self.cap is not None:
            return abs(self.cap)
        q = self.operands.q.float() * (1.0 if self.factor is None else self.factor.float())
        k = self.operands.k.float()
        norms = [float(t.norm(dim=-1).max()) if t.numel() else 0.0 for t in (q, k)]
        return norms[0] * norms[1] * abs(self.scale)

    def _tell_hiding(self) -> None:
        """What does not hide counts in full, which raises the bound, by which less hides."""
        told = True
        while told:
            told = False
            for added in self.added:
                if added.hides and not (added.low <= -VANISHING and self._vanishes(added.cut)):
                    added.hides, told = False, True

    def _vanishes(self, number: float) -> bool:
        """Whether a logit of this size has no weight beside any other one."""
        return number <= BLOCKED or number <= -self.bound

    def form(self) -> Form:
        self._tell_hiding()
        parts, finite = list(self.bands), bool(self.floors)
        for filled in self.filled:
            if not self._vanishes(filled.number):
                self.plain = False
                continue
            mask = filled.recognised(*self.shape)
            parts += (filled.by_reference,) if mask is None else mask.parts
            finite |= isfinite(filled.number)
        for added in self.added:
            more, hidden = self._added_parts(added)
            parts += more
            finite |= hidden
        self._limits()
        whole = Mask(tuple(parts)) if parts else None
        self.plain &= all(self._are_hidden(whole, switch) for switch in self.switches)
        device = self.operands.q.device
        least = finite and whole is not None and hides_all(whole, *self.shape, device)
        scale, softcap = self.scale, None
        if self.cap is not None:  # m tanh(s x) = c tanh(s m x / c), c = |m|
            scale, softcap = self.scale * self.cap, abs(self.cap)
        return Form(scale, self.factor, softcap or None, whole, self.plain, least)

    def _added_parts(self, added: Summand) -> tuple[tuple[Part, ...], bool]:
        """What is added, as parts of a mask; whether a finite number of it hides."""
        hides = added.hides
        if not hides and not added.spread:
            return (), False  # a mask that hides nothing
        mask = added.recognised(*self.shape) if hides else None
        parts = () if mask is None else mask.parts
        if mask is None or added.spread:
            unread = hides and mask is None
            parts += (Added(added.values, added.factor, added.spread > 0, unread),)
        told = mask is not None or added.cut == BLOCKED  # else it is added as the number it is
        return parts, hides and told and added.finite

    def _are_hidden(self, mask: Mask | None, switch: Tensor) -> bool:
        """Whether what was multiplied by 0 is hidden by the mask (GPT: x b − 10000 (1 − b))."""
        queries, keys = self.shape
        if mask is None or switch.shape[-2] not in (1, queries):
            return False
        wide = switch.expand(*switch.shape[:-2], queries, keys)
        for rows, block in blocks_of(wide):
            tile = mask.tile(rows, range(keys), queries=queries, keys=keys, device=block.device)
            if tile is True or (
                isinstance(tile, Tensor) and bool((open_(tile) & (block == 0)).any())
            ):
                return False
        return True

    def _limits(self) -> None:
        """A limit that no logit reaches changes nothing but what is hidden: to a finite number."""
        self.plain &= all(self._vanishes(floor) for floor in self.floors)
        self.plain &= all(high >= -BLOCKED or high >= self.bound for high in self.ceilings)


def form_of(operands: Operands, readings: Readings | None = None) -> Form:
    """Read the program of an attention; masks that were read for another one are not again."""
    reader = _Reader(operands, readings or Readings())
    for operation in operands.scores:
        reader.read(operation)
    return reader.form()


def _is_switch(values: Tensor) -> bool:
    return all(bool(((block == 0) | (block == 1)).all()) for _, block in blocks_of(values))


def constant(operand: Lazy | None, number: float | None) -> float | None:
    """Return the one number that an operand holds, or the number beside it; None: several."""
    if operand is None:
        return number
    values = narrowed(operand())
    if values.numel() == 1:
        return float(values)
    if not values.numel():
        return None
    first = float(values[0, 0, 0, 0])
    same = all(bool((block == first).all()) for _, block in blocks_of(values))
    return first if same else None
