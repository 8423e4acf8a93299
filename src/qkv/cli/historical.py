"""What is printed of the history of translation: tables, and the alignments of a sentence."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from rich.cells import cell_len, set_cell_size
from rich.text import Text

from qkv.cli.texts import legible
from qkv.cli.trained import lasted

if TYPE_CHECKING:
    from qkv.core.calculation import Calculation
    from qkv.explaining.aligned import WordAlignment
    from qkv.train.translation.history import Outcome, Summary

MEASURES = {"chrf": ("chrF", 1), "bleu": ("BLEU", 1), "exact": ("exact %", 100)}
"""Above a column of each measure, and what it is multiplied by."""

GAP = "  "


class Said(NamedTuple):
    """What a system made of the sentence.

    Attributes:
        text: its translation.
        alignment: what that looked at; None where the system cannot look, or wrote nothing.
        calculation: how that comes about, where it was asked for.
    """

    text: str
    alignment: "WordAlignment | None" = None
    calculation: "Calculation | None" = None


def tables(summed: "Sequence[Summary]") -> Iterator[Text]:
    """Yield what each system reached: over all sentences, and by their length."""
    rows = [[one.system, *(_spread(one.overall[name], by) for name, (_, by) in MEASURES.items()),
             f"{one.parameters:,.0f}", f"{one.steps:,.0f}", lasted(one.seconds)]
            for one in summed]  # fmt: skip
    names = [above for above, _ in MEASURES.values()]
    yield from _table("Held-out sentences", ["system", *names, "parameters", "steps", "time"], rows)
    for measure, (above, by) in MEASURES.items():
        lengths = list(dict.fromkeys(name for one in summed for name in one.by_length))
        rows = [
            [one.system, *(_spread(one.by_length[name][measure], by) if name in one.by_length
                           else "" for name in lengths)]
            for one in summed
        ]  # fmt: skip
        yield from _table(f"\n{above} by words of the source", ["system", *lengths], rows)


def one_sentence(said: Mapping[str, Said]) -> Iterator[Text]:
    """Yield what each system made of a sentence, and what each word looked at."""
    yield Text("\nOne sentence", "bold cyan")
    for name, (text, its, _) in said.items():
        yield Text(legible(f"{name}: {text}"))
        yield from () if its is None else _looked(its)


def plain(
    outcomes: "Sequence[Outcome]",
    summed: "Sequence[Summary]",
    said: Mapping[str, Said],
) -> dict[str, Any]:
    """Return all of it for JSON."""
    told = {
        name: {
            "text": text,
            "alignment": None if its is None else {
                "source": its.source, "written": its.written, "weights": its.weights.tolist(),
            },
        }
        for name, (text, its, _) in said.items()
    }  # fmt: skip
    return {
        "outcomes": [asdict(outcome) for outcome in outcomes],
        "systems": [asdict(one) for one in summed],
        "sentence": told,
    }


def _spread(value: tuple[float, float], by: float) -> str:
    mean, spread = value
    return f"{by * mean:.1f}" + (f" ± {by * spread:.1f}" if spread else "")


def _table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[Text]:
    yield Text(title, "bold cyan")
    widths = [max(map(cell_len, column)) for column in zip(columns, *rows, strict=True)]
    for row in (columns, *rows):
        first, *rest = (
            set_cell_size(cell, width) if number == 0 else cell.rjust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        yield Text(GAP.join((first, *rest)), "dim" if row is columns else "")


def _looked(its: "WordAlignment") -> Iterator[Text]:
    """Yield, for each word that was written, the one that it looked at most."""
    wide = max(map(cell_len, its.written), default=0)
    for word, row in zip(its.written, its.weights, strict=True):
        most = int(np.argmax(row))
        said = f"    {set_cell_size(word, wide)}  {row[most]:.2f}  {its.source[most]}"
        yield Text(legible(said), "dim")
