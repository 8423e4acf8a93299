"""Numbers as JSON holds them: it knows no NaN and no infinity."""

import math
from collections.abc import Mapping
from typing import Any


def finite(value: Any) -> Any:
    """Return a value as JSON can hold it: what is no number becomes a text, which `float` reads."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {name: finite(inner) for name, inner in value.items()}
    return value
