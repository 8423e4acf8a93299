"""How the cells of a workbook look: one palette, dark enough to be read off a wall."""

from dataclasses import dataclass
from typing import Any

from xlsxwriter import Workbook
from xlsxwriter.format import Format

from qkv.core.operations import BLOCKED

INK, PAPER, FAINT = "#1B2A38", "#FFFFFF", "#5B6B79"
TITLE, BAND, LINE = "#1F3A4D", "#DCE6EE", "#C3D0DA"
INPUT, INPUT_INK = "#FFF4CC", "#1F4FA3"
CONSTANT, BLOCK = "#E8E8E8", "#D9D9D9"
FILL, FILL_LINE = "#F3E8FB", "#7A3FA0"
GOOD, GOOD_INK = "#C9E9CF", "#12572A"
BAD, BAD_INK = "#F6B7B0", "#8C1107"
SHARE_LIGHT, SHARE = "#F9CF8B", "#E8791A"


MINUS_INFINITY = '"-∞"'
"""Number format of what stands for −∞."""

Pair = tuple[Format, Format]
"""A look of numbers, and the same look of a cell that holds −∞ on opening.

Programs differ in whether they keep the minus sign beside a condition, so only cells that need
the condition have it; `blocked` shows any other cell as −∞ once it becomes that.
"""


def number_format(places: int) -> str:
    """Fixed places."""
    return "0." + "0" * places if places else "0"


@dataclass(frozen=True)
class Styles:
    """The formats of one workbook."""

    heading: Format
    note: Format
    text: Format
    strong: Format
    band: Format
    symbol: Format
    says: Format
    label: Format
    column: Format
    off: Format
    most: Format
    given: Pair
    constant: Pair
    computed: Pair
    recorded: Pair
    fill: Format
    check: Format
    count: Format
    tolerance: Format
    link: Format
    good: Format
    bad: Format
    waiting: Format
    blocked: Format


def make(book: Workbook, places: int) -> Styles:
    """Add the formats to a workbook."""

    def style(**properties: Any) -> Format:
        base = {"font_name": "Calibri", "font_size": 11, "font_color": INK, "valign": "vcenter"}
        return book.add_format(base | properties)

    def pair(**properties: Any) -> Pair:
        look = {"border": 1, "border_color": LINE, "align": "right"} | properties
        conditional = f"[<={BLOCKED:.0E}]{MINUS_INFINITY};{digits}"
        return style(num_format=digits, **look), style(num_format=conditional, **look)

    digits = number_format(places)
    distance = {"num_format": "0.0E+00", "font_size": 9, "align": "center", "font_color": FAINT}
    return Styles(
        heading=style(bold=True, font_size=18, font_color=TITLE),
        note=style(italic=True, font_color=FAINT),
        text=style(text_wrap=True, valign="top"),
        strong=style(bold=True),
        band=style(bold=True, bg_color=BAND, font_size=12),
        symbol=style(bold=True, font_color=TITLE, font_size=12),
        says=style(italic=True, font_color=FAINT),
        label=style(bold=True, align="right", indent=1),
        column=style(bold=True, align="right", font_color=FAINT),
        off=style(
            num_format='0" off";;', bold=True, bg_color=BAND, font_color=BAD_INK, align="center"
        ),
        most=style(
            num_format='"≤ "0E+00', bold=True, align="center", font_color=FAINT, font_size=9
        ),
        given=pair(bg_color=INPUT, font_color=INPUT_INK),
        constant=pair(bg_color=CONSTANT, italic=True),
        computed=pair(),
        recorded=pair(font_color=FAINT),
        fill=style(num_format=digits, bg_color=FILL, border=4, border_color=FILL_LINE),
        check=style(**distance),
        count=style(bold=True, align="center", num_format="0"),
        tolerance=style(
            num_format="0.0E+00", bg_color=INPUT, font_color=INPUT_INK, align="center",
            border=1, border_color=LINE,
        ),
        link=style(font_color=INPUT_INK, underline=1),
        good=book.add_format({"bg_color": GOOD, "font_color": GOOD_INK}),
        bad=book.add_format({"bg_color": BAD, "font_color": BAD_INK, "bold": True}),
        waiting=book.add_format({"bg_color": FILL, "font_color": FILL_LINE}),
        blocked=book.add_format(
            {"bg_color": BLOCK, "font_color": FAINT, "num_format": MINUS_INFINITY}
        ),
    )  # fmt: skip
