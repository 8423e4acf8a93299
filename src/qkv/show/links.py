"""Links in words: which token looks at which, and with how much of its attention."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.text import Text

from qkv.show.labels import fitted, legible

WORD = 20
"""Columns of a token at most."""


@dataclass(frozen=True)
class Link:
    """How much one token takes from another.

    Attributes:
        query, key: the tokens that look and are looked at.
        weight: between 0 and 1.
    """

    query: str
    key: str
    weight: float


def in_words(
    heads: Sequence[tuple[str, Sequence[Link]]], width: int, *, arrow: str = "→"
) -> Iterator[Text]:
    """Yield a line for each head: its name, and as many of its links as fit.

    Args:
        heads: the name of each head, and its links, the strongest first.
        width: columns of the terminal.
        arrow: what stands between two tokens.
    """
    margin = max((len(name) for name, _ in heads), default=0)
    for name, links in heads:
        line = Text(f"{name:<{margin}}", "bold")
        for number, link in enumerate(links):
            said = f"{_word(link.query)} {arrow} {_word(link.key)} {link.weight:.2f}"
            if number and line.cell_len + 3 + cell_len(said) > width:
                break
            line.append(f"   {said}", "yellow" if link.weight >= 0.5 else "default")
        yield line


def _word(token: str) -> str:
    return fitted(token, min(WORD, cell_len(legible(token))))
