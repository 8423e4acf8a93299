"""Examples that are never trained on, drawn by a seed."""

import numpy as np
import numpy.typing as npt

from qkv.errors import ArgumentError

Numbers = npt.NDArray[np.int64]


def drawing(seed: int) -> np.random.Generator:
    """Return what draws by a seed.

    Raises:
        ArgumentError: the seed is no whole number from 0 on.
    """
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise ArgumentError(f"seed is {seed!r}; wanted a whole number, 0 or more")
    return np.random.default_rng(seed)


def held_out(
    count: int,
    wanted: int | float,
    seed: int,
    *,
    alike: npt.ArrayLike | None = None,
    strata: npt.ArrayLike | None = None,
) -> tuple[Numbers, Numbers]:
    """Return the numbers of training examples and of held-out ones, each in order.

    Args:
        count: of examples.
        wanted: how many are held out, or, below 1 with a point, which share of them.
        seed: decides which.
        alike: a number or a text for each example: those that have the same are on the same side,
            as are repetitions of a text; so it may be some more that are held out.
        strata: a number or a text for each example, as its label: of each the same share is held
            out, rounded.

    Raises:
        ArgumentError: the seed is no whole number from 0 on; nothing would be held out, or nothing
            left to train on; or `alike` or `strata` has another length.
    """
    share = wanted if isinstance(wanted, float) else wanted / count if count else 0.0
    if isinstance(wanted, bool) or not 0 < share < 1:
        raise ArgumentError(f"wanted is {wanted!r} of {count} examples; wanted some, and not all")
    like = _numbered("alike", alike, count) if alike is not None else np.arange(count)
    stratum = _numbered("strata", strata, count) if strata is not None else np.zeros(count, int)
    chance = drawing(seed).permutation(count)[like]  # alike, the same number
    apart = np.zeros(count, dtype=bool)
    for number in range(int(stratum.max()) + 1):
        members = np.flatnonzero(stratum == number)
        most = np.sort(chance[members])[: round(share * len(members))]
        apart[members] = chance[members] <= (most[-1] if len(most) else -1)
    if strata is not None and alike is not None:
        apart = np.isin(like, like[apart])
    if apart.all() or not apart.any():
        what = "nothing to train on" if apart.any() else "nothing held out"
        raise ArgumentError(f"wanted is {wanted!r} of {count} examples, which leaves {what}")
    return np.flatnonzero(~apart), np.flatnonzero(apart)


def _numbered(name: str, values: npt.ArrayLike, count: int) -> Numbers:
    """Return for each value the number of its first equal, in an order of their own."""
    found = np.asarray(values)
    if found.shape != (count,):
        raise ArgumentError(f"{name} is of shape {found.shape}; wanted ({count},), one an example")
    return np.unique(found, return_inverse=True)[1].astype(np.int64)
