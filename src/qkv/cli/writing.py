"""What `qkv generate` prints: the text while it is written, and how fast that was."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import typer
from rich.text import Text

from qkv.cli import printable
from qkv.cli.progress import moving, say, waiting, watched
from qkv.cli.screen import Page, write, write_json
from qkv.cli.texts import legible
from qkv.models.language import LanguageModel
from qkv.models.writing.generate import Row, Writer
from qkv.models.writing.generate import write as write_all
from qkv.models.writing.options import Sampling

INTERRUPTED = 130
"""The exit code of what Ctrl-C has ended, as shells have it."""

ENDS = {
    "end": "it ended by itself",
    "stop": "it came to a stop text",
    "length": "it is as long as it may be",
    "interrupted": "it was interrupted",
}
"""Why a text ends."""


@dataclass(frozen=True)
class Ended:
    """A text, and why it ends."""

    text: str
    ids: tuple[int, ...]
    score: float
    reason: str


class Writing:
    """Texts that are being written.

    Args:
        model: writes.
        prompts: what stands before them, or its tokens.
        sampling: how tokens are chosen.
    """

    def __init__(
        self,
        model: LanguageModel,
        prompts: Sequence[str] | Sequence[Sequence[int]],
        sampling: Sampling,
    ) -> None:
        """Check the prompts; nothing is read yet."""
        self._model, self._sampling = model, sampling
        self._ids = [
            model.tokenizer(prompt).ids if isinstance(prompt, str) else prompt for prompt in prompts
        ]
        self._writer = Writer(model, self._ids, sampling, None, live=True)
        self._given = 0
        self._interrupted, self._seconds = False, 0.0

    def write(self, prompts: Sequence[str]) -> None:
        """Write one text as it grows, or several when all of them are complete."""
        if len(prompts) == 1 and watched() and sys.stdout is not None and sys.stdout.isatty():
            say(prompts[0], end="")  # the text goes on from it
        if len(prompts) == 1 and self._sampling.beams == 1:
            self._run(self._stream)
            found = self._found()
            self._stream()
            write("\n")
        else:
            found = self._all()
            _list(prompts, found)
        tokens = sum(len(one.ids) for one in found)
        fast = f"{tokens / max(self._seconds, 1e-9):.1f} a second"
        why = f"; {ENDS[found[0].reason]}" if len(found) == 1 else ""
        say(f"{tokens} tokens in {self._seconds:.1f} s, {fast}{why}")
        self._end()

    def write_json(self, about: dict[str, Any]) -> None:
        """Write everything as one object, with what is known about it."""
        texts = [
            {"text": one.text, "reason": one.reason, "score": one.score, "ids": list(one.ids)}
            for one in self._all()
        ]
        write_json({**about, "texts": texts, "seconds": self._seconds})
        self._end()

    def _stream(self) -> None:
        """Write what the one text has grown by."""
        (row,) = self._writer.rows
        assert row.text is not None
        piece = row.text.given[self._given :]
        self._given += len(piece)
        if piece:
            write(legible(piece))

    def _all(self) -> list[Ended]:
        """Write all texts, and show how far they are."""
        if self._sampling.beams > 1:
            return self._searched()
        with moving("writing", max(row.limit for row in self._writer.rows)) as move:
            self._run(lambda: move(max(len(row.ids) for row in self._writer.rows)))
        return self._found()

    def _run(self, each: Callable[[], None]) -> None:
        """Write token by token, until all texts have ended or Ctrl-C comes."""
        start, more = perf_counter(), True
        try:
            while more:
                more = self._writer.step()
                each()
        except KeyboardInterrupt:
            self._interrupted = True
        self._seconds = perf_counter() - start

    def _searched(self) -> list[Ended]:
        """Follow several texts at once; nothing is known of the best before the end."""
        start = perf_counter()
        try:
            with waiting(f"following {self._sampling.beams} texts"):
                found = write_all(self._model, self._ids, self._sampling)
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None
        self._seconds = perf_counter() - start
        return [Ended(one.text, one.ids, one.score, one.reason) for one in found]

    def _found(self) -> list[Ended]:
        return [_ended(row) for row in self._writer.rows]

    def _end(self) -> None:
        if self._interrupted:
            raise typer.Exit(INTERRUPTED)


def _ended(row: Row) -> Ended:
    assert row.text is not None
    if row.reason is None:
        row.text.close()  # what was held back, since a stop text could have begun there
    score = row.score / max(1, len(row.ids))
    return Ended(row.text.given, tuple(row.ids), score, row.reason or "interrupted")


def _list(prompts: Sequence[str], found: Sequence[Ended]) -> None:
    """Write texts one below the other; with several, each below its prompt."""
    page = Page()
    for number, (prompt, one) in enumerate(zip(prompts, found, strict=True)):
        if len(prompts) > 1:
            page.add(Text(f"{chr(10) if number else ''}{printable(prompt)}", style="bold cyan"))
        page.add(Text(legible(one.text)))
    page.write()
