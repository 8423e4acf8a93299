"""`qkv map`: the architecture of a model, drawn from the bottom upwards."""

import os
from pathlib import Path
from typing import Annotated

import typer

from qkv.errors import ArgumentError, FileError

HELP = """Draw the map of a model: towers, attention, sizes, parameters.

\b
  qkv map
  qkv map --model smollm2
  qkv map --model FOLDER --svg map.svg

Without a model it is the original transformer of 2017. No weights are read, only their shapes.
"""

Model = Annotated[
    str | None, typer.Option(help="A model's name (smollm2), its folder or its .gguf file.")
]
Svg = Annotated[Path | None, typer.Option(help="Write the map as a picture, for a browser.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]


def draw(*, model: Model = None, svg: Svg = None, json: Json = False) -> None:
    """Draw the architecture map of a model."""
    _check_picture(svg)
    from qkv.cli.screen import Page, can_spell, write_json
    from qkv.models.maps.architecture import map_of, map_of_original
    from qkv.show import map as picture

    architecture = map_of_original() if model is None else map_of(model)
    if svg is not None:
        from qkv.show.map_svg import svg as drawn
        from qkv.show.workbook import save

        save(svg, drawn(architecture).encode())
    if json:
        write_json(architecture.plain())
        return
    page = Page()
    page.add(picture.drawn(architecture, page.width, plain=not can_spell(picture.GLYPHS)))
    page.write()


def _check_picture(svg: Path | None) -> None:
    if svg is None:
        return
    if svg.suffix.lower() != ".svg":
        raise ArgumentError(f"svg is {str(svg)!r}; wanted a name that ends in .svg")
    if not os.path.isdir(svg.parent):
        raise FileError(f"cannot write {svg}: there is no folder {svg.parent}")
    if os.path.isdir(svg):
        raise FileError(f"cannot write {svg}: it is a folder")
