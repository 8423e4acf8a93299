"""A person's own script under a watch: which attention it used, and where."""

from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

from qkv.cli.asked import Asked
from qkv.cli.own_script import end_as, run_script, stdout_free
from qkv.cli.progress import say
from qkv.cli.screen import write_json
from qkv.cli.watched_calls import Report
from qkv.errors import QkvError
from qkv.recording.calls.call import Call
from qkv.recording.calls.place import Place
from qkv.recording.memory.keeping import Keeping
from qkv.recording.observing.mode import Observer
from qkv.recording.recording import Recording
from qkv.recording.watching import Chosen, Missed

BUDGET = 1 << 28
"""Bytes of queries, keys, values and outputs that are kept, besides the first call of each module:
a script may train for hours."""


class First:
    """Keeps the first calls of a script, and counts all of them.

    Attributes:
        keeping: what was kept.
        count: how often each place attended.
    """

    def __init__(self) -> None:
        """Nothing ran yet."""
        self.keeping = Keeping(on_call=self._weigh)
        self.count: Counter[Place] = Counter()
        self._bytes = 0

    def take(self, call: Call) -> None:
        """Count a call; keep it while there is room."""
        self.count[call.place] += 1
        if self._bytes < BUDGET or self.count[call.place] == 1:
            self.keeping.take(call)

    def _weigh(self, call: Call) -> None:
        # as large as its queries are what it adds of keys, values and outputs; in a generation
        # the keys of the steps before are let go
        self._bytes += 4 * call.q.numel() * call.q.element_size()


def watch_script(path: Path, arguments: Sequence[str], asked: Asked) -> None:
    """Run a script, say which attention it used, and end as it ended.

    Where there was none, stderr says what came nearest.

    Raises:
        ArgumentError, FileError: what was asked for is not there or cannot be written, and the
            script itself has ended well; what was recorded is told by then.
    """
    first, chosen = First(), Chosen(asked.only)
    observer = Observer(None, first.take, None if asked.only is None else chosen)
    with stdout_free() if asked.json else nullcontext(), observer:
        ended = run_script(path, arguments)
    if first.keeping.failure is not None:
        say(f"qkv: the recording broke off: {first.keeping.failure!r}")
    first.keeping.notes += observer.misses.notes
    missed = Missed(str(path), observer.misses.text, chosen)
    seen = Recording(str(path), first.keeping, None, missed)
    if not len(seen):
        say(f"qkv: {missed()}")
        if asked.json:
            notes = list(first.keeping.notes)
            plain = {"script": str(path), "attentions": [], "head": None, "notes": notes}
            write_json({**plain, **Asked().plain(), "missed": missed()})
        else:
            for note in first.keeping.notes:
                say(f"note: {note}")
        end_as(ended)
        return
    try:
        Report("script", seen, first.count, asked).write()
    except QkvError as error:
        if ended is None or (isinstance(ended, SystemExit) and not ended.code):
            raise
        say(f"qkv: {error}")
    end_as(ended)
