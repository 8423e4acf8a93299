"""`qkv translate`: an encoder reads a text, a decoder writes it in another language."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qkv.errors import ArgumentError

if TYPE_CHECKING:
    from qkv.explaining.aligned import Look
    from qkv.models.translating import Translator
    from qkv.models.writing.written import Written

HELP = """Translate texts, by default short English sentences to Spanish.

\b
  qkv translate "The sky is blue."
  qkv translate - --model opus-mt-en-es < letter.txt
  qkv translate "The sky is blue." --alignment

The default is a small model of our own (en-es), which knows a phrase book. Others are folders of
Marian models (OPUS-MT), or of what qkv train translate has made.
Each line is translated by itself; a blank one stays blank.
"""

Texts = Annotated[
    list[str] | None, typer.Argument(metavar="TEXT...", help="The texts; - is stdin.")
]
Model = Annotated[
    str, typer.Option(help="A model's name (en-es), its folder, or owner/name on the hub.")
]
Beams = Annotated[int, typer.Option(metavar="N", help="Follow N translations; print the best.")]
MaxTokens = Annotated[int, typer.Option(metavar="N", help="Tokens that a translation has at most.")]
Alignment = Annotated[
    bool, typer.Option("--alignment", help="Show which word each written word looked at most.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]

MOST_BEAMS, MOST_TOKENS = 64, 100_000

DEFAULT = "en-es"


def translate(
    texts: Texts = None,
    *,
    model: Model = DEFAULT,
    beams: Beams = 4,
    max_tokens: MaxTokens = 512,
    alignment: Alignment = False,
    json: Json = False,
) -> None:
    """Translate texts."""
    from qkv.cli.opening import Wanted, opened, where
    from qkv.cli.texts import given

    for name, number, most in (
        ("beams", beams, MOST_BEAMS),
        ("max_tokens", max_tokens, MOST_TOKENS),
    ):
        if not 1 <= number <= most:
            raise ArgumentError(f"{name} is {number}; wanted 1 to {most}")
    wanted = Wanted(("marian", "qkv_recurrent"), "one that translates")
    path = where(model, wanted)
    lines = [line.strip() for text in given(texts or (), "TEXT") for line in text.split("\n")]
    loaded: Translator = opened(model, path, wanted)
    for number, line in enumerate(lines, start=1):
        if line:
            loaded.source_ids(line, f"line {number}")
    done = []
    for line, one in _translated(loaded, lines, beams=beams, max_tokens=max_tokens):
        told = _told(loaded, line, one, alignment)
        if not json:
            _write(told)
        done.append(told)
    if json:
        from qkv.cli.screen import write_json

        write_json({"model": model, "beams": beams, "lines": done})


def _translated(
    model: "Translator", lines: Sequence[str], **options: int
) -> "Iterator[tuple[str, Written | None]]":
    """Translate the lines that are not blank, and show how far that is meanwhile."""
    from qkv.cli.progress import moving

    texts = [line for line in lines if line]
    found = model.translations(texts, **options)
    for number, line in enumerate(lines):
        if not line:
            yield line, None
            continue
        with moving("translating", len(lines), at=number):
            one = next(found)
        yield line, one


def _told(model: "Translator", line: str, one: "Written | None", alignment: bool) -> dict[str, Any]:
    """A line, its translation, and what each of its words looked at."""
    looks: list[Look] | None = None
    if alignment and one is not None:
        from qkv.explaining.aligned import aligned

        looks = aligned(model, line, one.ids)
    return {
        "source": line,
        "text": "" if one is None else one.text,
        "score": None if one is None else one.score,
        "reason": None if one is None else one.reason,
        "alignment": None if looks is None else [
            {"word": look.word, "source": look.source, "weight": look.weight} for look in looks
        ],
    }  # fmt: skip


def _write(told: dict[str, Any]) -> None:
    from rich.cells import cell_len, set_cell_size

    from qkv.cli.screen import write
    from qkv.cli.texts import legible

    write(f"{legible(told['text'])}\n")
    looks = told["alignment"] or []
    wide = max((cell_len(look["word"]) for look in looks), default=0)
    for look in looks:
        word, source = legible(look["word"]), legible(look["source"])
        write(f"    {set_cell_size(word, wide)}  {look['weight']:.2f}  {source}\n")
