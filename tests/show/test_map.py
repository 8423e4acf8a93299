"""The map in the terminal: golden texts, every width, with and without colours and letters."""

from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from rich.cells import cell_len
from rich.console import Console

from qkv.show.architecture import ATTENTION, Kind
from qkv.show.map import COLOURS, GLYPHS, drawn, text
from tests.show.maps import numbers, translator, writer

GOLDEN = Path(__file__).parent / "golden"


def golden(name: str) -> str:
    return (GOLDEN / name).read_text(encoding="utf-8").rstrip("\n")


def test_two_towers_and_their_bridge_are_drawn_as_the_golden_text():
    assert text(translator(), 60) == golden("map_60.txt")


def test_ascii_alone_draws_the_same_map():
    assert text(translator(), 60, plain=True) == golden("map_ascii.txt")


def test_one_tower_is_drawn_as_the_golden_text():
    assert text(writer(), 100) == golden("map_one.txt")


@pytest.mark.parametrize("width", [1, 60, 61, 79, 97, 160])
@pytest.mark.parametrize("plain", [False, True])
def test_no_line_is_wider_than_the_terminal_and_every_number_is_there(width, plain):
    for architecture in (translator(), writer(layers=37)):
        told = text(architecture, width, plain=plain)
        assert max(map(cell_len, told.split("\n"))) <= max(width, 60)
        missing = {n for n in numbers(architecture) if f"{n:,}" not in told}
        assert not missing
        assert not plain or told.isascii()


def test_the_glyphs_are_all_that_a_map_has_beyond_ascii():
    told = text(translator(), 80)
    assert {letter for letter in told if not letter.isascii()} <= set(GLYPHS)


def edges(line: str) -> list[int]:
    return [i for i, letter in enumerate(line) if letter in "│║"]


@pytest.mark.parametrize("width", [60, 97])
def test_the_sides_of_the_boxes_stand_one_below_the_other(width):
    lines = text(translator(), width).split("\n")
    walls = {i for line in lines for i in edges(line) if "tokens" in line}
    assert len(walls) == 4
    assert all(set(edges(line)) <= walls for line in lines)


def corner(lines: list[str], letters: str) -> int:
    return next(i for i, line in enumerate(lines) if any(letter in line for letter in letters))


@pytest.mark.parametrize("more", [0, 1, 2, 3])
def test_the_bridge_meets_cross_attention_whether_it_lies_above_or_below_the_encoder(more):
    """Parts below the encoder's layers lift its top; parts below the decoder's lift its middle."""
    a = translator()
    encoder, decoder = a.towers
    for lifted in (
        replace(a, towers=(replace(encoder, below=encoder.below * (1 + more)), decoder)),
        replace(a, towers=(encoder, replace(decoder, below=decoder.below * (1 + 3 * more)))),
    ):
        lines = text(lifted, 60).split("\n")
        arrow = next(line for line in lines if "▶" in line)
        assert f"━▶ {Kind.CROSS.value} " in arrow
        start = next(i for i, line in enumerate(lines) if "  ┏━━━━━━━━━━" in line)
        end = lines.index(arrow)
        column = arrow.index("▶") - 3
        upright = [lines[i][column] for i in range(min(start, end), max(start, end) + 1)]
        if start < end:
            assert (upright[0], upright[-1]) == ("┓", "┗")
        elif start > end:
            assert (upright[0], upright[-1]) == ("┏", "┛")
        assert set(upright[1:-1]) <= {"┃"}


def test_attention_is_coloured_by_its_kind_and_the_legend_says_the_same_in_words():
    page = Console(file=StringIO(), force_terminal=True, color_system="standard", width=100)
    page.print(drawn(translator(), 100))
    told = page.file.getvalue()
    badges = {"cyan": "30;46m", "magenta": "37;45m", "green": "30;42m"}
    for kind, colours in COLOURS.items():
        badge = f"\x1b[{badges[colours.split()[-1]]}{kind.value}\x1b[0m"
        assert told.count(badge) == 2  # in its box and in the legend
        assert ATTENTION[kind] in told
    assert len(set(COLOURS.values())) == 3


def test_a_legend_names_only_what_is_there():
    told = text(writer())
    assert "cross-attention" not in told
    assert told.count("masked self-attention") == 2


def test_a_name_from_outside_cannot_command_the_terminal():
    told = text(writer("evil\x1b[2J[bold]\nname"))
    assert told.startswith("evil�[2J[bold]�name\n")
    assert "\x1b" not in told
