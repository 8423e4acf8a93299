"""One head of a call as a picture, as JSON and as a workbook."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from rich.console import RenderableType
from rich.text import Text
from torch import Tensor

from qkv.cli.attentions import Attention
from qkv.cli.screen import Page, can_spell
from qkv.errors import ArgumentError
from qkv.show.half_blocks import BLOCK, SHADES, Ink, drawn, room
from qkv.show.sheets import ROWS

MAPPED = 256
"""Rows and columns of the map in JSON at most; of more, each stands for several."""

FEWER = "of a TEXT with --tokens 10:40"
"""How a person has a model read less."""


@dataclass(frozen=True, eq=False)
class Picture:
    """One head.

    Attributes:
        attention: of which.
        head: which, from 1.
        queries, keys: names of all rows, the same ones in self-attention; None where nothing is
            known of them.
    """

    attention: Attention
    head: int
    queries: Sequence[str] | None
    keys: Sequence[str] | None

    @cached_property
    def _sizes(self) -> tuple[int, int]:
        call = self.attention.call
        return call.q.shape[-2], call.k.shape[-2]

    def map(self, height: int, width: int) -> Tensor:
        """Mean over groups of queries of the weight on groups of keys; of a batch the first."""
        weights = self.attention.call.weights.head(self.head - 1)
        return weights.map(height, width)[0, 0]

    def drawn(self, width: int, ink: Ink) -> list[RenderableType]:
        """Return it as wide as the terminal at most."""
        queries, keys = self._sizes
        height, across = room(queries, keys, width, ink)
        values = self.map(height, across).double().cpu().numpy()
        rows, columns = _first(self.queries, queries, height), _first(self.keys, keys, across)
        if across < keys and self.keys is not None:
            columns = [""] * across
        size = f"{_size(queries, height)} × {_size(keys, across)}"
        if self.attention.facts.batch > 1:
            size += ", the first example"
        if self.attention.count > 1 and not self.attention.generation:
            size += f", the first of {self.attention.count:,} calls"
        heading = Text(f"Head {self.attention.number}.{self.head}", "bold cyan")
        heading.append(f"   queries × keys: {size}", "dim")
        return [heading, Text(), drawn(values, rows, columns, width, ink)]

    def plain(self) -> dict[str, Any]:
        """Return it as a dict."""
        queries, keys = self._sizes
        return {
            "attention": self.attention.number,
            "head": self.head,
            "queries": None if self.queries is None else list(self.queries),
            "keys": None if self.keys is None else list(self.keys),
            "weights": self.map(min(queries, MAPPED), min(keys, MAPPED)).tolist(),
        }

    def write_workbook(self, path: Path) -> None:
        """Write its calculation; raises ArgumentError where that is too large."""
        if max(self._sizes) > ROWS:
            size = " × ".join(map(str, self._sizes))
            raise ArgumentError(
                f"head {self.attention.number}.{self.head} has {size} weights; a "
                f"workbook takes {ROWS} tokens at most: let the model read fewer tokens "
                f"({FEWER})"
            )
        call = self.attention.call
        keys = None if self.keys is self.queries else self.keys
        told = call.explain(self.head - 1, tokens=self.queries, key_tokens=keys)
        told.to_excel(path)


def ink(page: Page) -> Ink:
    """Return what a page draws with."""
    return Ink(page.colours, can_spell(BLOCK + SHADES))


def _first(names: Sequence[str] | None, size: int, count: int) -> list[str]:
    """Name groups of rows by the first of each, as a map divides them."""
    names = names or [str(i) for i in range(size)]
    return [names[-(-group * size // count)] for group in range(count)]


def _size(size: int, shown: int) -> str:
    return f"{size:,}" if shown == size else f"{size:,} in {shown} groups"
