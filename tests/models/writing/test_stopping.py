"""Stop texts are found however the text is cut, and nothing of them comes through."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkv.models.writing.stopping import Stops

letters = st.text(alphabet="ab\n", max_size=12)
stop_texts = st.lists(st.text(alphabet="ab\n", min_size=1, max_size=4), max_size=3)


def expected(text: str, stop: list[str]) -> tuple[str, str | None]:
    """Read letter by letter: the first letter at which a stop text is complete counts."""
    for end in range(1, len(text) + 1):
        found = [one for one in stop if text[:end].endswith(one)]
        if found:
            longest = max(found, key=len)
            return text[: end - len(longest)], longest
    return text, None


@given(st.lists(letters, max_size=6), stop_texts)
def test_cuts_do_not_matter(pieces: list[str], stop: list[str]) -> None:
    text, found = expected("".join(pieces), stop)
    stops, given_out = Stops(stop), ""
    for piece in pieces:
        given_out += stops.add(piece)
        assert text.startswith(given_out)  # nothing has to be taken back
        if stops.found:
            break
    assert stops.found == found
    assert given_out + stops.close() == text


@pytest.mark.parametrize(
    ("pieces", "stop", "outs"),
    [
        (["Hello", "\n", "\n", "x"], ["\n\n"], ["Hello", "", ""]),
        (["Hello\n", "you"], ["\n\n"], ["Hello", "\nyou"]),
        (["aab"], ["ab"], ["a"]),
        (["a", "a", "b"], ["aab"], ["", "", ""]),
        (["x END", " y"], ["END", "x"], [""]),
        (["abcd"], ["abcd", "c"], ["ab"]),
        (["one"], [], ["one"]),
    ],
)
def test_what_may_be_a_stop_text_is_held_back(
    pieces: list[str], stop: list[str], outs: list[str]
) -> None:
    stops = Stops(stop)
    assert [stops.add(piece) for piece in pieces[: len(outs)]] == outs
