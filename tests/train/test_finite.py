"""Numbers that JSON does not know, as text and back."""

import json
import math

from qkv.train.finite import finite


def test_what_is_no_number_becomes_a_text_however_deep_it_lies() -> None:
    values = {"a": math.nan, "b": {"c": -math.inf, "d": 0.5}, "e": "x", "f": 3, "g": None}
    told = json.loads(json.dumps(finite(values), allow_nan=False))
    assert told == {"a": "nan", "b": {"c": "-inf", "d": 0.5}, "e": "x", "f": 3, "g": None}
    assert math.isnan(float(told["a"]))
    assert float(told["b"]["c"]) == -math.inf
