"""`qkv map`: the architecture of a model, drawn from the bottom upwards."""

from pathlib import Path
from typing import Annotated

import typer

from qkv.cli.targets import check_target

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
    if svg is not None:
        check_target("svg", svg, ".svg")
    from qkv.cli.screen import Page, can_spell, write_json
    from qkv.models.maps.architecture import map_of, map_of_original
    from qkv.show import map as picture

    architecture = map_of_original() if model is None else map_of(model)
    if svg is not None:
        from qkv.disk import write_whole
        from qkv.show.map_svg import svg as drawn

        write_whole(svg, drawn(architecture).encode())
    if json:
        write_json(architecture.plain())
        return
    page = Page()
    page.add(picture.drawn(architecture, page.width, plain=not can_spell(picture.GLYPHS)))
    page.write()
