"""`qkv history`: from a dictionary to the transformer, on the same sentences."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qkv.errors import ArgumentError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from qkv.cli.historical import Said
    from qkv.core.calculation import Calculation
    from qkv.train.events import Listener
    from qkv.train.translation.history import History

HELP = """Translate as it was done from a dictionary to the transformer, and compare.

\b
  qkv history --out history
  qkv history --out history --seeds 3 --json
  qkv history --out history --sentence "the sky is blue" --plot pictures --excel sky.xlsx

Five systems have the same sentences: a dictionary, word by word; and, trained on them in as many
steps as each other, a recurrent network with a single vector, two with attention, and the
transformer. What lies in the folder already is not trained again, and what was stopped goes on.
"""

Out = Annotated[Path | None, typer.Option(metavar="FOLDER", help="Where the systems go.")]
Data = Annotated[
    list[str] | None,
    typer.Option(metavar="X", help="phrasebook, clauses, verses or a file; may be repeated."),
]
Steps = Annotated[int | None, typer.Option(metavar="N", help="How often weights are changed.")]
Seeds = Annotated[int, typer.Option(metavar="N", help="Repeat with other data held out.")]
Sentence = Annotated[str, typer.Option(metavar="TEXT", help="Whose alignments are shown.")]
Plot = Annotated[
    Path | None, typer.Option(metavar="FOLDER", help="Draw the alignments, a file a system.")
]
Excel = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Write how they come about as a workbook.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]

SENTENCE = "the sky is blue"

MOST_WRITTEN = 120
"""Tokens of its translation: as many as a worksheet takes."""

TITLES = {
    "additive": "Recurrent network, additive attention",
    "dot": "Recurrent network, dot-product attention",
    "transformer": "Transformer, cross-attention",
}
"""Of the pictures."""


def history(
    *,
    out: Out = None,
    data: Data = None,
    steps: Steps = None,
    seeds: Seeds = 1,
    sentence: Sentence = SENTENCE,
    plot: Plot = None,
    excel: Excel = None,
    json: Json = False,
) -> None:
    """Train the systems, and compare them."""
    from qkv.cli.historical import one_sentence, plain, tables
    from qkv.cli.progress import say, waiting
    from qkv.cli.screen import write_json

    if out is None:
        raise ArgumentError("--out is missing; wanted the folder that the systems go to")
    _check(out, plot, excel, sentence)
    with waiting("loading PyTorch"):
        from qkv.train.translation.history import USUAL, History, summaries
    settings = USUAL if steps is None else USUAL.in_steps(steps)
    past = History(out, data or ())
    try:
        with _watching(past) as watch:
            outcomes = past.run(settings, seeds=seeds, watch=watch)
    except KeyboardInterrupt:
        say("stopped; the same command goes on from the last checkpoint")
        raise typer.Exit(130) from None
    summed = summaries(outcomes)
    if not json:
        _print(tables(summed))  # whatever may be the matter with the sentence
    said = _said(past, sentence, calculated=excel is not None)
    if json:
        write_json(plain(outcomes, summed, said))
    else:
        _print(one_sentence(said))
    if plot is not None:
        _draw(said, sentence, plot)
    if excel is not None:
        _workbook(said, sentence).to_excel(excel)


def _check(out: Path, plot: Path | None, excel: Path | None, sentence: str) -> None:
    """Refuse what cannot be written to, or translated, before anything is computed."""
    from qkv.cli.targets import check_target

    for name, folder in (("out", out), ("plot", plot)):
        if folder is not None and folder.exists() and not folder.is_dir():
            raise ArgumentError(f"{name} is {str(folder)!r}, which is a file; wanted a folder")
    if excel is not None:
        check_target("excel", excel, ".xlsx")
    if not any(letter.isalnum() for letter in sentence):
        raise ArgumentError(f"sentence is {sentence[:40]!r}; wanted a text")


@contextmanager
def _watching(past: "History") -> Iterator[Any]:
    """Tell the log of each training, and the person."""
    from qkv.cli.progress import say
    from qkv.cli.training_bar import training_bar
    from qkv.train.log import LOG, JsonLog, tell

    with ExitStack() as last:

        def watch(system: str, seed: int) -> "Listener":
            last.close()
            say(f"{system}, seed {seed}")
            bar = last.enter_context(training_bar("tokens"))
            return tell(JsonLog(past.folder(system, seed) / LOG), bar)

        yield watch


def _said(past: "History", sentence: str, *, calculated: bool) -> "dict[str, Said]":
    """Return what each system that learnt makes of a sentence, and what it looked at."""
    from qkv.cli.historical import Said
    from qkv.explaining.aligned import word_alignment
    from qkv.explaining.alignments import alignment_steps
    from qkv.models import load
    from qkv.train.translation.history import BEAMS
    from qkv.train.translation.systems import SYSTEMS

    found: dict[str, Said] = {}
    for name, system in SYSTEMS.items():
        model = load(past.folder(name))
        most = min(MOST_WRITTEN, 3 * len(model.tokenizer(sentence)))
        (one,) = model.translate(sentence, max_tokens=most, beams=BEAMS)
        its = word_alignment(model, sentence, one.ids) if system.attends else None
        if its is None or not its.written:
            found[name] = Said(one.text)
        else:
            steps = alignment_steps(model, sentence, one.ids) if calculated else None
            found[name] = Said(one.text, its, steps)
    return found


def _draw(said: "Mapping[str, Said]", sentence: str, folder: Path) -> None:
    from qkv.disk import make_folder, write_whole
    from qkv.show.alignment import svg

    for name, (text, its, _) in said.items():
        if its is None:
            continue
        says = f"{sentence} → {text}"
        drawn = svg(its.weights, its.source, its.written, title=TITLES[name], says=says)
        make_folder(folder)
        write_whole(folder / f"{name}.svg", drawn.encode())


def _workbook(said: "Mapping[str, Said]", sentence: str) -> "Calculation":
    from qkv.explaining.alignments import joined

    parts = {name: one.calculation for name, one in said.items() if one.calculation is not None}
    if not parts:
        raise ArgumentError(
            f"excel has nothing to hold: no system made anything of {sentence[:40]!r}"
        )
    return joined(f"What the words of a translation looked at: {sentence}", parts)


def _print(parts: "Iterable[RenderableType]") -> None:
    from qkv.cli.screen import Page

    page = Page()
    page.add(*parts)
    page.write()
