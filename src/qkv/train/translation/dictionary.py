"""A dictionary: every word by itself, which is how machines translated before they learnt to.

The phrase book's own entries, and for other words what most often stands in the translations of
the sentences that a word stands in (IBM's model 1: Brown et al. 1993, section 4.1).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain

import numpy as np
import numpy.typing as npt

from qkv.train.data.pairs import TextPair
from qkv.train.translation.corpus import Corpus
from qkv.train.translation.spelling import plain

ROUNDS = 5
LONG = 100
"""Words of a sentence; of a longer one nothing is learnt: all its words might belong together."""

ENOUGH = 10_000_000
"""Pairs of words, each of a sentence and its translation, from which most words are known."""

SPAN = 1 << 31
"""More words than any language has."""

NOTHING = ""
"""Stands in every source: what words of the translation belong to that no word asks for."""


class Dictionary:
    """One word for each.

    Args:
        entries: the translation of each word, "" where it has none.
    """

    def __init__(self, entries: Mapping[str, str]) -> None:
        """Take the entries."""
        self.entries = dict(entries)

    @classmethod
    def of(cls, pairs: Corpus) -> "Dictionary":
        """Make it of the words that came with the pairs; others are learnt of those that train."""
        known = pairs.words
        spelled = (TextPair(plain(pair.source), plain(pair.target)) for pair in pairs.training())
        strange = (pair for pair in spelled if not known.keys() >= set(pair.source.split()))
        return cls(learnt(_enough(strange)) | dict(known))

    def translate(self, texts: Sequence[str]) -> list[str]:
        """Translate texts word by word; a word that is not known stays as it is."""
        return [
            " ".join(filter(None, (self.entries.get(word, word) for word in plain(text).split())))
            for text in texts
        ]


def _enough(pairs: Iterable[TextPair]) -> Iterator[TextPair]:
    """Yield pairs, no long ones, until there are `ENOUGH` pairs of their words."""
    left = ENOUGH
    for pair in pairs:
        read, written = (len(side.split()) for side in pair)
        if max(read, written) > LONG:
            continue
        left -= (read + 1) * written  # and the word that stands for nothing
        if left < 0:
            return
        yield pair


def learnt(pairs: Iterable[TextPair], rounds: int = ROUNDS) -> dict[str, str]:
    """t(s | e) = Σ over pairs of P(s belongs to e), normalised     Brown et al. 1993, eq. 14–17

    Args:
        pairs: sentences and their translations, in words with spaces between them.
        rounds: of expectation and maximisation.

    Returns:
        The s with the largest t(s | e) for each e.
    """
    sources, targets = dict[str, int](), dict[str, int]()
    links = [_links(pair, sources, targets) for pair in pairs if pair.target.split()]
    if not links:
        return {}
    keys = np.concatenate([link[0] for link in links])  # of e and s, together
    rows = np.concatenate([link[1] for link in links])  # the word of a sentence that s is
    rows += np.repeat(np.cumsum([0] + [link[2] for link in links[:-1]]),
                      [len(link[0]) for link in links])  # fmt: skip
    both, at = np.unique(keys, return_inverse=True)
    e, s = both % SPAN, both // SPAN
    t = np.ones(len(both))
    for _ in range(rounds):
        shares = t[at] / np.bincount(rows, t[at])[rows]  # equation 17: all e of the sentence
        counts = np.bincount(at, shares, len(both))
        t = counts / np.bincount(e, counts)[e]  # equation 14
    return _best(e, s, t, sources, targets)


def _links(
    pair: TextPair, sources: dict[str, int], targets: dict[str, int]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], int]:
    """Number every pair of words of two sentences, and tell which word of the target it has."""
    read = [
        sources.setdefault(word, len(sources)) for word in chain([NOTHING], pair.source.split())
    ]
    written = [targets.setdefault(word, len(targets)) for word in pair.target.split()]
    e = np.tile(read, len(written))
    s = np.repeat(written, len(read))
    return s * SPAN + e, np.repeat(np.arange(len(written)), len(read)), len(written)


def _best(
    e: npt.NDArray[np.int64],
    s: npt.NDArray[np.int64],
    t: npt.NDArray[np.float64],
    sources: Mapping[str, int],
    targets: Mapping[str, int],
) -> dict[str, str]:
    order = np.lexsort((t, e))
    last = np.append(np.flatnonzero(np.diff(e[order])), len(order) - 1)
    words, forms = list(sources), list(targets)
    return {words[e[i]]: forms[s[i]] for i in order[last] if words[e[i]] != NOTHING}
