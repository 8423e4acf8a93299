"""Verses of the Bible in English and in Spanish; where they come from says verses/README.md."""

from collections.abc import Iterator
from pathlib import Path

from qkv.train.data.pairs import TextPair, read_pairs

FILE = Path(__file__).parent / "verses" / "en-es.tsv"


def read_verses() -> Iterator[TextPair]:
    """Yield about 12,000 pairs of 2 to 20 words a side, in the Bible's order."""
    return read_pairs(FILE)
