"""What the heads of each attention are: a letter a head, and a line for the clearest of a kind."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from rich.text import Text

from qkv.cli.attentions import Attention
from qkv.recording.recording import Recording
from qkv.show.head_table import SIGNS, grid, table
from qkv.weights.summary import HeadSummary

OF_A_KIND = 3
"""Heads of each kind that the table shows, those that are it most."""

Heads = tuple[Attention, list[HeadSummary]]
"""An attention, and what each of its heads is."""


def heads_of(attentions: Sequence[Attention], seen: Recording) -> list[Heads]:
    """Measure every head, attention by attention; those of one module are measured as one."""
    found: dict[str, list[HeadSummary]] = {}
    for head in seen.table():
        found.setdefault(head.path, []).append(head)
    named = ((one, one.path if one.call.path else "") for one in attentions)
    return [(one, found[path]) for one, path in named if path in found]


def measures(attentions: Sequence[Heads], width: int, *, everything: bool) -> Iterator[Text]:
    """Yield the kinds of all heads, and a line for the clearest; or for each."""
    yield Text("\nWhat the heads are", "bold cyan")
    yield from grid([(f"{one.number}", heads) for one, heads in attentions], width)
    named = [(f"{one.number}.{i}", h) for one, x in attentions for i, h in enumerate(x, 1)]
    if not everything:
        named = _clearest(named)
        yield Text(f"\nThe clearest {OF_A_KIND} of each kind", "bold cyan")
    else:
        yield Text("\nEvery head", "bold cyan")
    yield from table(named, width)


def plain_heads(attentions: Sequence[Heads]) -> list[dict[str, Any]]:
    """Return them as JSON has them."""
    return [
        {"attention": one.number, "number": number, **asdict(head)}
        for one, heads in attentions
        for number, head in enumerate(heads, start=1)
    ]


def _clearest(heads: list[tuple[str, HeadSummary]]) -> list[tuple[str, HeadSummary]]:
    """Of each kind the heads that are it most."""
    found: list[tuple[str, HeadSummary]] = []
    for kind in SIGNS:
        of_kind = [pair for pair in heads if pair[1].kind == kind]
        found += sorted(of_kind, key=lambda pair: -pair[1].measure)[:OF_A_KIND]
    return found
