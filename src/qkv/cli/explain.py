"""`qkv explain`: a sentence's attention step by step, and the proof of every number."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from qkv.cli.targets import check_target
from qkv.errors import ArgumentError

if TYPE_CHECKING:
    from qkv.core.calculation import Calculation
    from qkv.explaining.heads import HeadTable

HELP = """Show a sentence's attention step by step, and prove every number.

\b
  qkv explain "draw a map"
  qkv explain "draw a map" --mask --num-heads 2 --excel map.xlsx
  qkv explain "the coffee spilled on the laptop" --model minilm
  qkv explain "the coffee spilled" --model minilm --layer 4 --head 7
  qkv explain "the coffee spilled" --model FOLDER --kind cross --layer 2 --head 5
  qkv explain --example desserts

Layers and heads are counted from 1, tokens from 0: --tokens 10:40 reads 10 up to 39.
"""

Model = Annotated[str | None, typer.Option(help="A model's name (minilm) or its folder.")]
Layer = Annotated[int | None, typer.Option(help="Layer of the model, from 1.")]
Head = Annotated[int | None, typer.Option(help="Head of the layer, from 1.")]
Kind = Annotated[
    str | None, typer.Option(help="encoder, decoder or cross; where a model has all, cross.")
]
Output = Annotated[
    str | None,
    typer.Option(metavar="TEXT", help="What the decoder wrote; by default what it writes itself."),
]
Whole = Annotated[bool, typer.Option("--whole", help="The whole layer; of small models only.")]
Tokens = Annotated[str | None, typer.Option(metavar="A:B", help="Read only these tokens.")]
Masked = Annotated[bool, typer.Option("--mask", help="A token sees only what precedes it.")]
NumHeads = Annotated[int | None, typer.Option(help="Heads, where no model is given (1).")]
Seed = Annotated[int | None, typer.Option(help="What weights and encodings are drawn from (42).")]
Places = Annotated[int, typer.Option(help="Decimal places of the calculation by hand.")]
Given = Annotated[Path | None, typer.Option(help="Encodings, weights, mask: JSON or a workbook.")]
Excel = Annotated[Path | None, typer.Option(help="Write a workbook that recalculates itself.")]
Blank = Annotated[str | None, typer.Option(help="Leave this step empty in the workbook.")]
Example = Annotated[
    str | None,
    typer.Option(help="desserts, hotel, self, masked, cross, two-heads or lookup, without TEXT."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]


TAKES = {
    "TEXT": ("--tokens", "--mask", "--num-heads", "--seed"),
    "--model": ("--layer", "--head", "--kind", "--output", "--whole", "--tokens"),
    "--given": ("--mask", "--num-heads", "--seed"),
    "--example": ("--seed",),
}
"""Options that have a say, by where the numbers come from."""

WHY = {
    "TEXT": "--layer and --head pick from a model; say --model minilm too",
    "--model": "a model has its own mask, number of heads and weights",
    "--given": "what is read and looked at stands in the file",
    "--example": "an example is always the same, but for --seed",
}

RANGES = {"places": (0, 12), "num_heads": (1, 64), "seed": (0, 2**32 - 1)}


def explain(
    text: Annotated[str | None, typer.Argument(help="The sentence.")] = None,
    *,
    model: Model = None,
    layer: Layer = None,
    head: Head = None,
    kind: Kind = None,
    output: Output = None,
    whole: Whole = False,
    tokens: Tokens = None,
    mask: Masked = False,
    num_heads: NumHeads = None,
    seed: Seed = None,
    places: Places = 4,
    given: Given = None,
    excel: Excel = None,
    blank: Blank = None,
    example: Example = None,
    json: Json = False,
) -> None:
    """Show a sentence's attention step by step, and prove every number."""
    source = _source(text, model, given, example)
    said = {"--layer": layer, "--head": head, "--kind": kind, "--output": output,
            "--whole": whole or None, "--tokens": tokens, "--mask": mask or None,
            "--num-heads": num_heads, "--seed": seed}  # fmt: skip
    _check_options(source, [name for name, value in said.items() if value is not None])
    _check_numbers(places=places, num_heads=num_heads, seed=seed)
    _check_workbook(excel, blank)
    _check_layer(layer, head, whole)
    from qkv.cli.output import Report
    from qkv.cli.output import told as page_of
    from qkv.cli.screen import write

    heads, seed = None, 42 if seed is None else seed
    if text is not None and model is not None:
        chosen = Chosen(layer, head, kind, whole)
        calculation, heads = _in_model(text, model, chosen, tokens, output)
    elif text is not None:
        calculation = _in_words(text, tokens, mask, num_heads, seed)
    else:
        calculation = _from_elsewhere(given, example, mask, num_heads, seed)
    told = page_of(Report(calculation, heads, places), excel, json)
    if excel is not None:
        calculation.to_excel(excel, blank=blank, places=places)
    write(told)


def _source(text: str | None, model: str | None, given: Path | None, example: str | None) -> str:
    """Say where the numbers come from."""
    if [text, given, example].count(None) != 2:
        raise ArgumentError("wanted one of TEXT, --given FILE and --example NAME; see --help")
    if model is not None:
        if text is None:
            raise ArgumentError("--model reads a TEXT; leave --given and --example away")
        return "--model"
    return "TEXT" if text is not None else "--given" if given is not None else "--example"


def _check_options(source: str, said: list[str]) -> None:
    """Refuse what would have no effect: whoever says it means something by it."""
    surplus = [name for name in said if name not in TAKES[source]]
    if surplus:
        raise ArgumentError(f"{', '.join(surplus)} cannot go with {source}: {WHY[source]}")


def _check_layer(layer: int | None, head: int | None, whole: bool) -> None:
    """Refuse a head, or a whole layer, without the layer; and both at once."""
    if head is not None and layer is None:
        raise ArgumentError("--head needs a layer: say --layer too")
    if whole and layer is None:
        raise ArgumentError("--whole needs a layer: say --layer too")
    if whole and head is not None:
        raise ArgumentError("--whole shows all heads of a layer: leave --head away")


def _check_numbers(**numbers: int | None) -> None:
    for name, number in numbers.items():
        low, high = RANGES[name]
        if number is not None and not low <= number <= high:
            raise ArgumentError(f"{name} is {number}; wanted {low} to {high}")


def _check_workbook(excel: Path | None, blank: str | None) -> None:
    if excel is None:
        if blank is not None:
            raise ArgumentError("--blank leaves a step empty in the workbook; say --excel FILE too")
        return
    check_target("excel", excel, ".xlsx")


def _in_words(
    text: str, tokens: str | None, mask: bool, num_heads: int | None, seed: int
) -> "Calculation":
    from qkv.explaining.text import cut, explain_words, words

    heads = 1 if num_heads is None else num_heads
    return explain_words(cut(words(text), tokens), mask=mask, num_heads=heads, seed=seed)


class Chosen(NamedTuple):
    """Which part of a model is shown."""

    layer: int | None
    head: int | None
    kind: str | None
    whole: bool


def _in_model(
    text: str, model: str, chosen: Chosen, tokens: str | None, output: str | None
) -> "tuple[Calculation, HeadTable | None]":
    from qkv.explaining.model import ModelText

    read = ModelText.read(text, model, tokens, output)
    layer, kind = chosen.layer, chosen.kind
    if layer is not None and chosen.whole:
        return read.explain_layer(layer, kind), None
    if layer is not None and chosen.head is not None:
        return read.explain(layer, chosen.head, kind), None
    heads = read.heads(layer, kind)
    return read.explain(heads.first.layer, heads.first.head, kind), heads


def _from_elsewhere(
    given: Path | None, example: str | None, mask: bool, num_heads: int | None, seed: int
) -> "Calculation":
    if example is not None:
        from qkv.explaining.examples import explain_example

        return explain_example(example, seed=seed)
    from qkv.explaining.given import explain_given

    assert given is not None
    return explain_given(given, mask=mask, num_heads=num_heads, seed=seed)
