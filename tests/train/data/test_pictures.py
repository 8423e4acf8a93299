"""Pictures of digits: made the same each time, held out apart, and said of them what is there."""

import sys
from collections import Counter

import numpy as np
import pytest

from qkv.errors import MissingPackageError
from qkv.train.data.pictures import DIGIT, SIDE, DigitPictures, Pictured, read_digits

NUMBERS = {
    "zero": 0, "one": 1, "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7,
    "eight": 8, "nine": 9,
}  # fmt: skip
SOME = 400


@pytest.fixture(scope="module")
def made() -> DigitPictures:
    return DigitPictures.open(seed=3)


@pytest.fixture(scope="module")
def pictures(made: DigitPictures) -> list[Pictured]:
    return [made.training(number) for number in range(SOME)]


def read_aloud(one: Pictured) -> str:
    """Say what is to be seen, from the places of the digits alone."""
    tops, lefts = np.array([(d.top, d.left) for d in one.digits]).T
    across = np.ptp(lefts) >= np.ptp(tops)
    order = np.argsort(lefts if across else tops)
    words = [one.digits[i].word for i in order]
    named = [("an " if word.startswith("e") else "a ") + word for word in words]
    if len(named) == 2:
        return f"{named[0]} {'left of' if across else 'above'} {named[1]}"
    way = "left to right" if across else "top to bottom"
    return f"{named[0]}, {named[1]} and {named[2]} from {way}"


def test_every_caption_says_what_the_places_of_the_digits_say(pictures: list[Pictured]) -> None:
    assert [one.caption for one in pictures] == [read_aloud(one) for one in pictures]
    kinds = Counter(
        next(k for k in ("left of", "above", "left to right", "top to bottom") if k in one.caption)
        for one in pictures
    )
    assert min(kinds.values()) > SOME / 8
    assert {digit.word for one in pictures for digit in one.digits} == set(NUMBERS)
    assert any(" an eight" in one.caption or one.caption.startswith("an ") for one in pictures)


def test_nobody_takes_a_row_for_a_column(pictures: list[Pictured]) -> None:
    for one in pictures:
        across = "left" in one.caption
        for i, first in enumerate(one.digits):
            for second in one.digits[i + 1 :]:
                down, right = second.top - first.top, second.left - first.left
                along, aside = (right, down) if across else (down, right)
                assert along >= DIGIT  # apart, and in the order of the sentence
                assert abs(aside) <= DIGIT // 2  # beside each other for half of their height


@pytest.mark.parametrize("part", ["training", "held_out"])
def test_a_picture_is_made_of_digits_of_its_part_as_they_are_and_of_nothing_else(
    made: DigitPictures, part: str
) -> None:
    digits = made.known if part == "training" else made.unknown
    images = {
        image.tobytes(): value for image, value in zip(digits.images, digits.values, strict=True)
    }
    for one in map(getattr(made, part), range(SOME)):
        rest = one.picture.copy()
        assert rest.shape == (SIDE, SIDE)
        for digit in one.digits:
            place = np.s_[digit.top : digit.top + DIGIT, digit.left : digit.left + DIGIT]
            assert images[one.picture[place].tobytes()] == NUMBERS[digit.word]
            rest[place] = 0
        assert not rest.any()


def test_held_out_pictures_have_digits_that_no_other_picture_has(made: DigitPictures) -> None:
    whole = read_digits()
    assert (len(whole), len(made.known), len(made.unknown)) == (1797, 1527, 270)
    both = np.concatenate((made.known.images, made.unknown.images))
    assert sorted(image.tobytes() for image in both) == sorted(i.tobytes() for i in whole.images)
    known, unknown = ({image.tobytes() for image in d.images} for d in (made.known, made.unknown))
    assert not known & unknown


def test_a_picture_follows_from_seed_and_number(made: DigitPictures) -> None:
    again, other = DigitPictures.open(seed=3), DigitPictures.open(seed=4)
    for number in (0, 7, 2**62 - 1):
        one = made.training(number)
        np.testing.assert_array_equal(one.picture, again.training(number).picture)
        assert one.caption == again.training(number).caption
        assert not np.array_equal(one.picture, other.training(number).picture)
        assert not np.array_equal(one.picture, made.training(number + 1).picture)
    np.testing.assert_array_equal(made.held_out(5).picture, again.held_out(5).picture)


def test_digits_reach_from_nothing_to_ink() -> None:
    images = read_digits().images
    assert images.dtype == np.uint8
    assert (images.min(), images.max()) == (0, 255)


def test_without_scikit_learn_the_command_that_installs_it_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(MissingPackageError, match=r"scikit-learn.*pip install 'qkv\[train\]'"):
        DigitPictures.open()
