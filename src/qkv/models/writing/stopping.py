"""Where a text ends: before the first of some texts, however its pieces are cut."""

from collections.abc import Sequence


class Stops:
    """Lets text through until one of some texts is complete, and nothing of that text.

    Args:
        stop: the texts. The one that is complete first counts; of two that are complete at the
            same character, the longer.
    """

    def __init__(self, stop: Sequence[str]) -> None:
        """Nothing has come yet."""
        self._stop = tuple(stop)
        self._held = ""
        self.found: str | None = None

    def add(self, piece: str) -> str:
        """Take the next piece of the text; return what cannot belong to a stop text any more."""
        if self.found is not None:
            return ""
        text = self._held + piece
        ends = [
            (text.find(stop) + len(stop), -len(stop), stop) for stop in self._stop if stop in text
        ]
        if ends:
            end, _, self.found = min(ends)
            self._held = ""
            return text[: end - len(self.found)]
        sure = len(text) - max((_begun(text, stop) for stop in self._stop), default=0)
        self._held = text[sure:]
        return text[:sure]

    def close(self) -> str:
        """Return what was held back, since nothing more comes."""
        held, self._held = self._held, ""
        return held


def _begun(text: str, stop: str) -> int:
    """Characters at the end of a text that may be the beginning of a stop text."""
    longest = min(len(text), len(stop) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(stop[:n])), 0)
