"""`qkv classify`: a classifier says which label a text has."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qkv.errors import ArgumentError

if TYPE_CHECKING:
    from qkv.models.classifier import Classified, Classifier

HELP = """Say which label each text has, with a model that `qkv train classify` made.

\b
  qkv train classify --data reviews.tsv --out mood
  qkv classify "a fine film" "two hours that I want back" --model mood
  qkv classify --file reviews.txt --model mood --json

The number is the probability that the model gives to the label.
"""

Texts = Annotated[list[str] | None, typer.Argument(metavar="TEXT...", help="The texts.")]
Model = Annotated[str | None, typer.Option(metavar="FOLDER", help="The classifier's folder.")]
File = Annotated[Path | None, typer.Option(help="Read a text a line from here; - is stdin.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]

BATCH = 32
"""Texts that run together."""

NO_MODEL = (
    "--model is missing; wanted the folder of a classifier, as "
    "qkv train classify --data FILE --out FOLDER makes it"
)


def classify(
    texts: Texts = None, *, model: Model = None, file: File = None, json: Json = False
) -> None:
    """Say which label each text has."""
    from qkv.cli.opening import Wanted, opened, where
    from qkv.cli.texts import given, lines_of

    if model is None:
        raise ArgumentError(NO_MODEL)
    if (file is None) == (not texts):
        raise ArgumentError("wanted either TEXT... or --file FILE; see --help")
    wanted = Wanted(("qkv_classifier",), "a classifier, as qkv train classify makes it")
    path = where(model, wanted)
    read = given(texts or (), "TEXT") if file is None else lines_of(file)
    loaded: Classifier = opened(model, path, wanted)
    found = _classified(loaded, read)
    if json:
        from qkv.cli.screen import write_json

        told = [_plain(text, one) for text, one in zip(read, found, strict=True)]
        write_json({"model": model, "labels": list(loaded.labels), "texts": told})
        return
    _write(read, found)


def _classified(model: "Classifier", texts: Sequence[str]) -> "list[Classified]":
    """Classify all texts, after each of them has been found to fit."""
    from qkv.cli.progress import moving

    for number, text in enumerate(texts, start=1):
        model.ids(text, f"text {number}")
    found: list[Classified] = []
    with moving("classifying", len(texts)) as move:
        for start in range(0, len(texts), BATCH):
            found += model.classify(texts[start : start + BATCH])
            move(len(found))
    return found


def _plain(text: str, one: "Classified") -> dict[str, Any]:
    return {"text": text, "label": one.label, "probabilities": dict(one.probabilities)}


def _write(texts: Sequence[str], found: "Sequence[Classified]") -> None:
    from rich.cells import cell_len, set_cell_size

    from qkv.cli import printable
    from qkv.cli.screen import write

    labels = [printable(one.label) for one in found]
    wide = max(map(cell_len, labels))
    for text, label, one in zip(texts, labels, found, strict=True):
        share = one.probabilities[one.label]
        write(f"{set_cell_size(label, wide)}  {share:.2f}  {printable(text)}\n")
