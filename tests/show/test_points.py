"""Points with names in a plane: what is drawn lies where the numbers say."""

import re
from xml.etree import ElementTree

import numpy as np
import pytest

from qkv.errors import ArgumentError
from qkv.show.points import HEIGHT, WIDTH, Box, plane, svg

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def rows(seed):
    """Points that lie apart mostly in two directions, turned into seven."""
    random = np.random.default_rng(seed)
    flat = random.normal(size=(31, 7)) * [5, 2, 0.1, 0.1, 0.1, 0.1, 0.1]
    turn, _ = np.linalg.qr(random.normal(size=(7, 7)))
    return flat @ turn + 3.0


def test_the_plane_is_that_of_the_covariances_largest_eigenvectors(rows):
    points, shares = plane(rows)
    values, vectors = np.linalg.eigh(np.cov(rows.T))
    for axis in (0, 1):
        wanted = (rows - rows.mean(axis=0)) @ vectors[:, -1 - axis]
        wanted *= np.sign(wanted[np.abs(wanted).argmax()])
        np.testing.assert_allclose(points[:, axis], wanted, atol=1e-9)
        assert shares[axis] == pytest.approx(values[-1 - axis] / values.sum())


def test_the_picture_does_not_depend_on_how_an_axis_is_turned(rows):
    np.testing.assert_allclose(plane(-rows).points, plane(rows).points, atol=1e-9)


def drawn(rows, names, title="Words"):
    root = ElementTree.fromstring(svg(rows, names, title))
    dots = [r for r in root.iter(f"{SVG}rect") if r.get("class") in ("ink-self", "rule")]
    centres = np.array([[float(r.get("x")) + 3, float(r.get("y")) + 3] for r in dots])
    return root, centres


def test_points_lie_to_one_scale_within_the_picture(rows):
    _, at = drawn(rows, [f"w{i}" for i in range(31)])
    points = plane(rows).points
    assert (at > 0).all()
    assert (at < [WIDTH, HEIGHT]).all()
    scale = (at[1:, 0] - at[0, 0]) / (points[1:, 0] - points[0, 0])
    up = (at[0, 1] - at[1:, 1]) / (points[1:, 1] - points[0, 1])
    np.testing.assert_allclose(np.concatenate((scale, up)), scale[0], rtol=1e-2)


def test_names_cover_neither_each_other_nor_a_point(rows):
    crowd = np.repeat(rows, 4, axis=0) + np.random.default_rng(1).normal(size=(124, 7)) * 0.05
    names = [f"word{i}" for i in range(124)]
    root, at = drawn(crowd, names)
    from qkv.show.svg import LINE, wide

    shown = [t for t in root.iter(f"{SVG}text") if t.text in names]
    assert 10 < len(shown) < 124
    boxes = [
        Box(x, y - LINE + 4, x + wide(t.text, LINE), y)
        for t in shown for x, y in [(float(t.get("x")), float(t.get("y")))]
    ]  # fmt: skip
    for i, box in enumerate(boxes):
        assert not any(box.meets(other) for other in boxes[:i])
        assert not any(box.meets(Box(x - 2, y - 2, x + 2, y + 2)) for x, y in at)
    assert shown[0].text == "word0"  # the first are the most important
    faint = [r for r in root.iter(f"{SVG}rect") if r.get("class") == "rule"]
    assert len(faint) == 124 - len(shown)


def test_words_from_outside_are_escaped(rows):
    names = ["</text><script>", 'a"&b', *(f"w{i}" for i in range(29))]
    root, _ = drawn(rows, names, "<Words> & more")
    texts = [t.text for t in root.iter(f"{SVG}text")]
    assert names[0] in texts
    assert "<Words> & more" in texts
    assert "<script>" not in svg(rows, names, "t")


def test_the_same_rows_give_the_same_picture_and_the_shares_are_told(rows):
    names = [f"w{i}" for i in range(31)]
    picture = svg(rows, names, "Words")
    assert svg(rows, names, "Words") == picture
    first, second = plane(rows).shares
    assert re.search(rf"{first:.0%} of their variance across, {second:.0%} upwards", picture)


def test_points_that_are_all_alike_are_drawn_too():
    _, at = drawn(np.ones((4, 3)), list("abcd"))
    np.testing.assert_allclose(at, np.broadcast_to(at[0], (4, 2)))


def test_what_makes_no_picture_is_refused(rows):
    with pytest.raises(ArgumentError, match="30 names for 31 rows"):
        svg(rows, ["w"] * 30, "Words")
    with pytest.raises(ArgumentError, match=r"rows are \(2, 7\); wanted 3 rows or more"):
        plane(rows[:2])
    rows[3, 4] = np.nan
    with pytest.raises(ArgumentError, match="not finite"):
        plane(rows)
