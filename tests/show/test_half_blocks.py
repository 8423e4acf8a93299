"""A matrix as colours: the right cell has the right colour, whatever the names hold."""

from io import StringIO

import numpy as np
import pytest
from rich.console import Console
from rich.text import Text

from qkv.show.half_blocks import ALONE, RAMP, SHADES, Ink, drawn, room

COLOURS, SHADED, ASCII = Ink(True), Ink(False), Ink(False, letters=False)


def lines(values, rows, columns, width=100, ink=COLOURS) -> list[Text]:
    return list(drawn(np.asarray(values, dtype=float), rows, columns, width, ink).renderables)


def plain(*arguments, **options) -> list[str]:
    return [line.plain for line in lines(*arguments, **options)]


def inks(line: Text) -> list[tuple[str, tuple | None, tuple | None]]:
    """What a line draws with: the characters, and the colours of their two halves."""
    return [
        (line.plain[span.start : span.end], *map(rgb, (span.style.color, span.style.bgcolor)))
        for span in line.spans
        if not isinstance(span.style, str)
    ]


def rgb(color) -> tuple | None:
    return None if color is None else tuple(color.triplet)


def test_a_row_has_a_line_and_its_cells_stand_below_the_names_of_their_columns():
    told = lines([[1.0, 0.0], [0.25, 0.0]], ["one", "two"], ["left", "right"])
    assert told[0].plain == "    left  right "
    assert [line.plain[:4] for line in told[1:3]] == ["one ", "two "]
    brightest, darkest = RAMP[-1], RAMP[0]
    assert inks(told[1]) == [("▀" * 6, brightest, brightest), ("▀" * 6, darkest, darkest)]
    middle = RAMP[2]  # √(1/4) is half way
    assert inks(told[2]) == [("▀" * 6, middle, middle), ("▀" * 6, darkest, darkest)]


def test_of_many_rows_two_share_a_line_the_first_above_the_second():
    rows = ALONE + 1
    values = np.zeros((rows, 3))
    values[0, 0] = values[1, 1] = values[rows - 1, 2] = 1.0
    told = lines(values, [f"r{i}" for i in range(rows)], ["", "", ""])
    dark, bright = RAMP[0], RAMP[-1]
    assert [ink[1:] for ink in inks(told[0])] == [(bright, dark), (dark, bright), (dark, dark)]
    body = told[: (rows + 1) // 2]
    assert [line.plain.split()[0] for line in body] == [f"r{i}" for i in range(0, rows, 2)]
    # an odd number: nothing stands below the last row
    assert [ink[1:] for ink in inks(body[-1])] == [(dark, None), (dark, None), (bright, None)]
    assert "▀" not in told[len(body)].plain


def test_without_colours_shades_say_it_a_row_a_line():
    rows = ALONE + 3
    values = np.tile([0.0, 1 / 16, 1 / 4, 9 / 16, 1.0], (rows, 1))
    told = plain(values, ["x"] * rows, [""] * 5, ink=SHADED)
    assert told[:rows] == ["x " + "".join(shade * 6 for shade in SHADES)] * rows
    told = plain(values, ["x"] * rows, [""] * 5, ink=ASCII)
    assert told[0] == "x " + " " * 6 + ":" * 6 + "+" * 6 + "#" * 6 + "@" * 6
    assert "".join(told).isascii()


def test_the_legend_names_the_weights_of_its_colours():
    told = lines([[0.8, 0.0]], ["a"], ["b", "c"])
    assert [number.split()[-1] for number in told[-1].plain.split("▀▀")[1:]] == [
        "0.00", "0.05", "0.20", "0.45", "0.80"]  # fmt: skip
    assert [ink[1] for ink in inks(told[-1])] == list(RAMP)


def test_names_of_narrow_columns_stand_upright():
    names = [f"k{i}" for i in range(40)]
    told = plain(np.eye(40), names, names, width=60, ink=SHADED)
    assert told[0] == " " * 4 + "".join("k" if i >= 10 else " " for i in range(40))
    assert told[1] == " " * 4 + "".join(names[i][-2] if i >= 10 else "k" for i in range(40))
    assert told[2].rstrip() == " " * 4 + "".join(names[i][-1] for i in range(40))


@pytest.mark.parametrize("width", [60, 61, 100, 160])
@pytest.mark.parametrize("sizes", [(1, 1), (5, 7), (33, 31), (64, 1000)])
@pytest.mark.parametrize("ink", [COLOURS, SHADED, ASCII])
def test_what_fits_keeps_to_the_terminal(width, sizes, ink):
    height, across = room(*sizes, width, ink)
    assert height <= sizes[0]
    assert across <= sizes[1]
    names = ["日本語の長い名前"] * across
    told = lines(np.random.default_rng(0).random((height, across)), ["x" * 30] * height, names,
                 width, ink)  # fmt: skip
    assert max(line.cell_len for line in told) <= width
    assert len(told) <= 32 + 8 + 2


def test_names_are_text_whatever_they_hold_and_take_the_columns_they_need():
    names = ["[bold]x[/bold]", "\x1b[31m\n", "日本", "é"]
    told = lines(np.eye(4), names, names)
    console = Console(file=StringIO(), width=100, color_system="truecolor", force_terminal=True)
    console.print(*told, sep="\n", soft_wrap=True)
    printed = console.file.getvalue()
    assert "[bold]x[/bold]" in printed
    assert "\x1b[31m\n" not in printed
    starts = {line.cell_len - 4 * 6 for line in told[1:5]}
    assert len(starts) == 1


@pytest.mark.parametrize("values", [np.zeros((2, 3)), np.full((2, 3), np.nan), np.zeros((0, 0))])
def test_nothing_to_see_is_drawn_dark(values):
    rows, columns = values.shape
    told = lines(values, ["a"] * rows, [""] * columns)
    assert all(ink[1] == RAMP[0] for line in told[:rows] for ink in inks(line))
