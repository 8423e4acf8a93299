"""Draws the pictures of the README and the docs: terminal, workbook as LibreOffice prints it, map.

python tools/pictures.py        needs LibreOffice and pdftoppm
"""

import subprocess
import sys
import tempfile
from io import StringIO
from pathlib import Path

from rich.console import Console
from rich.text import Text

from qkv.cli.output import Report, proof
from qkv.explaining.text import ARTICLE, explain_words
from qkv.models.maps.architecture import map_of_original
from qkv.show.map_svg import svg
from qkv.show.terminal import Window, rendered

PICTURES = Path(__file__).parent.parent / "docs" / "pictures"
WIDTH = 92


def terminal(path: Path) -> None:
    """Draw the beginning, the weights and the proof of `qkv explain "draw a map"`."""
    report = Report(explain_words(list(ARTICLE)), None, 4)
    window = Window(width=WIDTH)
    page = Console(width=WIDTH, file=StringIO(), record=False, force_terminal=True)
    with page.capture() as capture:
        page.print(rendered(report.calculation, window), soft_wrap=True)
    lines = Text.from_ansi(capture.get()).split("\n")
    names = [line.plain.split("   ")[0] for line in lines]
    keys, weights = names.index("WK"), names.index("weights")
    console = Console(width=WIDTH, file=StringIO(), record=True, force_terminal=True)
    console.print(Text('$ qkv explain "draw a map"', style="bold green"))
    for line in [*lines[:keys], Text("  …", style="dim"), Text(), *lines[weights:]]:
        console.print(line, soft_wrap=True)
    console.print(proof(report, window), soft_wrap=True)
    console.save_svg(str(path), title="qkv explain")


def workbook(path: Path) -> None:
    """Draw the sheet of the calculation as it comes out of the printer."""
    with tempfile.TemporaryDirectory() as folder:
        book = Path(folder) / "draw-a-map.xlsx"
        explain_words(list(ARTICLE)).to_excel(book)
        run = ["soffice", f"-env:UserInstallation=file://{folder}/profile", "--headless"]
        subprocess.run([*run, "--convert-to", "pdf", "--outdir", folder, book], check=True)
        page = ["-f", "2", "-l", "2", "-r", "110", "-png", "-singlefile"]
        target = str(path.with_suffix(""))
        subprocess.run(["pdftoppm", *page, book.with_suffix(".pdf"), target], check=True)


def architecture(path: Path) -> None:
    """Draw the map of the original transformer, as `qkv map --svg` does."""
    path.write_text(svg(map_of_original()), encoding="utf-8")


if __name__ == "__main__":
    PICTURES.mkdir(exist_ok=True)
    architecture(PICTURES / "map.svg")
    terminal(PICTURES / "terminal.svg")
    workbook(PICTURES / "workbook.png")
    sys.stdout.write(f"{PICTURES}\n")
