"""Values of JSON against the types of a dataclass."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from qkv.models.settings import fits, wanted

FITTING: list[tuple[Any, str, list[Any]]] = [
    (int, "size", [1, 10**30]),
    (int, "eos_token_id", [0, 3]),
    (float, "eps", [0, 0.5, 3, 1e300]),
    (bool, "tied", [True, False]),
    (str, "act", ["", "gelu"]),
    (int | None, "size", [None, 2]),
    (int | Sequence[int] | None, "eos_token_id", [None, 0, [], [0, 5]]),
    (Mapping[str, Any] | None, "rope", [None, {}, {"a": [1]}]),
    (Sequence[str] | None, "names", [None, ["a"]]),
]
UNFIT: list[tuple[Any, str, list[Any]]] = [
    (int, "size", [0, -1, True, 2.0, "2", None, [2]]),
    (int, "eos_token_id", [-1, False, 1.5]),
    (float, "eps", [-0.1, float("nan"), float("inf"), 10**400, True, "1", None]),
    (bool, "tied", [0, 1, None, "true"]),
    (str, "act", [None, 1, ["gelu"]]),
    (int | None, "size", [0, "2"]),
    (int | Sequence[int] | None, "eos_token_id", [[-1], ["a"], {}, True, [True]]),
    (Mapping[str, Any] | None, "rope", [[], "x", 0]),
    (Sequence[str] | None, "names", ["ab", [1]]),
]


@pytest.mark.parametrize(("kind", "name", "values"), FITTING)
def test_what_fits_is_taken(kind: Any, name: str, values: list[Any]) -> None:
    assert all(fits(value, kind, name) for value in values)


@pytest.mark.parametrize(("kind", "name", "values"), UNFIT)
def test_what_does_not_fit_is_refused(kind: Any, name: str, values: list[Any]) -> None:
    assert not any(fits(value, kind, name) for value in values)


def test_what_is_wanted_is_said_in_words() -> None:
    assert wanted(int, "size") == "a whole number above 0"
    assert wanted(int | None, "pad_token_id") == "a whole number, 0 or more or null"
    assert wanted(float | bool | str) == "a number, 0 or more or true or false or a text"
    assert wanted(Mapping[str, Any] | Sequence[int]) == "an object or a list"
