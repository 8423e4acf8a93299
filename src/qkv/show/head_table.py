"""What heads are: the kind of each in a grid, and a line of measures for those that stand out."""

from collections.abc import Iterator, Mapping, Sequence

from rich.text import Text

from qkv.show.labels import fitted
from qkv.weights.summary import HeadSummary

SIGNS: Mapping[str, tuple[str, str]] = {
    "previous token": ("P", "cyan"),
    "first token": ("F", "dim"),
    "itself": ("I", "green"),
    "separator": ("S", "dim"),
    "same word": ("W", "magenta"),
    "induction": ("N", "bold red"),
    "broad": ("B", "blue"),
    "focused": (".", "yellow"),
    "not a number": ("?", "bold red"),
}
"""The letter and the style of each kind of head."""

COLUMNS: Mapping[str, str] = {
    "entropy": "entropy",
    "distance": "distance",
    "first": "first",
    "previous": "prev.",
    "itself": "itself",
    "separators": "sep.",
    "same": "same",
    "induction": "induct.",
}
"""The measures of a head, and what stands above them."""

KIND = max(map(len, SIGNS))
PATH = 16
"""Columns that a path takes at least; with fewer it is left out."""


def grid(attentions: Sequence[tuple[str, Sequence[HeadSummary]]], width: int) -> Iterator[Text]:
    """Yield the kinds of all heads: a line an attention, a letter a head, and the legend.

    Args:
        attentions: the name of each, and its heads in order.
        width: columns of the terminal; heads that do not fit go on in the next line.
    """
    margin = max((len(name) for name, _ in attentions), default=0) + 1
    most = max((len(heads) for _, heads in attentions), default=0)
    across = min(most, max(1, (width - margin) // 3))
    yield Text(" " * margin + "".join(f"{i + 1:>3}" for i in range(across)), "dim")
    for name, heads in attentions:
        for start in range(0, len(heads), across):
            line = Text(f"{'' if start else name:>{margin - 1}} ")
            for head in heads[start : start + across]:
                letter, style = SIGNS[head.kind]
                line.append(f"{letter:>3}", style)
            yield line
    yield Text()
    yield _legend(attentions)


def table(heads: Sequence[tuple[str, HeadSummary]], width: int) -> Iterator[Text]:
    """Yield a line a head: its name, its kind with the measure, and all the others.

    Args:
        heads: the name of each, and what it is.
        width: columns of the terminal; paths stand at the end where there is room.
    """
    margin = max([4, *(len(name) for name, _ in heads)])
    top = f"{'head':<{margin}}  {'kind':<{KIND}}  measure"
    told = dict[str, str]()
    left_out = list[str]()
    for measure, above in COLUMNS.items():
        if all(getattr(head, measure) is None for _, head in heads):
            continue
        if left_out or len(top) + 2 + len(above) > width:
            left_out.append(above)
            continue
        told[measure] = above
        top += f"  {above}"
    rest = width - len(top) - 2
    yield Text(top + ("  where" if rest >= PATH else ""), "dim")
    for name, head in heads:
        line = Text(f"{name:<{margin}}  ")
        line.append(f"{head.kind:<{KIND}}", SIGNS[head.kind][1])
        line.append(f"  {head.measure:>7.2f}")
        for measure, above in told.items():
            line.append(f"  {_number(getattr(head, measure)):>{len(above)}}", "dim")
        if rest >= PATH:
            line.append(f"  {fitted(head.path, rest).rstrip()}", "dim")
        yield line
    if left_out:
        yield Text(f"in a wider terminal also: {', '.join(left_out)}", "italic dim")


def _legend(attentions: Sequence[tuple[str, Sequence[HeadSummary]]]) -> Text:
    """The kinds that there are, and how many heads are of each."""
    kinds = [head.kind for _, heads in attentions for head in heads]
    line = Text()
    for kind, (letter, style) in SIGNS.items():
        if count := kinds.count(kind):
            line.append("   " if line else "").append(letter, style).append(f" {kind} {count}")
    return line


def _number(x: float | None) -> str:
    return "" if x is None else f"{x:.2f}"
