"""Near misses: what came near to an attention, and why it was none."""

import threading
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from qkv.recording.calls.place import Place

KEPT = 1000
"""Different misses that are kept: a generation has new shapes at every step."""

THREADS = (
    "other threads ran: what they compute is not seen; enter the watch in the thread that runs the "
    "model"
)

EMPTY = "the call was empty: there are no examples, or no tokens"

COMPILED = (
    "a compiled model ran: only what its code calls one by one is seen; watch the module that was "
    "compiled instead"
)


class Threads:
    """Whether threads other than this one run, or were started since."""

    def __init__(self) -> None:
        """Begin to count."""
        self._made = _made()
        self._before = {thread.ident for thread in threading.enumerate()}

    def started(self) -> bool:
        """Say whether others were started since."""
        new = any(thread.ident not in self._before for thread in threading.enumerate())
        return new or _made() != self._made

    def running(self) -> bool:
        """Say whether others run that do work: not those that watch over a progress bar."""
        own = (threading.main_thread(), threading.current_thread())
        return any(not t.daemon for t in threading.enumerate() if t not in own)


def _made() -> str:
    """Return Python's count of the threads that were ever made without a name, as it prints."""
    return repr(getattr(getattr(threading, "_counter", None), "__self__", None))


@dataclass(frozen=True)
class Miss:
    """One operation that was no attention: what it was, where, of which shape, and why."""

    what: str
    place: Place
    shape: tuple[int, ...]
    reason: str

    def __str__(self) -> str:
        path = self.place.path
        within = "" if path is None else f" in {path or 'the model itself'}"
        shape = f" {self.shape}" if self.shape else ""
        return f"{self.what}{shape}: {self.reason} ({self.place.file}:{self.place.line}{within})"


class Misses:
    """What came near, each kind once with its number.

    Attributes:
        near: what entered a product, or should have, and how often.
        apart: softmaxes of something else than a product: classifiers, routers.
        opaque: operations that nothing can be seen in, by name.
        notes: what limits the recording: compiled or scripted modules.
        threads: whether others run, of which nothing is seen; notes say where they were started.
        softmaxes: whether there was any softmax.
        empty: whether there was a product without elements.
    """

    def __init__(self) -> None:
        """Start with none."""
        self.near: Counter[Miss] = Counter()
        self.apart: Counter[Miss] = Counter()
        self.opaque: Counter[str] = Counter()
        self.notes: list[str] = []
        self.threads = self.softmaxes = self.empty = False

    def add(
        self,
        what: str,
        place: Place | None,
        shape: Iterable[int],
        reason: str,
        *,
        near: bool = True,
    ) -> None:
        """Keep a miss; without a place it was no program's."""
        if place is None:
            return
        self.softmaxes |= what == "softmax"
        misses, miss = self.near if near else self.apart, Miss(what, place, tuple(shape), reason)
        if miss in misses or len(misses) < KEPT:
            misses[miss] += 1

    def note(self, text: str) -> None:
        """Keep a note, once."""
        if text not in self.notes:
            self.notes.append(text)

    def text(self, limit: int = 10) -> str:
        """Say in lines what came nearest and why it was not recorded."""
        lines = _lines(self.near, limit)
        lines += [
            f"{name} (nothing can be seen inside this operation)"
            for name in _lines(self.opaque, limit)
        ]
        if not lines:
            none = "no softmax fed a product" if self.softmaxes else "no softmax ran"
            lines = [none, *([EMPTY] if self.empty else []), *_lines(self.apart, limit)]
        if self.threads and THREADS not in self.notes:
            lines.append(THREADS)
        return "\n".join([*lines, *self.notes])


def _lines(counted: Counter[Miss] | Counter[str], limit: int) -> list[str]:
    lines = [
        str(what) if number == 1 else f"{what}, {number} times"
        for what, number in counted.most_common(limit)
    ]
    if len(counted) > limit:
        lines.append(f"and {len(counted) - limit} more")
    return lines
