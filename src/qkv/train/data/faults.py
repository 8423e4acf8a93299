"""What is wrong with a file: every bad line by file and line, as many as can be read at once."""

from pathlib import Path

from qkv.errors import LinesError


class Faults:
    """Collects what is wrong with a file, and refuses it at the end.

    Args:
        path: of the file.
    """

    MOST = 20
    """Named one by one; of the others only the number is told, and none of them is kept."""

    def __init__(self, path: Path) -> None:
        """Begin with none."""
        self._path, self._lines, self._count = path, list[str](), 0

    def add(self, line: int, wrong: str) -> None:
        """Add what is wrong with a line; lines count from 1."""
        self._count += 1
        if self._count <= self.MOST:
            self._lines.append(f"{self._path}:{line}: {wrong}")

    def refuse(self) -> None:
        """Raise LinesError with all of them, one a line, if there are any."""
        more = self._count - len(self._lines)
        if self._count:
            raise LinesError("\n".join([*self._lines, *([f"and {more:,} more"] if more else [])]))
