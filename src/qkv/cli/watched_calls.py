"""The attention of a script or of a recording, told: what ran, where, and one head's picture."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from rich.console import RenderableType
from rich.text import Text

from qkv.cli import printable
from qkv.cli.asked import Asked
from qkv.cli.attentions import Attention, attentions_of, counted, described
from qkv.cli.kinds import Heads, heads_of, measures, plain_heads
from qkv.cli.picture import Picture, ink
from qkv.cli.screen import Page, write_json
from qkv.cli.texts import legible
from qkv.recording.calls.place import Place
from qkv.recording.recording import Recording


@dataclass(frozen=True, eq=False)
class Report:
    """The attention of a script, or of a recording, told.

    Attributes:
        source: which of the two; of a recording the heads are measured, too.
        seen: what was kept of its attention.
        count: how often each place attended.
        asked: what is wanted of it.
    """

    source: Literal["script", "recording"]
    seen: Recording
    count: Mapping[Place, int]
    asked: Asked

    @cached_property
    def attentions(self) -> list[Attention]:
        """One of each module; of one that attended several times the first, or a generation."""
        return attentions_of(self.seen, self.count)

    @cached_property
    def heads(self) -> list[Heads]:
        """The measures of every head of a recording."""
        return heads_of(self.attentions, self.seen) if self.source == "recording" else []

    @cached_property
    def picture(self) -> Picture | None:
        """The head that was asked for; raises ArgumentError where there is none."""
        if self.asked.head is None:
            return None
        one = self.asked.head.among(self.attentions)
        return Picture(one, self.asked.head.head, *self._names(one))

    def write(self) -> None:
        """Print what was recorded, then write files and draw the head.

        Raises:
            RecordingError: nothing was recorded; nothing is printed then.
            QkvError: a head is not there, or a file cannot be written; what was recorded is
                printed by then, for a script may have run for hours.
        """
        if self.asked.json:
            self._write_json()
            return
        self._print(self._recorded)
        self.asked.write_recording(self.seen)
        self._print(self._drawn)
        self.asked.write_workbook(self.picture)
        self._print(self._files)

    def _print(self, parts: Callable[[Page], Iterator[RenderableType]]) -> None:
        page = Page()
        page.add(*parts(page))
        page.write()

    def _recorded(self, page: Page) -> Iterator[RenderableType]:
        calls = counted(sum(self.count.values()), "call")
        size = f"{calls} of {counted(len(self.attentions), 'attention')}"
        yield Text(f"\nAttention in {printable(self.seen.model)}: {size}\n", "bold")
        yield from described(self.attentions, page.width)
        if self.heads:
            yield from measures(self.heads, page.width, everything=self.asked.everything)
        for note in self.seen.notes:
            yield Text(f"\nnote: {legible(note)}", "yellow")

    def _drawn(self, page: Page) -> Iterator[RenderableType]:
        if self.picture is not None:
            yield Text()
            yield from self.picture.drawn(page.width, ink(page))

    def _files(self, page: Page) -> Iterator[RenderableType]:
        for line in self.asked.files():
            yield Text(f"\n{line}")

    def _write_json(self) -> None:
        plain: dict[str, Any] = {
            self.source: self.seen.model,
            "attentions": [one.plain() for one in self.attentions],
            **({"heads": plain_heads(self.heads)} if self.source == "recording" else {}),
            "head": None,
            "notes": list(self.seen.notes),
            **Asked().plain(),
        }
        try:
            self.asked.write_recording(self.seen)
            plain["saved"] = self.asked.plain()["saved"]
            if self.picture is not None:
                plain["head"] = self.picture.plain()
                self.asked.write_workbook(self.picture)
                plain["workbook"] = self.asked.plain()["workbook"]
        finally:
            write_json(plain)

    def _names(self, one: Attention) -> tuple[Sequence[str] | None, Sequence[str] | None]:
        """The tokens of the first example's queries and keys, where a recording knows them."""
        tokens, facts = self.seen.tokens, one.facts
        if tokens is None or not tokens.fit(facts.batch, facts.keys):
            return None, None
        names = tokens.of(0)
        if facts.kind == "cross" or facts.queries > facts.keys:  # the queries are another text
            return None, names
        return names[max(0, facts.keys - facts.queries) :], names
