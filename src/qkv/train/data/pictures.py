"""Pictures of two or three handwritten digits, and what is to be said of each.

The digits are scikit-learn's: 1,797 of 8 × 8 pixels, written by 13 people, with which
Alpaydin and Kaynak (1998) tested. Each picture is made when it is asked for, and is the same for
the same seed and number.

    pictures = DigitPictures.open(seed=0)
    pictures.held_out(5).caption                    a three left of a seven
"""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from qkv.errors import MissingPackageError
from qkv.train.data.held_out import drawing

SIDE = 28
"""Pixels along one side of a picture."""

DIGIT = 8
"""Pixels along one side of a digit."""

AWRY = 4
"""Pixels by which digits of a row are higher or lower than each other at most, and of a column
further to the left or right: half a digit, so that nobody takes a row for a column."""

HELD_OUT_SHARE = 0.15
"""Of the digits; no picture to train on has one of them."""

WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
ARTICLES = ("a", "an")
RELATIONS = {
    (2, "across"): "{} left of {}",
    (2, "down"): "{} above {}",
    (3, "across"): "{}, {} and {} from left to right",
    (3, "down"): "{}, {} and {} from top to bottom",
}
"""What is said of so many digits, the first of which stands on the left, or on top."""

Image = npt.NDArray[np.uint8]
Way = Literal["across", "down"]


@dataclass(frozen=True)
class Placed:
    """A digit of a picture.

    Attributes:
        word: what it is called.
        top, left: its first row and column of pixels; there are `DIGIT` of each.
    """

    word: str
    top: int
    left: int


@dataclass(frozen=True, eq=False)
class Pictured:
    """A picture and what is to be said of it.

    Attributes:
        picture: `SIDE` × `SIDE` numbers, 0 (nothing) to 255 (ink).
        caption: the one right sentence.
        digits: in the order of the sentence.
    """

    picture: Image
    caption: str
    digits: tuple[Placed, ...]


@dataclass(frozen=True, eq=False)
class Digits:
    """Handwritten digits.

    Attributes:
        images: 8 × 8 numbers each, 0 to 255.
        values: which digit each one is.
    """

    images: Image
    values: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, which: npt.NDArray[np.int64]) -> "Digits":
        """Return some of them."""
        return Digits(self.images[which], self.values[which])


@dataclass(frozen=True, eq=False)
class DigitPictures:
    """Pictures to train on, as many as there are numbers, and others that are held out.

    Attributes:
        seed: of the division, and of every picture.
        known: the digits of the pictures to train on.
        unknown: those of the pictures that are held out.
    """

    seed: int
    known: Digits
    unknown: Digits

    @classmethod
    def open(cls, seed: int = 0) -> "DigitPictures":
        """Read the digits and divide them.

        Raises:
            ArgumentError: the seed is no whole number from 0 on.
            MissingPackageError: scikit-learn is not installed.
        """
        digits = read_digits()
        order = drawing(seed).permutation(len(digits))
        kept = round(len(digits) * HELD_OUT_SHARE)
        return cls(seed, digits[order[kept:]], digits[order[:kept]])

    def training(self, number: int) -> Pictured:
        """Return a picture to train on; the same for the same number, from 0 on."""
        return compose(self.known, np.random.default_rng((self.seed, 0, number)))

    def held_out(self, number: int) -> Pictured:
        """Return a picture that is not trained on; the same for the same number, from 0 on."""
        return compose(self.unknown, np.random.default_rng((self.seed, 1, number)))


def read_digits() -> Digits:
    """Return scikit-learn's digits.

    Raises:
        MissingPackageError: scikit-learn is not installed.
    """
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise MissingPackageError(
            "the digits need scikit-learn, which is not installed: pip install 'qkv[train]'"
        ) from error
    found: Any = load_digits()
    images = (found.images * (255 / 16)).round().astype(np.uint8)  # they reach from 0 to 16
    return Digits(images, found.target.astype(np.int64))


def compose(digits: Digits, random: np.random.Generator) -> Pictured:
    """Draw two or three digits and put them side by side, or one below the other."""
    count: int = random.integers(2, 4).item()
    way: Way = "across" if random.integers(2) else "down"
    chosen = random.integers(len(digits), size=count)
    along, aside = _places(count, random)
    tops, lefts = (aside, along) if way == "across" else (along, aside)
    picture = np.zeros((SIDE, SIDE), np.uint8)
    placed = []
    for which, top, left in zip(chosen, tops, lefts, strict=True):
        picture[top : top + DIGIT, left : left + DIGIT] = digits.images[which]
        placed.append(Placed(WORDS[digits.values[which]], top, left))
    return Pictured(picture, say([one.word for one in placed], way), tuple(placed))


def _places(count: int, random: np.random.Generator) -> tuple[list[int], list[int]]:
    """Return where digits begin along their row (or column), one after another, and across it."""
    free = SIDE - count * DIGIT
    gaps = np.sort(random.integers(free + 1, size=count))
    along = gaps + DIGIT * np.arange(count)
    aside = random.integers(SIDE - DIGIT - AWRY + 1) + random.integers(AWRY + 1, size=count)
    return along.tolist(), aside.tolist()


def say(words: list[str], way: Way) -> str:
    """Return the caption of digits that stand in a row ("across") or a column ("down")."""
    named = [f"{ARTICLES[word == 'eight']} {word}" for word in words]
    return RELATIONS[len(words), way].format(*named)
