"""What reaches stdout, without PyTorch or NumPy: lines as wide as the terminal, or JSON."""

import json
import sys
from collections.abc import Mapping
from io import StringIO
from math import isfinite
from typing import Any

from rich.console import Console, RenderableType

NARROWEST, WIDEST = 60, 160


def encoding() -> str:
    """Return how stdout spells letters."""
    return (sys.stdout.encoding if sys.stdout is not None else None) or "utf-8"


def can_spell(characters: str) -> bool:
    """Whether stdout has all these characters."""
    try:
        characters.encode(encoding())
    except UnicodeEncodeError:
        return False
    return True


class Page:
    """What a command prints, collected; nothing is written before all of it is known.

    Attributes:
        width: columns that there are.
        colours: whether it has any.
    """

    def __init__(self) -> None:
        """Look at the terminal."""
        terminal = sys.stdout is not None and sys.stdout.isatty()
        self._text = StringIO()
        self._console = Console(
            file=self._text, force_terminal=terminal or None, highlight=False, soft_wrap=True
        )
        self.width = max(NARROWEST, min(self._console.width, WIDEST))
        self._console.width = self.width  # rich prints nothing where COLUMNS is 0
        self.colours = self._console.color_system is not None

    def add(self, *parts: RenderableType) -> None:
        """Put something below the rest."""
        for part in parts:
            self._console.print(part, soft_wrap=True)

    def write(self) -> None:
        """Write it; spaces at the ends of lines are left out."""
        write("".join(f"{line.rstrip()}\n" for line in self._text.getvalue().splitlines()))


def write_json(value: object) -> None:
    """Write JSON in one line; escaped where stdout lacks the letters."""
    write(json_of(value))


def json_of(value: object) -> str:
    """Return the line of JSON; what is no finite number is null."""
    unicode = encoding().lower().startswith("utf")
    return f"{json.dumps(_finite(value), ensure_ascii=not unicode, allow_nan=False)}\n"


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _finite(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not isfinite(value) else value


def write(text: str) -> None:
    """Write to stdout at once; what its encoding lacks becomes a question mark."""
    if sys.stdout is None:  # closed by whoever started the command: nobody wants to read
        return
    sys.stdout.write(text.encode(encoding(), "replace").decode(encoding()))
    sys.stdout.flush()
