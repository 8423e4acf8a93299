"""What `qkv watch --model` prints: kinds of heads, measures, links in words, one head's picture."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from qkv.cli import printable
from qkv.cli.asked import Asked
from qkv.cli.attentions import Attention, attentions_of, counted, described
from qkv.cli.kinds import Heads, heads_of, measures, plain_heads
from qkv.cli.linking import Linking, linking, ranked
from qkv.cli.picture import Picture, ink
from qkv.cli.screen import Page, can_spell, write_json
from qkv.cli.texts import legible
from qkv.cli.watched_model import Watched
from qkv.show.links import in_words

LINKED = 8
"""Heads whose links are told."""


@dataclass(frozen=True, eq=False)
class Report:
    """A model's attention, told.

    Attributes:
        watched: what was recorded.
        asked: what is wanted of it.
    """

    watched: Watched
    asked: Asked

    @cached_property
    def attentions(self) -> list[Attention]:
        """Every matrix, the steps of a generation as one."""
        return attentions_of(self.watched.seen)

    @cached_property
    def heads(self) -> list[Heads]:
        """The measures of every head, attention by attention."""
        return heads_of(self.attentions, self.watched.seen)

    @cached_property
    def picture(self) -> Picture | None:
        """The head that was asked for; raises ArgumentError where there is none."""
        if self.asked.head is None:
            return None
        one = self.asked.head.among(self.attentions)
        queries, keys = self.watched.sides(one.call)
        return Picture(one, self.asked.head.head, queries.names, keys.names)

    @cached_property
    def linked(self) -> list[Linking]:
        """How every head links words."""
        return [
            head
            for one in self.attentions
            for head in linking(one.number, one.call, *self.watched.sides(one.call))
        ]

    def write(self) -> None:
        """Write files, and what is printed; nothing is printed where something is refused."""
        page = Page()
        plain, told = (self._plain(), []) if self.asked.json else (None, list(self._parts(page)))
        self.asked.write_workbook(self.picture)
        self.asked.write_recording(self.watched.seen)
        if plain is not None:
            write_json(plain)
            return
        page.add(*told)
        page.write()

    def _parts(self, page: Page) -> Iterator[RenderableType]:
        attentions, width = self.attentions, page.width
        yield Text(f"{printable(self.watched.name)}: {self._size()}", "bold")
        if self.watched.written is not None:
            yield Text(f"it wrote: {legible(self.watched.written)}")
        yield Text()
        if self.picture is not None:
            yield from described([self.picture.attention], width)
            yield Text()
            yield from self.picture.drawn(width, ink(page))
        else:
            yield from described(attentions, width)
            yield from measures(self.heads, width, everything=self.asked.everything)
            yield from self._links(width)
        for note in self.watched.seen.notes:
            yield Text(f"\nnote: {legible(note)}", "yellow")
        for line in self.asked.files():
            yield Text(f"\n{line}")

    def _links(self, width: int) -> Iterator[RenderableType]:
        found = ranked(self.linked, LINKED)
        if not found:
            return
        yield Text("\nThe strongest links between words that are no neighbours", "bold cyan")
        arrow = "→" if can_spell("→") else "->"
        yield from in_words([(one.name, one.links) for one in found], width, arrow=arrow)

    def _size(self) -> str:
        several = len(self.watched.rows) > 1
        tokens = ", ".join(
            counted(len(rows.names), "token") + (f" in the {tower}" if several else "")
            for tower, rows in self.watched.rows.items()
        )
        heads = sum(one.facts.heads for one in self.attentions)
        attentions = counted(len(self.attentions), "attention")
        return f"{tokens}, {attentions}, {counted(heads, 'head')}"

    def _plain(self) -> dict[str, Any]:
        return {
            "model": self.watched.name,
            "tokens": {tower: list(rows.names) for tower, rows in self.watched.rows.items()},
            "written": self.watched.written,
            "attentions": [one.plain() for one in self.attentions],
            "heads": plain_heads(self.heads),
            "links": [one.plain() for one in ranked(self.linked, len(self.linked))],
            "head": None if self.picture is None else self.picture.plain(),
            "notes": list(self.watched.seen.notes),
            **self.asked.plain(),
        }
