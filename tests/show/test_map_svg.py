"""The map as SVG: valid XML, every number in it, no text beyond its box, nothing let in."""

import re
from dataclasses import replace
from xml.etree import ElementTree

import pytest

from qkv.show.architecture import Kind, Part
from qkv.show.map_svg import svg
from qkv.show.svg import wide
from tests.show.maps import numbers, translator, writer

NS = "{http://www.w3.org/2000/svg}"
SIZES = {"title": 24, "tower": 18, "name": 15, "line": 13, "number": 13, "small": 12}
BOLD = {"title", "tower", "name"}
ATTENTIONS = {"self", "masked", "cross"}
LONG = Part(
    Kind.SELF, "self-attention",
    ("64 heads, d_k 128, d_v 256, and more of them than fit in a line of this box",
     "Wortungetümzusammensetzung 12,345 → 67,890"),
    {"d_k": 128}, 123_456_789_012,
)  # fmt: skip


def parsed(architecture):
    return ElementTree.fromstring(svg(architecture))


def words(root) -> str:
    return " ".join("".join(text.itertext()) for text in root.iter(f"{NS}text"))


def boxes(root) -> list[tuple[float, float, float, float, str]]:
    """The boxes of parts: x, y, width, height, kind; not the cells, the frame and the paper."""
    kinds = {kind.name.lower().replace("_", "-") for kind in Kind}
    return [
        (*(float(rect.get(key)) for key in ("x", "y", "width", "height")), rect.get("class"))
        for rect in root.iter(f"{NS}rect")
        if rect.get("class") in kinds
    ]


def texts(root):
    """Every text: where it begins and ends by our measure, its line's height, its words."""
    for text in root.iter(f"{NS}text"):
        style = text.get("class")
        length = wide(text.text, SIZES[style], bold=style in BOLD)
        length += sum(4 + 5 + wide(span.text, 13) for span in text)
        x, y = float(text.get("x")), float(text.get("y"))
        start = {"number": x - length, "small": x - length / 2}.get(style, x)
        yield start, start + length, y, "".join(text.itertext())


def longest():
    a = translator("n" * 300)
    encoder, decoder = a.towers
    return replace(a, towers=(replace(encoder, layer=(LONG, *encoder.layer)), decoder))


MAPS = [translator(), writer(), writer(layers=97), longest()]


@pytest.mark.parametrize("architecture", MAPS)
def test_every_number_of_the_record_stands_in_the_picture(architecture):
    told = words(parsed(architecture))
    missing = {
        n for n in numbers(architecture) if not re.search(rf"(?<!\d)(?<!\d,){n:,}(?!\d|,\d)", told)
    }
    assert not missing


@pytest.mark.parametrize("architecture", MAPS)
def test_every_part_has_its_box_and_its_name_is_in_it(architecture):
    root = parsed(architecture)
    parts = [p for t in architecture.towers for p in (*t.below, *t.layer, *t.above)]
    found = boxes(root)
    assert [box[-1].replace("-", "_").upper() for box in found] == [p.kind.name for p in parts]
    for part, (x, y, width, height, _) in zip(parts, found, strict=True):
        inside = [
            said for start, end, at, said in texts(root)
            if x < start and end < x + width and y + 10 < at < y + height - 3
        ]  # fmt: skip
        assert inside[0].startswith(part.name)
        assert not part.parameters or f"{part.parameters:,}" in inside
        assert "".join(part.says).replace(" ", "") in "".join(inside).replace(" ", "")


@pytest.mark.parametrize("architecture", MAPS)
def test_no_text_leaves_its_box_nor_meets_another(architecture):
    root = parsed(architecture)
    lines = list(texts(root))
    for x, y, width, height, _ in boxes(root):
        for start, end, at, said in lines:
            if y < at < y + height and start < x + width and end > x:
                assert x + 8 <= start, said
                assert end <= x + width - 8, said
    for i, (start, end, at, said) in enumerate(lines):
        assert 0 <= start < end <= 800, said
        for other_start, other_end, other_at, other in lines[:i]:
            apart = abs(at - other_at) > 14 or end < other_start or other_end < start
            assert apart, (said, other)


@pytest.mark.parametrize("architecture", MAPS)
def test_no_box_meets_another_and_all_are_within_the_picture(architecture):
    root = parsed(architecture)
    _, _, wide_, high = map(float, root.get("viewBox").split())
    assert wide_ == 800
    found = boxes(root)
    for i, (x, y, width, height, _) in enumerate(found):
        assert x >= 0
        assert x + width <= wide_
        assert y > 0
        assert y + height < high
        for other_x, other_y, other_width, other_height, _ in found[:i]:
            beside = x + width < other_x or other_x + other_width < x
            assert beside or y + height < other_y or other_y + other_height < y


def test_the_encoder_is_on_the_left_and_the_bridge_ends_at_cross_attention():
    root = parsed(translator())
    found = {box[-1]: box for box in boxes(root) if box[-1] in ATTENTIONS}
    assert found["self"][0] < found["masked"][0] == found["cross"][0]
    (bridge,) = [line for line in root.iter(f"{NS}polyline") if line.get("class") == "bridge"]
    points = [tuple(map(float, point.split(","))) for point in bridge.get("points").split()]
    x, y, _, height, _ = found["cross"]
    assert points[-1] == (x - 12, y + height / 2)  # the head takes the rest
    assert found["self"][0] < points[0][0] < found["self"][0] + found["self"][2]
    assert points[0][1] < found["self"][1]


@pytest.mark.parametrize(("architecture", "additions", "spans"), [
    (translator(), 2 + 3, 2),  # the part and the addition itself
    (writer(), 1, 3),  # and the norm before it
])  # fmt: skip
def test_each_addition_takes_what_went_in_below_its_part(architecture, additions, spans):
    root = parsed(architecture)
    skips = [line for line in root.iter(f"{NS}polyline") if line.get("class") == "skip"]
    assert len(skips) == additions
    for line in skips:
        points = [tuple(map(float, point.split(","))) for point in line.get("points").split()]
        (start_x, start_y), (_, end_y) = points[0], points[-1]
        around = [
            kind for x, y, width, height, kind in boxes(root)
            if x < start_x < x + width and end_y - height <= y < start_y
        ]  # fmt: skip
        assert len(around) == spans
        assert around[-1] in ("add", "add-norm")


def test_who_looks_at_whom_is_drawn_as_squares_full_and_hollow():
    style = [rect.get("class") for rect in parsed(translator()).iter(f"{NS}rect")]
    assert style.count("ink-self") == 2 * 25
    assert style.count("ink-masked") == 2 * 15
    assert style.count("hidden") == 2 * 10
    assert style.count("ink-cross") == 2 * 20


def test_light_and_dark_differ_and_the_picture_says_in_words_what_it_is():
    drawn = svg(translator())
    assert drawn.count("@media (prefers-color-scheme: dark)") == 1
    assert ".paper { fill: #ffffff; }" in drawn.split("@media")[0]
    assert ".paper { fill: #0f172a; }" in drawn.split("@media")[1]
    root = parsed(translator())
    assert root.get("role") == "img"
    assert root.find(f"{NS}title").text == "Architecture map of A translator"
    assert "masked self-attention, add & norm, cross-attention" in root.find(f"{NS}desc").text


@pytest.mark.parametrize(
    "name", ["<script>alert(1)</script>", "a & b", '"/><g>', "\x00\x1b[2J\ud800\n", "]]>", "𝕏" * 90]
)
def test_a_name_from_outside_is_text_and_nothing_else(name):
    drawn = svg(writer(name)).encode()
    root = ElementTree.fromstring(drawn)
    assert not [tag for tag in root.iter() if tag.tag in (f"{NS}script", f"{NS}g")]
    clean = "".join(c if c.isprintable() else "�" for c in name)
    assert root.find(f"{NS}title").text == f"Architecture map of {clean}"
    assert b"\x1b" not in drawn


def test_nothing_is_fetched():
    assert not re.search(r"url\(|href|@import|<script|<image", svg(translator()))
