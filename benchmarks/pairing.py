"""Paired timing: who is compared runs in turns, and the ratio is taken within each round.

A machine that slows down for a while slows down both sides of a pair, so the ratio stays. The
order of every round is another row of a balanced design (Williams 1949): each contestant follows
each other one equally often. The ratio comes with the 95 % interval of its median, from order
statistics alone: no assumption about how the times are spread.
"""

import gc
import json
import math
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

Call = Callable[[], object]

SAMPLE = 2e-3
"""Seconds that one sample takes at least: shorter calls are repeated within it."""


@dataclass(frozen=True)
class Ratio:
    """Median of paired ratios, and the ends of its 95 % interval."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.3f} [{self.low:.3f}, {self.high:.3f}]"


@dataclass(frozen=True)
class Bar:
    """What a ratio may be at most; met when the interval reaches the limit."""

    what: str
    limit: float
    ratio: Ratio

    @property
    def met(self) -> bool:
        """Whether the lower end of the interval is not above the limit."""
        return self.ratio.low <= self.limit

    @property
    def steady(self) -> bool:
        """Whether the interval is narrow enough to tell the limit from a tenth more or less."""
        return self.ratio.high - self.ratio.low <= 0.1 * self.limit

    def __str__(self) -> str:
        verdict = "met" if self.met else "MISSED"
        doubt = "" if self.steady else "  (wide interval: measure on a quiet machine)"
        return f"{verdict:<6}  ≤ {self.limit:.2f} × {self.what}: {self.ratio}{doubt}"


@dataclass(frozen=True)
class Pace:
    """How long to measure: seconds a case, and rounds within limits."""

    seconds: float = 12.0
    least: int = 40
    most: int = 300


QUICK = Pace(seconds=0.5, least=8, most=40)
"""For development: intervals are wide, the verdicts mean little."""


@dataclass(frozen=True)
class Timing:
    """Seconds a call, by contestant, one number a round."""

    seconds: dict[str, list[float]]
    inner: int

    @property
    def rounds(self) -> int:
        """How often each contestant was timed."""
        return len(next(iter(self.seconds.values())))

    def median(self, name: str) -> float:
        """Return the median seconds of a call."""
        return median(self.seconds[name])

    def ratio(self, ours: str, other: str) -> Ratio:
        """Return ours / other, paired by round."""
        pairs = zip(self.seconds[ours], self.seconds[other], strict=True)
        return ratio_of([a / b for a, b in pairs])


def ratio_of(ratios: Sequence[float]) -> Ratio:
    """Return the median and the interval between the k-th smallest and the k-th largest ratio.

    k is the largest number with P(Binomial(n, 1/2) < k) ≤ 2.5 %.

    Raises:
        ValueError: fewer than 6 pairs, for which there is no such interval.
    """
    n, k, tail = len(ratios), 0, 0.0
    while (tail := tail + math.comb(n, k) / 2**n) <= 0.025:
        k += 1
    if k == 0:
        raise ValueError(f"there are {n} pairs; a 95 % interval wants 6 or more")
    ordered = sorted(ratios)
    return Ratio(median(ordered), ordered[k - 1], ordered[n - k])


def orders(n: int) -> list[list[int]]:
    """Return rows in which each of n numbers follows each other one equally often."""
    first = [0, *((i + 1) // 2 if i % 2 else n - i // 2 for i in range(1, n))]
    rows = [[(i + shift) % n for i in first] for shift in range(n)]
    return rows if n % 2 == 0 else [*rows, *(row[::-1] for row in rows)]


def interleave(calls: Mapping[str, Call], pace: Pace) -> Timing:
    """Warm up, then time all contestants in turns, round after round."""
    inner, rounds = _plan(calls, pace)
    names = list(calls)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    rows = orders(len(names))
    gc.collect()
    gc.disable()
    try:
        for i in range(rounds):
            for at in rows[i % len(rows)]:
                seconds[names[at]].append(_timed(calls[names[at]], inner))
    finally:
        gc.enable()
    return Timing(seconds, inner)


def _plan(calls: Mapping[str, Call], pace: Pace) -> tuple[int, int]:
    """Warm up, and choose calls a sample and rounds from the times seen."""
    once = [_once(call) for call in calls.values()]
    inner = max(1, math.ceil(SAMPLE / min(once)))
    fitting = int(pace.seconds / (inner * sum(once)))
    return inner, min(pace.most, max(pace.least, fitting))


def _once(call: Call) -> float:
    """Time a call that has been warmed up; one of seconds is warm after its first run."""
    first = _timed(call, 1)
    return first if first > 1 else min(_timed(call, 1) for _ in range(2))


def _timed(call: Call, inner: int) -> float:
    start = time.perf_counter()
    for _ in range(inner):
        call()
    return (time.perf_counter() - start) / inner


def table(rows: Sequence[Sequence[str]]) -> str:
    """Return rows as aligned text: the first column to the left, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for first, *rest in rows:
        cells = [cell.rjust(width) for cell, width in zip(rest, widths[1:], strict=True)]
        lines.append("    ".join((first.ljust(widths[0]), *cells)))
    return "\n".join(lines)


def timing_table(timing: Timing, ours: str, *, over: bool = False) -> str:
    """Return medians in ms, and the ratio of ours to everybody else, or of them to it (`over`)."""
    rows = [("", "median ms", f"it / {ours}" if over else f"{ours} / it", "95 % interval")]
    for name in timing.seconds:
        shown = f"{timing.median(name) * 1e3:.3f}"
        if name == ours:
            rows.append((name, shown, "", ""))
            continue
        ratio = timing.ratio(name, ours) if over else timing.ratio(ours, name)
        rows.append((name, shown, f"{ratio.median:.3f}", f"{ratio.low:.3f} to {ratio.high:.3f}"))
    return table(rows)


def bar_record(bar: Bar) -> dict[str, Any]:
    """Return a bar as JSON takes it."""
    return {**asdict(bar), "met": bar.met, "steady": bar.steady}


def write_json(path: Path, measured: object, **about: object) -> None:
    """Write what was measured, and on what."""
    where = {"python": platform.python_version(), "machine": platform.platform(), **about}
    path.write_text(json.dumps({**where, "measured": measured}, indent=1) + "\n", encoding="utf-8")
