"""Columns of text."""

from qkv.recording.columns import columns, counted


def test_words_stand_at_the_left_and_numbers_at_the_right() -> None:
    table = columns(("path", "heads"), [("a", "12"), ("longer", "3")], right={1})
    assert table == "  path    heads\n  a          12\n  longer      3"


def test_what_is_too_much_is_counted() -> None:
    table = columns(("n",), [(str(i),) for i in range(5)], most=2)
    assert table == "  n\n  0\n  1\n  … and 3 more"


def test_one_is_singular() -> None:
    assert [counted(n, "call") for n in (0, 1, 1234)] == ["0 calls", "1 call", "1,234 calls"]
