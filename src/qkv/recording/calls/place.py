"""Where in a program an attention ran."""

from typing import NamedTuple


class Place(NamedTuple):
    """Where in a program.

    Attributes:
        path: the innermost module, by its name in the watched model ("" is the model itself); where
            none was named, by its name in the outermost module, after that one's class. None
            outside of every module.
        file, line: the innermost line that is not PyTorch's own.
    """

    path: str | None
    file: str
    line: int
