"""`qkv embed`: texts as rows of numbers, which are alike where the texts mean alike things."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from qkv.errors import ArgumentError

if TYPE_CHECKING:
    from torch import Tensor

    from qkv.models.bert import Bert

HELP = """Turn texts into rows of numbers, and show which texts are alike.

\b
  qkv embed "the coffee spilled" "coffee was spilt" "a blue sky"
  qkv embed --file notes.txt --cluster 5
  qkv embed "the bank of the river" "the bank lends money" --word bank
  qkv embed "the coffee spilled" --json

Texts that mean alike things have a cosine near 1, whatever their words are.
"""

Texts = Annotated[list[str] | None, typer.Argument(metavar="TEXT...", help="The texts.")]
Model = Annotated[str, typer.Option(help="A model's name (minilm) or its folder.")]
File = Annotated[Path | None, typer.Option(help="Read a text a line from here; - is stdin.")]
Cluster = Annotated[
    int | None, typer.Option(metavar="N", help="Put the texts into N groups of alike ones.")
]
Word = Annotated[
    str | None, typer.Option(help="Show what this word is in each of the texts, layer by layer.")
]
Json = Annotated[bool, typer.Option("--json", help="Print the numbers as JSON.")]

BATCH = 32
"""Texts that run together."""


def embed(
    texts: Texts = None,
    *,
    model: Model = "minilm",
    file: File = None,
    cluster: Cluster = None,
    word: Word = None,
    json: Json = False,
) -> None:
    """Turn texts into rows of numbers, and show which texts are alike."""
    from qkv.cli.opening import Wanted, opened, where

    if word is not None and not word.strip():
        raise ArgumentError(f"word is {word!r}; wanted a word of the texts")
    wanted = Wanted(("bert",), "an encoder of text such as minilm")
    path = where(model, wanted)
    read = _read(texts, file)
    _check_number(cluster, len(read))
    loaded = opened(model, path, wanted)
    loaded.pooling.check()
    found = None
    if word is not None:
        from qkv.models.in_context import in_context

        _lengths(loaded, read)
        found = in_context(loaded, read, word)
    rows = _embedded(loaded, read)
    from qkv.cli.embedded import Embedded

    shown = Embedded.of(read, rows, cluster, found, word)
    shown.write_json(model) if json else shown.write()


def _read(texts: Sequence[str] | None, file: Path | None) -> list[str]:
    from qkv.cli.texts import given, lines_of

    if (file is None) == (not texts):
        raise ArgumentError("wanted either TEXT... or --file FILE; see --help")
    return given(texts or (), "TEXT") if file is None else lines_of(file)


def _check_number(cluster: int | None, texts: int) -> None:
    if cluster is not None and not 1 <= cluster <= texts:
        raise ArgumentError(f"cluster is {cluster}; wanted 1 to {texts}, the number of texts")


def _embedded(model: "Bert", texts: Sequence[str]) -> "Tensor":
    """Embed all texts, after each of them has been found to fit."""
    import torch

    from qkv.cli.progress import moving

    lengths = _lengths(model, texts)
    # texts of one length run together, so that little is padding
    order = sorted(range(len(texts)), key=lambda i: lengths[i])
    rows = torch.empty(len(texts), model.config.hidden_size)
    with moving("embedding", len(texts)) as move:
        for start in range(0, len(texts), BATCH):
            batch = order[start : start + BATCH]
            rows[batch] = model.embed([texts[i] for i in batch], batch_size=BATCH)
            move(start + len(batch))
    return rows


def _lengths(model: "Bert", texts: Sequence[str]) -> list[int]:
    return [_length(model, number, text) for number, text in enumerate(texts, start=1)]


def _length(model: "Bert", number: int, text: str) -> int:
    most, short = model.config.max_position_embeddings, f"{text[:40]!r}"
    try:
        length = len(model.tokenizer(text))
    except ArgumentError as error:
        raise ArgumentError(f"text {number}: {error}") from error
    if length > most:
        raise ArgumentError(
            f"text {number} ({short}…) has {length} tokens, the model takes 1 to {most}; "
            f"make several texts of it"
        )
    return length
