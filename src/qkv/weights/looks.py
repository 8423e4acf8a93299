"""Weights over a picture: where each word of a caption looked."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float


@dataclass(frozen=True, eq=False)
class Looks:
    """A picture, what was written about it, and where each word looked.

    Attributes:
        picture: from 0 (nothing) to 1 (ink).
        caption: what was written.
        words: its tokens.
        maps: of each word the weights of its attention, which sum to 1; they lie over the whole
            picture.
        truth: what ought to have been written, where that is known.
    """

    picture: Float[np.ndarray, "height width"]
    caption: str
    words: tuple[str, ...]
    maps: Float[np.ndarray, "words rows columns"]
    truth: str | None = None
