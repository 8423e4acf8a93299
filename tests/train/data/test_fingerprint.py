"""Fingerprints: the same texts have the same, others another."""

import hashlib

from qkv.train.data.fingerprint import Fingerprint
from qkv.train.data.pairs import TextPair


def _of(*examples: str | tuple[str, ...]) -> dict[str, int | str]:
    fingerprint = Fingerprint()
    assert list(fingerprint.through(examples)) == list(examples)
    return fingerprint.describe()


def test_it_is_a_sum_over_all_texts_and_their_lengths() -> None:
    told = b"".join(
        len(t).to_bytes(8, "big") + t for t in (b"2", b"sky", b"cielo", b"1", "ñ".encode())
    )
    assert _of(TextPair("sky", "cielo"), "ñ") == {
        "examples": 2, "sha256": hashlib.sha256(told).hexdigest(),
    }  # fmt: skip


def test_other_texts_have_another() -> None:
    several = [
        _of(("ab", "c")),
        _of(("a", "bc")),
        _of("ab", "c"),
        _of("c", "ab"),
        _of("abc"),
        _of(),
    ]
    assert len({each["sha256"] for each in several}) == len(several)
