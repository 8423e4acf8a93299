"""Values of a config.json, and what they have to be: by the types of a dataclass's fields."""

import sys
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Union, get_args, get_origin

KINDS: Mapping[object, tuple[Callable[[Any], bool], str]] = {
    bool: (lambda value: isinstance(value, bool), "true or false"),
    str: (lambda value: isinstance(value, str), "a text"),
    Mapping: (lambda value: isinstance(value, dict), "an object"),
    Sequence: (lambda value: isinstance(value, list), "a list"),
    type(None): (lambda value: value is None, "null"),
}
"""Tests of a value, and what they want, by the type of a field."""


def fits(value: object, kind: Any, name: str = "") -> bool:
    """Whether a value of JSON is what a field of that type and name may hold.

    A whole number is above 0, but that of a token (`…_id`) may be 0; a number is 0 or more.
    """
    if kind is int:
        return _whole(value) and value >= _least(name)  # type: ignore[operator]
    if kind is float:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        return number and 0 <= value <= sys.float_info.max  # type: ignore[operator]
    if get_origin(kind) in {Union, types.UnionType}:
        return any(fits(value, one, name) for one in get_args(kind))
    if get_origin(kind) is Sequence:
        (of,) = get_args(kind)
        return isinstance(value, list) and all(fits(one, of, name) for one in value)
    test, _ = KINDS[get_origin(kind) or kind]
    return test(value)


def wanted(kind: Any, name: str = "") -> str:
    """Return what a field of that type and name may hold, in words."""
    if kind is int:
        return "a whole number, 0 or more" if _least(name) == 0 else "a whole number above 0"
    if kind is float:
        return "a number, 0 or more"
    if get_origin(kind) in {Union, types.UnionType}:
        return " or ".join(wanted(one, name) for one in get_args(kind))
    return KINDS[get_origin(kind) or kind][1]


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _least(name: str) -> int:
    return 0 if name.endswith(("_id", "_ids")) else 1
