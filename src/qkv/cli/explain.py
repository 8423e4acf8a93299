"""`qkv explain`: a sentence's attention step by step, and the proof of every number."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from qkv.errors import ArgumentError

if TYPE_CHECKING:
    from qkv.core.calculation import Calculation
    from qkv.explaining.model import HeadTable

HELP = """Show a sentence's attention step by step, and prove every number.

\b
  qkv explain "draw a map"
  qkv explain "draw a map" --mask --num-heads 2 --excel map.xlsx
  qkv explain "the coffee spilled on the laptop" --model minilm
  qkv explain "the coffee spilled" --model minilm --layer 4 --head 7
  qkv explain --example desserts

Layers and heads are counted from 1, tokens from 0: --tokens 10:40 reads 10 up to 39.
"""

Model = Annotated[str | None, typer.Option(help="A model's name (minilm) or its folder.")]
Layer = Annotated[int | None, typer.Option(help="Layer of the model, from 1.")]
Head = Annotated[int | None, typer.Option(help="Head of the layer, from 1.")]
Tokens = Annotated[str | None, typer.Option(metavar="A:B", help="Read only these tokens.")]
Masked = Annotated[bool, typer.Option("--mask", help="A token sees only what precedes it.")]
NumHeads = Annotated[int, typer.Option(help="Heads, where no model is given.")]
Seed = Annotated[int, typer.Option(help="What weights and encodings are drawn from.")]
Places = Annotated[int, typer.Option(help="Decimal places of the calculation by hand.")]
Given = Annotated[Path | None, typer.Option(help="Encodings, weights, mask: JSON or a workbook.")]
Excel = Annotated[Path | None, typer.Option(help="Write a workbook that recalculates itself.")]
Blank = Annotated[str | None, typer.Option(help="Leave this step empty in the workbook.")]
Example = Annotated[
    str | None,
    typer.Option(help="desserts, hotel, self, masked, cross, two-heads or lookup, without TEXT."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]


def explain(
    text: Annotated[str | None, typer.Argument(help="The sentence.")] = None,
    *,
    model: Model = None,
    layer: Layer = None,
    head: Head = None,
    tokens: Tokens = None,
    mask: Masked = False,
    num_heads: NumHeads = 1,
    seed: Seed = 42,
    places: Places = 4,
    given: Given = None,
    excel: Excel = None,
    blank: Blank = None,
    example: Example = None,
    json: Json = False,
) -> None:
    """Show a sentence's attention step by step, and prove every number."""
    if [text, given, example].count(None) != 2:
        raise ArgumentError("wanted one of TEXT, --given FILE and --example NAME; see --help")
    if blank is not None and excel is None:
        raise ArgumentError("--blank leaves a step empty in the workbook; say --excel FILE too")
    if model is None and (layer, head) != (None, None):
        raise ArgumentError("--layer and --head pick from a model; say --model minilm too")
    if model is not None and (text is None or mask or num_heads != 1):
        raise ArgumentError("--model takes a TEXT, and has its own mask and number of heads")
    from qkv.cli import output

    heads = None
    if model is not None:
        assert text is not None
        calculation, heads = _in_model(text, model, layer, head, tokens)
    elif text is not None:
        calculation = _in_words(text, tokens, mask, num_heads, seed)
    else:
        calculation = _from_elsewhere(given, example, mask, num_heads, seed)
    report = output.Report(calculation, heads, places)
    if excel is not None:
        calculation.to_excel(excel, blank=blank, places=places)
    output.show(report, excel, json)


def _in_words(
    text: str, tokens: str | None, mask: bool, num_heads: int, seed: int
) -> "Calculation":
    from qkv.explaining.text import cut, explain_words, words

    return explain_words(cut(words(text), tokens), mask=mask, num_heads=num_heads, seed=seed)


def _in_model(
    text: str, model: str, layer: int | None, head: int | None, tokens: str | None
) -> "tuple[Calculation, HeadTable | None]":
    from qkv.explaining.model import ModelText

    read = ModelText.read(text, model, tokens)
    if head is not None:
        return read.explain(layer, head), None
    heads = read.heads(layer)
    return read.explain(heads.first.layer, heads.first.head), heads


def _from_elsewhere(
    given: Path | None, example: str | None, mask: bool, num_heads: int, seed: int
) -> "Calculation":
    if example is not None:
        from qkv.explaining.examples import explain_example

        return explain_example(example, seed=seed)
    from qkv.explaining.given import explain_given

    assert given is not None
    return explain_given(given, mask=mask, num_heads=num_heads, seed=seed)
