"""What `qkv embed` prints: cosines of texts, groups of them, and a word where it stands."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from rich.cells import cell_len, set_cell_size
from rich.text import Text
from torch import Tensor

from qkv.cli import printable
from qkv.cli.screen import Page, write_json
from qkv.models.in_context import InContext
from qkv.models.similar import Group, groups, nearest, similarities

NEAREST = 3
"""Texts that are named beside each, where there are too many for a table."""
CELL = 6
"""Columns that a cosine takes."""
TEXT = 20
"""Columns that a text takes at least."""
PAIRS = 6
"""Pairs of places whose cosines are shown layer by layer; of more, the lowest and the highest."""


@dataclass(frozen=True, eq=False)
class Embedded:
    """Texts and their rows of numbers.

    Attributes:
        texts: the texts.
        rows: one for each.
        near: the cosines and the numbers of those that are most like each; None for one text.
        groups: those that are alike, where that was asked for.
        word: what was looked for in the texts, and where it was found.
    """

    texts: Sequence[str]
    rows: Tensor
    near: tuple[Tensor, Tensor] | None
    groups: Sequence[Group] | None
    word: tuple[str, InContext] | None

    @classmethod
    def of(
        cls,
        texts: Sequence[str],
        rows: Tensor,
        number: int | None,
        found: InContext | None,
        word: str | None,
    ) -> "Embedded":
        """Compare the rows; put them into a number of groups, if one is given."""
        near = nearest(rows, NEAREST) if len(rows) > 1 else None
        made = None if number is None else groups(rows, number)
        looked_for = None if found is None or word is None else (word, found)
        return cls(texts, rows, near, made, looked_for)

    def write_json(self, model: str) -> None:
        """Write everything as one object."""
        write_json(
            {
                "model": model,
                "texts": list(self.texts),
                "embeddings": self.rows.tolist(),
                "nearest": [self._nearest(i) for i in range(len(self.texts))],
                "groups": None if self.groups is None else [_plain(g) for g in self.groups],
                "word": None if self.word is None else _plain_word(*self.word),
            }
        )

    def write(self) -> None:
        """Write tables as wide as the terminal."""
        page = Page()
        page.add(*self._compared(page.width))
        if self.groups is not None:
            page.add(*self._grouped(page.width))
        if self.word is not None:
            page.add(*self._in_context(page.width))
        page.write()

    def _nearest(self, i: int) -> list[dict[str, Any]]:
        if self.near is None:
            return []
        cosines, places = (x[i].tolist() for x in self.near)
        return [{"text": j, "cosine": c} for j, c in zip(places, cosines, strict=True)]

    def _compared(self, width: int) -> Iterator[Text]:
        n = len(self.texts)
        size = f"{n} {'text' if n == 1 else 'texts'}, {self.rows.shape[1]} numbers each"
        if self.near is None:
            yield _heading(f"{size}: nothing to compare it with")
            yield _row(0, self.texts[0], width)
            yield Text("\n--json prints the numbers.")
        elif 4 + CELL * n + 9 + TEXT <= width:
            yield _heading(f"{size}: cosines")
            yield from _square(similarities(self.rows), self.texts, self.near[1][:, 0], width)
        elif self.groups is None:
            yield _heading(f"{size}: the nearest of each, by their cosines")
            yield from self._list(width)

    def _list(self, width: int) -> Iterator[Text]:
        for i, text in enumerate(self.texts):
            yield _row(i, text, width)
            for other in self._nearest(i):
                line = f"     {other['cosine']:5.2f}  {other['text'] + 1}  "
                yield Text(line + _fitted(self.texts[other["text"]], width - len(line)), "dim")

    def _grouped(self, width: int) -> Iterator[Text]:
        assert self.groups is not None
        for number, group in enumerate(self.groups, start=1):
            size = len(group.members)
            yield _heading(f"\nGroup {number}: {size} {'text' if size == 1 else 'texts'}, around")
            yield Text(_fitted(self.texts[group.members[0]], width), "bold")
            for i, cosine in zip(group.members, group.cosines, strict=True):
                line = f"{cosine:5.2f}  {i + 1:>3}  "
                yield Text(line + _fitted(self.texts[i], width - len(line)).rstrip())

    def _in_context(self, width: int) -> Iterator[Text]:
        assert self.word is not None
        word, found = self.word
        shown, places = printable(word), [self.texts[place.text] for place in found.places]
        if len(places) == 1:
            yield Text(f'\n"{shown}" stands in one place only: there is nothing to compare.')
            return
        last = similarities(found.layers[-1])
        if 4 + CELL * len(places) + TEXT <= width:
            yield _heading(f'\n"{shown}" where it stands: cosines after the last layer')
            yield from _square(last, places, None, width)
        yield _heading(f'\n"{shown}" in the table of words, and after each layer: cosines')
        yield from _by_layer(found)


def _square(x: Tensor, texts: Sequence[str], near: Tensor | None, width: int) -> Iterator[Text]:
    """The cosine of every two texts, and which is the nearest."""
    names = "".join(f"{j + 1:>{CELL}}" for j in range(len(texts)))
    yield Text(f"    {names}{'' if near is None else '  nearest'}", "dim")
    for i, text in enumerate(texts):
        line = Text(f"{i + 1:>4}")
        for j, cosine in enumerate(x[i].tolist()):
            cell = "-" if i == j else f"{cosine:.2f}"
            nearest_of = near is not None and j == int(near[i])
            line.append(f"{cell:>{CELL}}", "bold yellow" if nearest_of else "")
        if near is not None:
            line.append(f"{int(near[i]) + 1:>9}")
        line.append("  " + _fitted(text, width - line.cell_len - 2).rstrip())
        yield line


def _by_layer(found: InContext) -> Iterator[Text]:
    """How attention tells the places of a word apart, from the table to the last layer."""
    n = len(found.places)
    i, j = torch.triu_indices(n, n, 1).tolist()
    names = [f"{a + 1} and {b + 1}" for a, b in zip(i, j, strict=True)]
    stages = [similarities(x)[i, j] for x in (found.table, *found.layers)]
    if len(names) > PAIRS:
        names = ["lowest", "highest"]
        stages = [torch.stack([x.min(), x.max()]) for x in stages]
    wide = max(map(len, names)) + 2
    yield Text(" " * 9 + "".join(f"{name:>{wide}}" for name in names), "dim")
    for layer, cosines in enumerate(stages):
        where = "table" if layer == 0 else f"layer {layer}"
        yield Text(f"{where:<9}" + "".join(f"{x:>{wide}.2f}" for x in cosines.tolist()))


def _row(i: int, text: str, width: int) -> Text:
    line = f"{i + 1:>3}  "
    return Text(line + _fitted(text, width - len(line)).rstrip())


def _heading(line: str) -> Text:
    return Text(line, style="bold cyan")


def _fitted(text: str, width: int) -> str:
    """Return a text in one line, cut where it is longer."""
    line = printable(text)
    return line if cell_len(line) <= width else f"{set_cell_size(line, max(0, width - 3))}..."


def _plain(group: Group) -> dict[str, Any]:
    return {"members": list(group.members), "cosines": list(group.cosines)}


def _plain_word(word: str, found: InContext) -> dict[str, Any]:
    return {
        "word": word,
        "places": [{"text": p.text, "start": p.start, "stop": p.stop} for p in found.places],
        "embeddings": found.layers[-1].tolist(),
        "cosines": [similarities(x).tolist() for x in (found.table, *found.layers)],
    }
