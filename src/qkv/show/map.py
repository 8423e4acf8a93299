"""The map of a model in the terminal: a tower on each side, and the bridge between them."""

import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, replace
from io import StringIO

from rich.console import Console, Group
from rich.text import Text

from qkv.show.architecture import (
    ATTENTION,
    NOTE,
    Architecture,
    Kind,
    Part,
    Tower,
    counted,
    headline,
    kept,
    repeated,
    summed,
)

NARROWEST = 60
GAP = 5
"""Columns between two towers, for the bridge."""

WIDEST = {1: 52, 2: 40}
"""Columns of a tower at most, where there are so many."""

COLOURS = {
    Kind.SELF: "black on cyan",
    Kind.MASKED: "white on magenta",
    Kind.CROSS: "black on green",
}
"""Both colours are said, so that a name can be read on any background."""

ASCII = str.maketrans({
    "┌": "+", "┐": "+", "└": "+", "┘": "+", "├": "+", "┤": "+", "─": "-", "│": "|",
    "╔": "#", "╗": "#", "╚": "#", "╝": "#", "╟": "#", "╢": "#", "═": "=", "║": "#",
    "┏": "+", "┓": "+", "┗": "+", "┛": "+", "━": "=", "┃": "|", "▲": "^", "▶": ">", "×": "x",
})  # fmt: skip
"""What stands for the characters of the drawing where an encoding has none of them."""

WORDS = {ord("→"): "->", ord("√"): "sqrt "}
"""What becomes longer in ASCII, and so is spelled before lines are broken."""

GLYPHS = "".join(map(chr, (*ASCII, *WORDS)))
"""What an encoding has to have for the drawing in full."""


@dataclass(frozen=True)
class Drawn:
    """A tower as lines of one width, from the top downwards, and the line of its bridge.

    Attributes:
        lines: all of them are as wide.
        bridge: the line where the encoder's states leave, or where cross-attention takes them,
            counted from the bottom; None where nothing does.
    """

    lines: list[Text]
    bridge: int | None


def text(architecture: Architecture, width: int = 100, *, plain: bool = False) -> str:
    """Return the map as text without colours; `plain` draws it with ASCII alone."""
    console = Console(file=StringIO(), width=width, color_system=None)
    with console.capture() as capture:
        console.print(drawn(architecture, width, plain=plain), soft_wrap=True)
    return "\n".join(line.rstrip() for line in capture.get().rstrip("\n").split("\n"))


def drawn(architecture: Architecture, width: int, *, plain: bool = False) -> Group:
    """Return what rich prints: the name, the towers, the legend, the cache.

    Args:
        architecture: the model.
        width: columns that there are; fewer than 60 are taken as 60.
        plain: whether to draw with ASCII alone.
    """
    width = max(width, NARROWEST)
    name = "".join(c if c.isprintable() else "�" for c in architecture.name)
    lines = [Text(name, style="bold"), *_wrapped(headline(architecture), width), Text()]
    towers = architecture.towers
    lines += _towers(tuple(map(_spelled, towers)) if plain else towers, width)
    lines += [Text(), *_legend(architecture, width), Text(), *_wrapped(NOTE, width)]
    for line in [] if architecture.cache is None else kept(architecture.cache):
        lines += _wrapped(line, width)
    return Group(*(_in_ascii(line) for line in lines) if plain else lines)


def _towers(towers: tuple[Tower, ...], width: int) -> list[Text]:
    most = WIDEST[len(towers)]
    if len(towers) == 1:
        return _tower(towers[0], min(most, width)).lines
    each = min(most, (width - GAP) // 2)
    left, right = (_tower(tower, each, crosses=True) for tower in towers)
    height = max(len(left.lines), len(right.lines))
    lines = []
    for row in reversed(range(height)):
        line = Text()
        for side, middle in ((left, _bridge(row, left.bridge, right.bridge)), (right, Text())):
            here = row < len(side.lines)
            line.append_text(side.lines[-1 - row] if here else Text(" " * each))
            line.append_text(middle)
        lines.append(line)
    return lines


def _bridge(row: int, start: int | None, end: int | None) -> Text:
    """The columns between the towers, in one row: from the encoder's top to cross-attention."""
    if start is None or end is None:
        return Text(" " * GAP)
    half = GAP // 2
    low, high = sorted((start, end))
    if row == start == end:
        drawing = "━" * GAP
    elif row == start:
        drawing = "━" * half + ("┓" if end < start else "┛") + " " * half
    elif row == end:
        drawing = " " * half + ("┗" if end < start else "┏") + "━" * half
    else:
        drawing = " " * half + ("┃" if low < row < high else " ") + " " * half
    return Text(drawing, style=_ink(Kind.CROSS))


def _tower(tower: Tower, width: int, *, crosses: bool = False) -> Drawn:
    """Draw a tower; `crosses` where its encoder has a decoder beside it."""
    lines = [Text(summed(tower).ljust(width), style="bold")]
    sends = crosses and tower.name == "encoder"
    if sends:
        lines.append(Text("  ┏".ljust(width, "━"), style=_ink(Kind.CROSS)))
    if tower.above:
        lines.append(_edge("┌─▲", "─", "┐", width))
    lines += _boxes(tower.above, width, "│", _edge("├─▲", "─", "┤", width))
    lines.append(_edge(f"╔═▲ {_label(tower, width - 6)} ", "═", "╗", width))
    lines += _boxes(tower.layer, width, "║", _edge("╟─▲", "─", "╢", width))
    lines.append(_edge("╚═▲", "═", "╝", width))
    lines += _boxes(tower.below, width, "│", _edge("├─▲", "─", "┤", width))
    lines.append(_edge("└─", "─", "┘", width))
    return Drawn(lines, len(lines) - 2 if sends else _receive(lines))


def _receive(lines: list[Text]) -> int | None:
    """Let the bridge into the box of cross-attention; return its line from the bottom."""
    for i, line in enumerate(lines):
        if line.plain.startswith(f"║ {Kind.CROSS.value} "):
            lines[i] = Text().append("▶", _ink(Kind.CROSS)).append_text(line[1:])
            return len(lines) - 1 - i
    return None


def _label(tower: Tower, room: int) -> str:
    label = repeated(tower)
    return label if len(label) <= room else label.replace(" layers", "").replace(" layer", "")


def _edge(left: str, line: str, right: str, width: int) -> Text:
    return Text(left.ljust(width - 1, line) + right, style="bold" if line == "═" else "")


def _boxes(parts: tuple[Part, ...], width: int, side: str, between: Text) -> Iterator[Text]:
    """Draw boxes one on the other, the first at the bottom."""
    for i, part in enumerate(reversed(parts)):
        if i:
            yield between
        for line in _box(part, width - 4):
            ink = _ink(part.kind) or ("bold" if side == "║" else "")
            yield Text().append(f"{side} ", ink).append_text(line).append(f" {side}", ink)


def _box(part: Part, inner: int) -> list[Text]:
    """The lines within a box: name and parameters, then what is said about it."""
    count = counted(part.parameters) if part.parameters else ""
    beside = len(part.name) + 1 + len(count) <= inner
    lines = [Text().append(part.name, COLOURS.get(part.kind, "bold"))]
    lines[0].append((count if beside else "").rjust(inner - len(part.name)))
    says = [piece for line in part.says for piece in textwrap.wrap(line, inner)]
    lines += [Text(line.ljust(inner)) for line in says]
    return lines if beside else [*lines, Text(count.rjust(inner))]


def _ink(kind: Kind) -> str:
    """The colour of lines: that which a name of this kind stands on."""
    return f"bold {COLOURS[kind].rpartition(' ')[2]}" if kind in COLOURS else ""


def _legend(architecture: Architecture, width: int) -> list[Text]:
    longest = max(len(kind.value) for kind in architecture.kinds)
    lines = []
    for kind in architecture.kinds:
        first, *more = textwrap.wrap(ATTENTION[kind], width - longest - 2)
        space = " " * (longest + 2 - len(kind.value))
        lines.append(Text().append(kind.value, COLOURS[kind]).append(space + first))
        lines += [Text(" " * (longest + 2) + line) for line in more]
    return lines


def _wrapped(line: str, width: int) -> list[Text]:
    return [Text(piece) for piece in textwrap.wrap(line, width)]


def _spelled(tower: Tower) -> Tower:
    """The same tower, what is said in it in ASCII."""

    def spelled(parts: tuple[Part, ...]) -> tuple[Part, ...]:
        return tuple(
            replace(part, says=tuple(line.translate(WORDS) for line in part.says)) for part in parts
        )

    return replace(
        tower, below=spelled(tower.below), layer=spelled(tower.layer), above=spelled(tower.above)
    )


def _in_ascii(line: Text) -> Text:
    return Text(line.plain.translate(ASCII), spans=line.spans, style=line.style)
