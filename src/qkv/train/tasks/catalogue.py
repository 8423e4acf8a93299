"""The tasks by their names: what each learns, and where it is; nothing of it is imported here."""

from importlib import import_module
from typing import Any, NamedTuple

from qkv.errors import ArgumentError


class Entry(NamedTuple):
    """A task that `qkv train` knows.

    Attributes:
        place: "module:Class" of the task.
        says: what it learns, in a line.
        options: keywords of its own that `open` takes; the command has options of the same names.
        pictures: endings of the files that its `plot` draws; none where it draws nothing.
        unit: what a prediction is about.
        then: what uses what was learnt: a command with {out}, the folder as a shell takes it, or
            Python with {path}, the folder as Python takes it.
    """

    place: str
    says: str
    options: tuple[str, ...] = ()
    pictures: tuple[str, ...] = ()
    unit: str = "tokens"
    then: str = ""

    def load(self, name: str) -> Any:
        """Import the class of the task."""
        module, _, its = self.place.partition(":")
        found = getattr(import_module(module), its)
        assert found.name == name, f"{self.place} calls itself {found.name}"
        return found


TASKS: dict[str, Entry] = {
    "words": Entry(
        "qkv.train.tasks.words:Words",
        "the word that comes next, from one word or from the four before it",
        options=("context", "positions"),
        pictures=(".svg",),
        unit="words",
        then='in Python, qkv.load({path}).neighbours("time")',
    ),
    "classify": Entry(
        "qkv.train.tasks.classify:Classify",
        "a label for a text, from scratch or on top of a loaded encoder",
        options=("model", "frozen"),
        unit="texts",
        then='qkv classify "a fine film" --model {out}',
    ),
    "translate": Entry(
        "qkv.train.tasks.translate:Translate",
        "English to Spanish, with a transformer or one of its forerunners",
        options=("system",),
        then='qkv translate "the sky is blue" --model {out}',
    ),
    "language": Entry(
        "qkv.train.tasks.language:Language",
        "how a text goes on, in bytes or in pieces of words",
        options=("tokens",),
        then='qkv generate "Alice was" --model {out}',
    ),
    "caption": Entry(
        "qkv.train.tasks.caption:Caption",
        "what a small picture of digits shows, in words",
        pictures=(".svg",),
        then="in Python, qkv.load({path}).caption(pictures)",
    ),
}


def find(name: str) -> Entry:
    """Return a task's entry.

    Raises:
        ArgumentError: there is no such task; names those that there are.
    """
    if name not in TASKS:
        raise ArgumentError(f"there is no task {name[:40]!r}; known: {', '.join(TASKS)}")
    return TASKS[name]
