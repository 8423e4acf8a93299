"""A recording out of a file."""

from collections import Counter
from pathlib import Path

from qkv.cli.asked import Asked
from qkv.cli.watched_calls import Report
from qkv.recording.recording import Recording


def watch_file(path: Path, asked: Asked) -> None:
    """Say what a recording holds.

    Raises:
        FileError: it is not there, or no recording.
        NameNotFoundError: `asked.only` matches none of its modules.
        ArgumentError, FileError: what was asked for is not there or cannot be written.
        RecordingError: its queries and keys were let go.
    """
    seen = Recording.load(path)
    if asked.only is not None:
        seen = seen.select(asked.only)
    Report("recording", seen, Counter(call.place for call in seen), asked).write()
