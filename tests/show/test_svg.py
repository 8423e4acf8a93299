"""Texts are measured, broken and cut to fit."""

import pytest

from qkv.show.svg import broken, cut, escaped, wide


def test_a_bold_text_a_larger_one_and_wide_letters_take_more_room():
    assert wide("text", 13) < wide("text", 13, bold=True) < wide("text", 15, bold=True)
    assert wide("ii", 13) < wide("nn", 13) < wide("mm", 13) < wide("地図", 13)


@pytest.mark.parametrize("width", [40, 77, 150, 1000])
def test_a_broken_text_fits_and_loses_nothing(width):
    content = "8 heads, d_k 64, rotary positions with the longestWordThatNoBoxHasRoomFor 100,000"
    lines = broken(content, width, 13)
    assert "".join(lines).replace(" ", "") == content.replace(" ", "")
    assert all(wide(line, 13) <= width for line in lines)
    assert width < 1000 or lines == [content]


def test_a_text_is_cut_only_where_it_has_to_be():
    assert cut("short", 100, 24) == "short"
    short = cut("long" * 100, 100, 24)
    assert short.endswith("…")
    assert wide(short, 24, bold=True) <= 100 < wide(short + "l", 24, bold=True) + 24


def test_what_xml_does_not_know_becomes_a_mark():
    assert escaped("a<b>&\x00\ud800") == "a&lt;b&gt;&amp;��"
