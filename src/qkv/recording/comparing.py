"""Two recordings side by side: at which call they depart, and in what."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from qkv.core.blocks import ROWS, runs
from qkv.core.mask import Mask
from qkv.core.mask_parts import Tile, as_bias
from qkv.errors import ArgumentError
from qkv.recording.calls.call import Call
from qkv.recording.columns import MOST, columns

if TYPE_CHECKING:
    from qkv.recording.recording import Recording

TOLERANCE = 1e-4
"""Two ways of computing the same in float32 differ by 1e-6 a layer; a fault by far more."""

PARTS = ("shape", "q", "k", "v", "scale", "soft cap", "mask", "output")
"""What two calls may differ in, in the order in which they are computed."""


class Pair(NamedTuple):
    """Two calls that stand for the same attention; None where one side has no such call."""

    a: Call | None
    b: Call | None

    @property
    def path(self) -> str:
        """The module's path, or both where they differ."""
        paths = [call.path or "" for call in self if call is not None]
        return " | ".join(dict.fromkeys(paths))


@dataclass(frozen=True, eq=False)
class Compared:
    """One pair of calls and how far they are apart.

    Attributes:
        pair: the calls.
        differences: by what ("q", "mask", …), as a share of the largest number in it; ∞ where
            they cannot be compared: other shapes, other keys hidden, no such call.
        tolerance: the largest difference that counts as none.
    """

    pair: Pair
    differences: dict[str, float]
    tolerance: float

    @property
    def departs_in(self) -> str | None:
        """The first of what they are computed from that differs; None where nothing does."""
        return next((what for what in PARTS if self.beyond(what)), None)

    def beyond(self, what: str) -> bool:
        """Whether the calls differ in that."""
        return not self.differences.get(what, 0.0) <= self.tolerance


@dataclass(frozen=True, eq=False, repr=False)
class Comparison:
    """Two recordings, call by call.

        print(a.compare(b))
        a.compare(b).first.departs_in                    "mask"

    Attributes:
        names: of the two.
        calls: every pair of calls, in order.
        by_order: whether the modules were paired by order, as no path is in both.
    """

    names: tuple[str, str]
    calls: tuple[Compared, ...] = field(default=())
    by_order: bool = False

    def __iter__(self) -> Iterator[Compared]:
        return iter(self.calls)

    def __len__(self) -> int:
        return len(self.calls)

    @property
    def first(self) -> Compared | None:
        """The first pair that departs; None where nothing does."""
        return next((compared for compared in self.calls if compared.departs_in), None)

    @property
    def same(self) -> bool:
        """Whether every call of one is a call of the other, within the tolerance."""
        return self.first is None

    def __repr__(self) -> str:
        headings = ("path", "departs in", *PARTS[1:])
        rows = [_row(compared) for compared in self.calls]
        table = columns(headings, rows, right=range(2, len(headings)), most=MOST)
        paired = "  (no path is in both: paired by order)\n" if self.by_order else ""
        return f"{self._sentence()}\n{paired}{table}"

    def _sentence(self) -> str:
        a, b = self.names
        both = f"{a} and {b}" if a != b else f"Two recordings of {a}"
        first = self.first
        if first is None:
            worst = max((max(c.differences.values()) for c in self.calls), default=0.0)
            within = max((c.tolerance for c in self.calls), default=0.0)
            return (
                f"{both}: the same within {within:.1e} in all {len(self.calls)} calls (largest "
                f"difference {worst:.1e}); what comes after the last attention is not compared"
            )
        number = self.calls.index(first) + 1
        what = first.departs_in or ""
        return (
            f"{both} depart at call {number} of {len(self.calls)}, {first.pair.path}, in "
            f"{what}: {_why(first, what)}"
        )


def compare(a: "Recording", b: "Recording", tolerance: float | None = None) -> Comparison:
    """Compare two recordings; see `Recording.compare`."""
    for recording in (a, b):
        if not hasattr(recording, "joined"):
            raise ArgumentError(f"other is a {type(recording).__name__}; wanted a Recording")
    number = isinstance(tolerance, int | float) and not isinstance(tolerance, bool)
    if tolerance is not None and not (number and tolerance >= 0):
        raise ArgumentError(f"tolerance is {tolerance!r}; wanted a number from 0 on, or None")
    pairs, by_order = paired(a.joined(), b.joined())
    calls = tuple(Compared(pair, *_differences(pair, tolerance)) for pair in pairs)
    return Comparison((a.model, b.model), calls, by_order)


def paired(a: Sequence[Call], b: Sequence[Call]) -> tuple[list[Pair], bool]:
    """Pair calls by their path and by which of its calls they are; else all by their order.

    Returns:
        The pairs in the order of the first, what only the second has at the end; and whether they
        were paired by order.
    """
    ours, theirs = _numbered(a), _numbered(b)
    if not ours.keys() & theirs.keys():
        longest = max(len(a), len(b))
        filled = ([*calls, *[None] * (longest - len(calls))] for calls in (a, b))
        return [Pair(*two) for two in zip(*filled, strict=True)], True
    keys = [*ours, *(key for key in theirs if key not in ours)]
    return [Pair(ours.get(key), theirs.get(key)) for key in keys], False


def _numbered(calls: Sequence[Call]) -> dict[tuple[str, int], Call]:
    seen: dict[str, int] = {}
    numbered = {}
    for call in calls:
        path = call.path or ""
        numbered[path, seen.setdefault(path, 0)] = call
        seen[path] += 1
    return numbered


def _differences(pair: Pair, tolerance: float | None) -> tuple[dict[str, float], float]:
    """How far two calls are apart in each of PARTS, and what is tolerated."""
    a, b = pair
    if a is None or b is None:
        return {"shape": torch.inf}, 0.0
    coarsest = max(torch.finfo(call.q.dtype).eps for call in pair if call is not None)
    allowed = max(TOLERANCE, 16 * coarsest) if tolerance is None else tolerance
    found = {"shape": 0.0 if _sizes(a) == _sizes(b) else torch.inf}
    found |= {
        "q": apart(a.q, b.q),
        "k": apart(a.k, b.k),
        "v": apart(a.v, b.v),
        "scale": _numbers_apart(a.scale, b.scale),
        "soft cap": _numbers_apart(a.softcap, b.softcap),
        "mask": masks_apart(a, b),
        "output": apart(a.output, b.output),
    }
    return found, allowed


def apart(a: Tensor, b: Tensor) -> float:
    """Return max |a − b| / max(|a|, |b|); ∞ for other shapes, or numbers beside no numbers.

    Grouped heads are compared as they are repeated.
    """
    if a.dim() == b.dim() == 4 and a.shape[1] != b.shape[1]:
        a, b = _repeated(a, b)
    if a.shape != b.shape:
        return torch.inf
    x, y = (t.detach().to("cpu", torch.promote_types(t.dtype, torch.float32)) for t in (a, b))
    equal = (x == y) | (x.isnan() & y.isnan())
    if equal.all():
        return 0.0
    distance = float((x - y).abs().masked_fill(equal, 0.0).max())
    largest = max(_largest(x), _largest(y))
    return distance / largest if largest and not math.isnan(distance) else torch.inf


def masks_apart(a: Call, b: Call) -> float:
    """How far what is added differs, as `apart` has it; ∞ where other keys are hidden."""
    queries, keys = a.q.shape[-2], a.k.shape[-2]
    if _sizes(a) != _sizes(b):
        return torch.inf
    if a.mask is None and b.mask is None:
        return 0.0
    distance = largest = 0.0
    for rows in runs(queries, ROWS):
        x, y = (_added(call.mask, rows, queries, keys) for call in (a, b))
        if not torch.equal(*torch.broadcast_tensors(x == -torch.inf, y == -torch.inf)):
            return torch.inf
        x, y = (t.masked_fill(t == -torch.inf, 0.0) for t in (x, y))
        distance = max(distance, float((x - y).abs().max()))
        largest = max(largest, _largest(x), _largest(y))
    return distance / largest if distance else 0.0


def _added(mask: Mask | None, rows: range, queries: int, keys: int) -> Tensor:
    """What is added in some rows: 0 where a mask lets look, −∞ where it does not."""
    cpu = torch.device("cpu")
    tile: Tile = True
    if mask is not None:
        tile = mask.tile(rows, range(keys), queries=queries, keys=keys, device=cpu)
    whole = torch.tensor(tile).expand(1, 1) if isinstance(tile, bool) else tile
    return as_bias(whole, torch.float32)


def _largest(x: Tensor) -> float:
    finite = x[x.isfinite()]
    return float(finite.abs().max()) if finite.numel() else 0.0


def _repeated(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    heads = max(a.shape[1], b.shape[1])
    if heads % a.shape[1] or heads % b.shape[1]:
        return a, b
    return a.repeat_interleave(heads // a.shape[1], 1), b.repeat_interleave(heads // b.shape[1], 1)


def _numbers_apart(a: float | Tensor | None, b: float | Tensor | None) -> float:
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return apart(a, b)
    if isinstance(a, Tensor) or isinstance(b, Tensor):
        return torch.inf
    if a is None or b is None:
        return 0.0 if a is b else torch.inf
    return abs(a - b) / max(abs(a), abs(b)) if a != b else 0.0


def _sizes(call: Call) -> tuple[int, ...]:
    """(batch, heads, queries, keys)."""
    return (*call.q.shape[:-1], call.k.shape[-2])


def _why(compared: Compared, what: str) -> str:
    a, b = compared.pair
    if a is None or b is None:
        return f"only {'the second' if a is None else 'the first'} has it"
    if what == "shape":
        return f"{_spelled(_sizes(a))} and {_spelled(_sizes(b))} (batch, heads, queries, keys)"
    if what in ("scale", "soft cap"):
        names = {"scale": "scale", "soft cap": "softcap"}
        return " and ".join(f"{getattr(call, names[what])}" for call in (a, b))
    difference = compared.differences[what]
    if what == "mask" and difference == torch.inf:
        return "other keys are hidden"
    return f"{difference:.1e} of the largest number, tolerated is {compared.tolerance:.1e}"


def _spelled(sizes: Sequence[int]) -> str:
    return " × ".join(map(str, sizes))


def _row(compared: Compared) -> tuple[str, ...]:
    known = compared.differences
    cells = (
        "" if what not in known else "0" if known[what] == 0 else f"{known[what]:.1e}"
        for what in PARTS[1:]
    )
    return (compared.pair.path or "(no module)", compared.departs_in or "", *cells)
