"""What `qkv explain` prints: the steps, the proof, and the name of the workbook."""

import sys
from dataclasses import dataclass
from functools import cached_property
from io import StringIO
from pathlib import Path

import numpy as np
from rich.console import Console, Group, RenderableType
from rich.text import Text

from qkv.cli import printable
from qkv.cli.screen import json_of
from qkv.core.calculation import Calculation, Step
from qkv.core.proof import ByHand, Verification, difference
from qkv.core.recompute import Array
from qkv.explaining.heads import HeadTable, Link
from qkv.show.spelling import equation
from qkv.show.terminal import Window, matrix, rendered, table

SIDE_BY_SIDE = 2
"""Columns of the result that the proof shows."""

HEADINGS = {
    "encoder": "Heads that link words (neighbours not counted)",
    "decoder": "Heads that link words (neighbours and the first token not counted)",
    "cross": "Heads that link what is written with what was read",
}
"""Above the table of heads, by the kind of attention."""

SOURCES = {
    "steps": "recorded step by step",
    "fused": "by PyTorch's fused kernel",
    "NumPy": "by NumPy in float64",
    "hand": "by hand",
}
"""Where a result comes from, by the name above its columns."""


@dataclass(frozen=True)
class Report:
    """A calculation with its proof; where all heads of a model were asked for, their table."""

    calculation: Calculation
    heads: HeadTable | None
    places: int

    @cached_property
    def verified(self) -> Verification:
        """The recomputation; raises where it does not confirm the numbers."""
        return self.calculation.verify()

    @cached_property
    def by_hand(self) -> ByHand:
        """The calculation with rounding."""
        return self.calculation.by_hand(self.places)


def told(report: Report, workbook: Path | None, as_json: bool) -> str:
    """Return all that is printed; raises VerificationError where the proof fails."""
    if as_json:
        return json_of(_plain(report, workbook))
    terminal = sys.stdout is not None and sys.stdout.isatty()
    page = StringIO()
    console = Console(file=page, force_terminal=terminal or None, highlight=False, soft_wrap=True)
    window = Window(width=max(60, min(console.width, 160)))
    console.width = window.width  # rich prints nothing where COLUMNS is 0
    if report.heads is not None:
        console.print(_heads(report.heads))
    else:
        console.print(rendered(report.calculation, window))
    console.print(proof(report, window))
    if workbook is not None:
        console.print(Text(f"\nworkbook: {printable(str(workbook))}"))
    return page.getvalue()


def _heads(heads: HeadTable) -> Group:
    rows = [
        (str(h.layer), str(h.head), f"{h.linking:.2f}", f"{h.reach:.1f}", _links(h.links))
        for h in heads.ranked
    ]
    columns = ("layer", "head", "links words", "looks at", "strongest links")
    looks = [
        (word, ", ".join(f"{other} {weight:.2f}" for other, weight in others))
        for word, others in heads.looks
    ]
    one = f"--layer {heads.first.layer} --head {heads.first.head}"
    return table(
        heads.title,
        [
            (HEADINGS[heads.kind], columns, rows),
            ("Where each word looks most, over all these heads", ("word", "looks at"), looks),
        ],
        f"Every number of one head: {one}{f' --kind {heads.kind}' if heads.chosen else ''}",
    )


def _links(links: tuple[Link, ...]) -> str:
    return ", ".join(f"{link.source} → {link.target} {link.weight:.2f}" for link in links)


def proof(report: Report, window: Window) -> Group:
    """Return the result from every source side by side, and how far they are apart."""
    c, last = report.calculation, report.calculation.steps[-1]
    recomputed = report.verified.recomputed[last.name]
    sources = {"steps": last.value, "fused": c.observed.get(last.name), "NumPy": recomputed}
    shown = {name: value for name, value in sources.items() if value is not None}
    shown["hand"] = report.by_hand.calculation.result
    columns = [
        (f"{name} {last.columns[j]}", value[:, j])
        for j in range(min(SIDE_BY_SIDE, len(last.columns)))
        for name, value in shown.items()
    ]
    first = report.heads and report.heads.first
    where = f"layer {first.layer}, head {first.head}, " if first else ""
    by = ", ".join(SOURCES[name] for name in shown)
    values = np.stack([value for _, value in columns], axis=1)
    names = tuple(name for name, _ in columns)
    lines: list[RenderableType] = [
        Text("\nThe proof", style="bold"),
        Text(f"{where}{last.name}: {by}", style="dim"),
        matrix(values, last.rows, names, window),
        Text(str(report.verified)),
        Text(str(report.by_hand)),
    ]
    return Group(*lines)


def _plain(report: Report, workbook: Path | None) -> dict[str, object]:
    c, verified = report.calculation, report.verified
    last = c.steps[-1].name
    heads = None if report.heads is None else report.heads.plain()
    return {
        "title": c.title,
        "heads": heads,
        "steps": [_plain_step(step, c) for step in c],
        "proof": {
            "worst": verified.worst,
            "difference": verified.difference,
            "tolerance": verified.tolerance,
            "fused": verified.fused,
            "fused_against_steps": _apart(c, last),
            "by_hand": {"places": report.places, "drift": report.by_hand.drift},
        },
        "workbook": None if workbook is None else str(workbook),
    }


def _apart(calculation: Calculation, name: str) -> float | None:
    seen = calculation.observed.get(name)
    return None if seen is None else difference(seen, calculation.step(name).value)


def _plain_step(step: Step, calculation: Calculation) -> dict[str, object]:
    return {
        "name": step.name,
        "equation": equation(step, calculation),
        "operation": str(step.operation),
        "operands": list(step.operands),
        "rows": list(step.rows),
        "columns": list(step.columns),
        "values": _numbers(step.value),
        "says": step.says,
    }


def _numbers(values: Array) -> list[list[float | str]]:
    """JSON knows no infinity: what is blocked is the text "-inf"."""
    return [["-inf" if x == -np.inf else float(x) for x in row] for row in values]
