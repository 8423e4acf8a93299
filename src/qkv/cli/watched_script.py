"""A person's own script under a watch: which attention it used, and where."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from qkv.cli import printable
from qkv.cli.asked import Asked, json_ready
from qkv.cli.attentions import Attention, attentions_of, counted, described
from qkv.cli.own_script import end_as, run_script, stdout_free
from qkv.cli.picture import Picture, ink
from qkv.cli.progress import say
from qkv.cli.screen import Page, write_json
from qkv.cli.texts import legible
from qkv.errors import QkvError, RecordingError
from qkv.recording.call import Call
from qkv.recording.keeping import Keeping
from qkv.recording.mode import Observer
from qkv.recording.places import Place
from qkv.recording.recording import Recording
from qkv.recording.watching import Chosen, Missed

BUDGET = 1 << 28
"""Bytes of queries, keys, values and outputs that are kept, besides the first call of each module:
a script may train for hours."""


class First:
    """Keeps the first calls of a script, and counts all of them.

    Attributes:
        keeping: what was kept.
        count: how often each place attended.
    """

    def __init__(self) -> None:
        """Nothing ran yet."""
        self.keeping = Keeping(on_call=self._weigh)
        self.count: Counter[Place] = Counter()
        self._bytes = 0

    def take(self, call: Call) -> None:
        """Count a call; keep it while there is room."""
        self.count[call.place] += 1
        if self._bytes < BUDGET or self.count[call.place] == 1:
            self.keeping.take(call)

    def _weigh(self, call: Call) -> None:
        # as large as its queries are what it adds of keys, values and outputs; in a generation
        # the keys of the steps before are let go
        self._bytes += 4 * call.q.numel() * call.q.element_size()


@dataclass(frozen=True, eq=False)
class Report:
    """The attention of a script, told.

    Attributes:
        seen: what was kept of its attention.
        count: how often each place attended.
        asked: what is wanted of it.
    """

    seen: Recording
    count: Mapping[Place, int]
    asked: Asked

    @cached_property
    def attentions(self) -> list[Attention]:
        """One of each module; of one that attended several times the first, or a generation."""
        return attentions_of(self.seen, self.count)

    @cached_property
    def picture(self) -> Picture | None:
        """The head that was asked for; raises ArgumentError where there is none."""
        if self.asked.head is None:
            return None
        one = self.asked.head.among(self.attentions)
        return Picture(one, self.asked.head.head, None, None)

    def write(self) -> None:
        """Write files, and what is printed; nothing is printed where something is refused."""
        page = Page()
        plain, told = (self._plain(), []) if self.asked.json else (None, list(self._parts(page)))
        self.asked.write_files(self.seen, self.picture)
        if plain is not None:
            write_json(json_ready(plain))
            return
        page.add(*told)
        page.write()

    def _parts(self, page: Page) -> Iterator[RenderableType]:
        calls = counted(sum(self.count.values()), "call")
        size = f"{calls} of {counted(len(self.attentions), 'attention')}"
        yield Text(f"\nAttention in {printable(self.seen.model)}: {size}\n", "bold")
        yield from described(self.attentions, page.width)
        if self.picture is not None:
            yield Text()
            yield from self.picture.drawn(page.width, ink(page))
        for note in self.seen.notes:
            yield Text(f"\nnote: {legible(note)}", "yellow")
        for line in self.asked.files():
            yield Text(f"\n{line}")

    def _plain(self) -> dict[str, Any]:
        return {
            "script": self.seen.model,
            "attentions": [one.plain() for one in self.attentions],
            "head": None if self.picture is None else self.picture.plain(),
            "notes": list(self.seen.notes),
            **self.asked.plain(),
        }


def watch_script(path: Path, arguments: Sequence[str], asked: Asked) -> None:
    """Run a script, say which attention it used, and end as it ended.

    Where there was none, stderr says what came nearest.

    Raises:
        ArgumentError, FileError: what was asked for is not there or cannot be written, and the
            script itself has ended well.
    """
    first, chosen = First(), Chosen(asked.only)
    observer = Observer(None, first.take, None if asked.only is None else chosen)
    with stdout_free() if asked.json else nullcontext(), observer:
        ended = run_script(path, arguments)
    if first.keeping.failure is not None:
        say(f"qkv: the recording broke off: {first.keeping.failure!r}")
    first.keeping.notes += observer.misses.notes
    missed = Missed(str(path), observer.misses.text, chosen)
    try:
        Report(Recording(str(path), first.keeping, None, missed), first.count, asked).write()
    except RecordingError as error:
        say(f"qkv: {error}")
        if asked.json:
            write_json({"script": str(path), "attentions": [], "missed": str(error)})
    except QkvError as error:
        if ended is None:
            raise
        say(f"qkv: {error}")
    end_as(ended)
