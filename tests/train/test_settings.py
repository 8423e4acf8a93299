"""Settings: what cannot be meant is refused by name before anything runs."""

from dataclasses import fields
from typing import Any

import pytest

from qkv.errors import ArgumentError
from qkv.train.settings import WANTED, Settings

BAD: list[tuple[str, Any, str]] = [
    ("steps", 0, "a whole number above 0"),
    ("steps", 1.5, "a whole number above 0"),
    ("steps", True, "a whole number above 0"),
    ("batch", -1, "a whole number above 0"),
    ("learning_rate", 0, "a number above 0"),
    ("learning_rate", float("nan"), "a number above 0"),
    ("learning_rate", float("inf"), "a number above 0"),
    ("final_share", 1.1, "a number from 0 to 1"),
    ("warmup", -1, "a whole number, 0 or more"),
    ("weight_decay", 10**400, "a number, 0 or more"),
    ("weight_decay", -0.1, "a number, 0 or more"),
    ("betas", (0.9,), "two numbers, from 0 to below 1"),
    ("betas", (0.9, 1.0), "two numbers, from 0 to below 1"),
    ("betas", (0.9, "0.98"), "two numbers, from 0 to below 1"),
    ("clip", 0, "a number above 0, or None"),
    ("accumulate", 0, "a whole number above 0"),
    ("precision", "float16", "one of float32, bfloat16, float64"),
    ("label_smoothing", 1.0, "a number from 0 to below 1"),
    ("measure_every", 0, "a whole number above 0"),
    ("save_every", 2.0, "a whole number above 0"),
    ("patience", 0, "a whole number above 0, or None"),
    ("seed", -1, "a whole number from 0 to below 2**63"),
    ("seed", 2**63, "a whole number from 0 to below 2**63"),
]


@pytest.mark.usefixtures("as_shipped")
@pytest.mark.parametrize(("name", "value", "wanted"), BAD)
def test_a_value_that_cannot_be_meant_is_named(name: str, value: Any, wanted: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        Settings(**{"steps": 2, "batch": 3, name: value})
    assert str(caught.value) == f"{name} is {value!r}; wanted {wanted}"


def test_the_edges_of_what_can_be_meant_are_taken() -> None:
    Settings(
        steps=1, batch=1, learning_rate=1, final_share=0, warmup=0, weight_decay=0,
        betas=(0, 0.999), clip=None, label_smoothing=0, patience=None, seed=2**63 - 1,
    )  # fmt: skip


@pytest.mark.parametrize(("steps", "warmup"), [(9, 0), (40, 4), (250, 20), (4000, 20)])
def test_in_fewer_steps_the_warm_up_is_shorter(steps: int, warmup: int) -> None:
    usual = Settings(steps=400, batch=3, warmup=20, seed=5)
    assert usual.in_steps(steps) == Settings(steps=steps, batch=3, warmup=warmup, seed=5)


@pytest.mark.usefixtures("as_shipped")
@pytest.mark.parametrize("steps", [0, "9", True])
def test_a_number_of_steps_that_cannot_be_meant_is_named(steps: Any) -> None:
    with pytest.raises(ArgumentError, match=r"steps is .*; wanted a whole number above 0"):
        Settings(steps=400, batch=3).in_steps(steps)


def test_every_field_is_checked() -> None:
    assert set(WANTED) == {field.name for field in fields(Settings)}
