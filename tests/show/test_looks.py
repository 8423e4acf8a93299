"""Where words looked, drawn: valid XML, each weight where it belongs, nothing let in."""

import re
from xml.etree import ElementTree

import numpy as np
import pytest

from qkv.show.looks import SIZE, svg
from qkv.weights.looks import Looks

NS = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def shown() -> list[Looks]:
    random = np.random.default_rng(5)
    made = []
    for words in (("a", "three"), ("a", "<b>", "&", "“é”", "\x1b[2J")):
        maps = random.random((len(words), 3, 5))
        maps /= maps.sum(axis=(1, 2), keepdims=True)
        made.append(Looks(random.random((6, 10)), " ".join(words), words, maps))
    return made


def test_it_is_xml_and_holds_every_word_as_text(shown: list[Looks]) -> None:
    text = svg(shown, "Weights & measures")
    root = ElementTree.fromstring(text)
    said = ["".join(one.itertext()) for one in root.iter(f"{NS}text")]
    for word in ("three", "<b>", "&", "“é”"):
        assert word in said
    assert "\x1b" not in text
    assert any(line.startswith("Weights & measures;") for line in said)
    assert [f"{weights.max():.2f}" for one in shown for weights in one.maps] == [
        line for line in said if re.fullmatch(r"0\.\d\d", line)
    ]


def test_every_weight_lies_over_its_part_of_the_picture(shown: list[Looks]) -> None:
    root = ElementTree.fromstring(svg(shown))
    layers = [group for group in root.iter(f"{NS}g") if group.get("class") == "ink-cross"]
    maps = [weights for one in shown for weights in one.maps]
    for group, weights in zip(layers, maps, strict=True):
        drawn = np.zeros_like(weights)
        for cell in group:
            x, y, width, height = (float(cell.get(k)) for k in ("x", "y", "width", "height"))
            np.testing.assert_allclose((width, height), (SIZE / 5, SIZE / 3), rtol=1e-5)
            drawn[round(y / height), round(x / width)] = float(cell.get("fill-opacity"))
        np.testing.assert_allclose(drawn, 0.75 * weights / weights.max(), atol=0.02)


def test_the_picture_is_drawn_once_and_stands_beside_and_under_every_word(
    shown: list[Looks],
) -> None:
    root = ElementTree.fromstring(svg(shown))
    for number, one in enumerate(shown):
        uses = [u for u in root.iter(f"{NS}use") if u.get("href") == f"#picture-{number}"]
        assert len(uses) == 1 + len(one.words)
        (ink,) = (g for g in root.iter(f"{NS}g") if g.get("id") == f"picture-{number}")
        drawn = np.zeros_like(one.picture)
        for cell in ink:
            at = (float(cell.get("y")) * 6 / SIZE, float(cell.get("x")) * 10 / SIZE)
            drawn[round(at[0]), round(at[1])] = float(cell.get("fill-opacity"))
        np.testing.assert_allclose(drawn, one.picture, atol=0.01)


def test_nothing_lies_outside_of_the_drawing(shown: list[Looks]) -> None:
    root = ElementTree.fromstring(svg(shown))
    _, _, width, height = (float(number) for number in root.get("viewBox").split())
    for use in root.iter(f"{NS}use"):
        assert 0 <= float(use.get("x")) <= width - SIZE
        assert 0 <= float(use.get("y")) <= height - SIZE


def test_a_wrong_caption_is_said_to_be_wrong(shown: list[Looks]) -> None:
    one = shown[0]
    wrong = Looks(one.picture, one.caption, one.words, one.maps, "a two")
    right = Looks(one.picture, one.caption, one.words, one.maps, one.caption)
    assert "a three (wrong: it is a two)" in svg([wrong])
    assert "wrong" not in svg([right, one])


def test_no_pictures_and_weights_of_nothing_are_drawn_too() -> None:
    ElementTree.fromstring(svg([]))
    empty = Looks(np.zeros((4, 4)), "a", ("a",), np.zeros((1, 2, 2)))
    assert "0.00" in svg([empty])
