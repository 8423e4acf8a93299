"""`qkv models`: what is installed, and what can be."""

import textwrap
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.text import Text

HELP = """List the models, installed or not, and what a folder may hold.

\b
  qkv models
  qkv models --json
"""

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]

INDENT, NAMES = 4, 14

NOTE = (
    "Wherever a model is asked for, give its name, or the path of its folder or file: "
    "qkv map --model minilm"
)


def models(*, json: Json = False) -> None:
    """List the models."""
    from qkv.cli.screen import Page, write_json
    from qkv.models.catalogue import catalogue

    known = catalogue()
    if json:
        write_json(known)
        return
    page = Page()
    page.add(*_told(known, page.width))
    page.write()


def _told(known: dict[str, list[dict[str, Any]]], width: int) -> "Iterator[Text]":
    yield _heading("Models with a name")
    for model in known["models"]:
        sizes = f"{model['family']}, {model['megabytes']} MB, {model['licence']}"
        yield _first(model["name"], sizes, model["installed"])
        yield from _below(model, model["about"], width)
    yield _heading("\nFamilies that a folder or a file may hold")
    for family in known["families"]:
        yield _first(family["name"], family["pattern"], None)
        yield from _below({}, family["about"], width)
    yield _heading("\nFormats")
    for form in known["formats"]:
        yield _first(form["name"], "", form["installed"] if form["install"] else None)
        yield from _below(form, form["holds"], width)
    yield _heading("")
    yield from _wrapped(NOTE, width)


def _heading(line: str) -> "Text":
    from rich.text import Text

    return Text(line, style="bold cyan")


def _first(name: str, about: str, installed: bool | None) -> "Text":
    """The line of a name; a word says whether it is there, not a colour alone."""
    from rich.text import Text

    line = Text().append(name, "bold")
    if about:
        line.append(" " * max(2, NAMES - len(name)) + about)
    if installed is None:
        return line
    return line.append("  installed", "green") if installed else line.append("  not installed")


def _below(thing: dict[str, Any], about: str, width: int) -> "Iterator[Text]":
    """What it is, and the command that installs it: in one piece, to be copied."""
    from rich.text import Text

    lines = textwrap.wrap(about, width - INDENT)
    if not thing.get("installed", True):
        lines.append(f"to install it: {thing['install']}")
    yield from (Text(" " * INDENT + line) for line in lines)


def _wrapped(line: str, width: int) -> "Iterator[Text]":
    from rich.text import Text

    yield from map(Text, textwrap.wrap(line, width))
