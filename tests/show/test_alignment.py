"""The picture of an alignment: every weight in its place, and text from outside only as text."""

import re
from xml.etree import ElementTree

import numpy as np
import pytest

from qkv.show.alignment import CELL, svg

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def weights(seed: int) -> np.ndarray:
    drawn = np.random.default_rng(seed).exponential(size=(3, 5)) + 0.02
    return drawn / drawn.sum(axis=1, keepdims=True)


SOURCE, WRITTEN = ("the", "sky", "is", "blue", "(end)"), ("el", "cielo", "azul")


def test_each_weight_stands_in_its_row_and_column(weights):
    tree = ElementTree.fromstring(svg(weights, SOURCE, WRITTEN, title="Dot", says="a → b"))
    cells = [r for r in tree.iter(f"{SVG}rect") if r.get("fill-opacity")]
    assert len(cells) == weights.size
    left = min(float(cell.get("x")) for cell in cells)
    top = min(float(cell.get("y")) for cell in cells)
    for cell in cells:
        column = round((float(cell.get("x")) - left) / CELL)
        row = round((float(cell.get("y")) - top) / CELL)
        share = float(cell.get("fill-opacity")) / 0.85
        assert share == pytest.approx(weights[row, column], abs=1e-3)
    numbers = [t.text for t in tree.iter(f"{SVG}text") if t.get("class") in {"share", "dark"}]
    assert numbers == [f"{x:.2f}".removeprefix("0") for x in weights.ravel()]


def test_words_stand_in_their_order_and_the_heading_says_whose_they_are(weights):
    tree = ElementTree.fromstring(svg(weights, SOURCE, WRITTEN, title="Dot", says="a → b"))
    names = [t.text for t in tree.iter(f"{SVG}text") if t.get("class") == "name"]
    assert names == [*SOURCE, *WRITTEN]
    assert tree.find(f"{SVG}title").text == "Dot"
    most = [SOURCE[i] for i in weights.argmax(axis=1)]
    assert tree.find(f"{SVG}desc").text == "; ".join(
        f"{word} looks at {source}" for word, source in zip(WRITTEN, most, strict=True)
    )


def test_everything_lies_within_the_picture(weights):
    long = ("a" * 40, *SOURCE[1:])
    tree = ElementTree.fromstring(svg(weights, long, WRITTEN, title="T" * 90, says="s" * 300))
    width, height = float(tree.get("width")), float(tree.get("height"))
    for rect in tree.iter(f"{SVG}rect"):
        assert 0 <= float(rect.get("x", "0")) <= width - float(rect.get("width"))
        assert 0 <= float(rect.get("y", "0")) <= height - float(rect.get("height"))


def test_text_from_outside_is_never_markup(weights):
    evil = ("<script>", "&amp;", '"', "]]>", "\x00")
    drawn = svg(weights, evil, ("<b>", "el", "\x1b[0m"), title="<i>", says="<!--")
    tree = ElementTree.fromstring(drawn)
    assert {element.tag.removeprefix(SVG) for element in tree.iter()} <= {
        "svg", "title", "desc", "style", "rect", "text", "g",
    }  # fmt: skip
    assert not re.search("<script|<b>|<i>|<!--|\x1b|\x00", drawn)


def test_nothing_written_is_an_empty_grid():
    tree = ElementTree.fromstring(svg(np.zeros((0, 2)), ("a", "(end)"), (), title="None"))
    assert not [r for r in tree.iter(f"{SVG}rect") if r.get("fill-opacity")]


def test_the_whole_title_is_shown_above_the_fewest_words():
    title = "Recurrent network, dot-product attention"
    assert f">{title}</text>" in svg(np.ones((1, 1)), ["sky"], ["cielo"], title=title)
