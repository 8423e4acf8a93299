"""`Calculation`: a small spreadsheet in memory, the record that everything shows and proves."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from os import PathLike
from typing import TYPE_CHECKING

from qkv.core import proof
from qkv.core.operations import INPUTS, Operation
from qkv.core.recompute import Array
from qkv.errors import NameNotFoundError

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, eq=False, slots=True)
class Step:
    """One matrix of a calculation and how it came about.

    Attributes:
        name: path of the step, sections first: "head 2/similarities".
        symbol: how the step is written in an equation: "Q Kᵀ".
        operation: what was done; one of a closed set.
        operands: names of the earlier steps it was done to.
        value: read-only float64 copy of what PyTorch computed in the module's own precision.
        rows, columns: labels of the axes; text from outside, never markup or formulas.
        says: one sentence for a person.
        selection: the rows or columns that a selecting operation takes.
    """

    name: str
    symbol: str
    operation: Operation
    operands: tuple[str, ...]
    value: Array
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    says: str = ""
    selection: tuple[int, ...] = ()

    @property
    def section(self) -> str:
        """The path without its last part; empty at the top."""
        return self.name.rpartition("/")[0]

    @property
    def short(self) -> str:
        """The last part of the path."""
        return self.name.rpartition("/")[2]

    @property
    def is_input(self) -> bool:
        """Whether the step is given rather than computed."""
        return self.operation in INPUTS


@dataclass(frozen=True, eq=False)
class Calculation:
    """An ordered, frozen list of steps over a closed set of operations.

    `c["weights"]` is a matrix, `c["head 2"]` a Calculation again, `c["head 2/weights"]` a matrix.
    A last part of a path is enough where only one step ends in it. `print(c)` shows every step.

    Attributes:
        title: what was calculated.
        steps: the steps; operands stand before whatever uses them.
        eps: machine epsilon of the precision in which PyTorch computed the values.
        observed: results of the real, fused path by the name of the step they must equal.
    """

    title: str
    steps: tuple[Step, ...]
    eps: float
    observed: Mapping[str, Array] = field(default_factory=dict)

    def __iter__(self) -> Iterator[Step]:
        return iter(self.steps)

    def __len__(self) -> int:
        return len(self.steps)

    def __getitem__(self, name: str) -> "Array | Calculation":
        """Return the matrix of a step, or a section as a Calculation.

        Raises:
            NameNotFoundError: nothing has that name (lists the nearest) or several have.
        """
        if name in self.sections:
            return self.section(name)
        return self.step(name).value

    @property
    def result(self) -> Array:
        """The matrix of the last step."""
        return self.steps[-1].value

    @property
    def sections(self) -> tuple[str, ...]:
        """Every section, outer ones included, in the order in which they begin."""
        found: dict[str, None] = {}
        for step in self.steps:
            parts = step.section.split("/") if step.section else []
            found.update(dict.fromkeys("/".join(parts[: i + 1]) for i in range(len(parts))))
        return tuple(found)

    def step(self, name: str) -> Step:
        """Return the step of that name; the last part of its path is enough if it is unique.

        Raises:
            NameNotFoundError: nothing has that name (lists the nearest) or several have.
        """
        exact = [step for step in self.steps if step.name == name]
        ending = exact or [step for step in self.steps if step.name.endswith(f"/{name}")]
        if len(ending) == 1:
            return ending[0]
        if ending:
            candidates = ", ".join(step.name for step in ending)
            raise NameNotFoundError(f"several steps are named {name!r}: {candidates}")
        known = [*self.sections, *(step.name for step in self.steps)]
        near = get_close_matches(name, [*known, *(step.short for step in self.steps)], n=3)
        hint = f"nearest: {', '.join(near)}" if near else f"there are: {', '.join(known)}"
        raise NameNotFoundError(f"no step or section is named {name!r}; {hint}")

    def section(self, name: str) -> "Calculation":
        """Return one section as a Calculation; what it takes from outside becomes given."""
        prefix = f"{name}/"
        inside = [step for step in self.steps if step.name.startswith(prefix)]
        if not inside:
            raise NameNotFoundError(
                f"no section is named {name!r}; there are: {', '.join(self.sections) or 'none'}"
            )
        own = {step.name: step.name.removeprefix(prefix) for step in inside}
        used = dict.fromkeys(o for step in inside for o in step.operands if o not in own)
        taken = set(own.values())
        names = own | {o: f"outside/{o}" if o in taken else o for o in used}
        borrowed = [_as_given(self.step(operand)) for operand in used]
        steps = [
            replace(step, name=names[step.name], operands=tuple(names[o] for o in step.operands))
            for step in (*borrowed, *inside)
        ]
        observed = {
            key.removeprefix(prefix): value
            for key, value in self.observed.items()
            if key.startswith(prefix)
        }
        return Calculation(f"{self.title}: {name}", tuple(steps), self.eps, observed)

    def verify(self, tolerance: float | None = None) -> proof.Verification:
        """Recompute every step by NumPy in float64 from the given matrices alone, and compare.

        Args:
            tolerance: largest allowed difference of any entry. By default it follows from the
                precision of each step: 16 eps · (1 + the largest number that leads to it).

        Raises:
            VerificationError: a recorded or observed value is further away; names the step.
        """
        return proof.verify(self, tolerance)

    def by_hand(self, places: int = 4) -> proof.ByHand:
        """Redo it as a person would: every given number and every result rounded to `places`.

        Rounds half away from zero, as Excel does. Constants (1/√d_k, eps) are not rounded.
        """
        return proof.by_hand(self, places)

    def to_excel(
        self,
        path: str | PathLike[str],
        *,
        minus_infinity: float = -1e30,
        blank: str | None = None,
        places: int = 4,
    ) -> None:
        """Write a workbook that recalculates itself.

        Args:
            path: of the .xlsx file.
            minus_infinity: what stands for −∞, which worksheets do not know.
            blank: name of a step that is left empty for a person to fill in.
            places: decimal places that such a person writes.

        Raises:
            FileError: it cannot be written; nothing is left behind.
            ArgumentError: the calculation is too large for a workbook, or an argument is wrong.
        """
        from qkv.show import workbook

        workbook.write(self, path, minus_infinity=minus_infinity, blank=blank, places=places)

    def plot(self) -> "Figure":
        """Draw every step as a labelled heat map (needs the extra `plot`)."""
        from qkv.show import plot

        return plot.figure(self)

    def __str__(self) -> str:
        from qkv.show import terminal

        return terminal.text(self)

    def _repr_html_(self) -> str:
        from qkv.show import notebook

        return notebook.html(self)


def _as_given(step: Step) -> Step:
    if step.is_input:
        return step
    return replace(step, operation=Operation.GIVEN, operands=(), selection=())
