"""`watch`: record the attention of any PyTorch model while it runs."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase
from typing import get_args

from torch import nn

from qkv.errors import ArgumentError
from qkv.recording.call import Call
from qkv.recording.keeping import Keep, Keeping
from qkv.recording.mode import Observer
from qkv.recording.recording import Recording
from qkv.recording.tokens import Given, Tokens


@contextmanager
def watch(
    model: nn.Module | None = None,
    *,
    only: str | None = None,
    keep: Keep = "inputs",
    on_call: Callable[[Call], object] | None = None,
    tokens: Given | None = None,
    tokenizer: object | None = None,
) -> Iterator[Recording]:
    """Record every attention that runs in the block, on the path that runs anyway.

        with qkv.watch(model) as seen:
            model(**inputs)
        seen["encoder.layer.3.attention.self"].weights.entropy()

    Nothing of the model is changed, and its outputs are the same bit for bit.

    Args:
        model: whose module paths are used; by default whatever runs is recorded, with paths that
            begin with the class of the outermost module.
        only: records the modules whose path matches: "*.layer.3.*".
        keep: "inputs" keeps queries, keys, values, masks and outputs by reference, and of a
            generation the new rows; everything can be asked. "summary" computes at once what a
            table needs, and lets go of the rest: for long generations and whole corpora.
        on_call: called with every `Call` as it is made, in the middle of the forward.
        tokens: what the model reads: the texts of the tokens, one list or one an example of the
            batch; with a tokenizer also a text, or ids. Measures of words and separators need
            them. They can be given later: `seen.with_tokens`.
        tokenizer: of `transformers`, of `tokenizers`, or of a model of ours.

    Yields:
        The recording; it can be asked while it grows.

    Raises:
        ArgumentError: an argument that cannot be meant, before anything runs.
        Exception: what `on_call` raised, after the block.
    """
    _check(model, only, keep, on_call)
    read = None if tokens is None else Tokens.read(tokens, tokenizer)
    keeping = Keeping(keep, read, on_call)
    chosen = Chosen(only)
    observer = Observer(model, keeping.take, None if only is None else chosen)
    keeping.notes = observer.misses.notes
    name = "whatever ran" if model is None else type(model).__name__
    missed = Missed(name, observer.misses.text, chosen)
    with observer:
        yield Recording(name, keeping, None, missed, read)
    if keeping.failure is not None:
        raise keeping.failure


class Chosen:
    """The modules that a glob lets through.

    Attributes:
        others: paths that it did not let through.
    """

    def __init__(self, glob: str | None) -> None:
        """Nothing has been asked yet."""
        self.glob = glob
        self.others: dict[str, None] = {}

    def __call__(self, path: str | None) -> bool:
        """Whether the attention of this module is recorded."""
        if self.glob is None or fnmatchcase(path or "", self.glob):
            return True
        self.others[path or ""] = None
        return False


class Missed:
    """Says why there is nothing in a recording.

    Args:
        model: name of the model's class.
        text: says what came nearest.
        chosen: which modules were looked at.
    """

    def __init__(self, model: str, text: Callable[[], str], chosen: Chosen) -> None:
        """Nothing has been asked yet."""
        self._model, self._text, self._chosen = model, text, chosen

    def __call__(self) -> str:
        """Return the message."""
        others = list(self._chosen.others)
        if others:
            few = ", ".join(path or repr(path) for path in others[:10])
            more = f", … ({len(others)} in all)" if len(others) > 10 else ""
            return (
                f"no attention of {self._model} was recorded: only={self._chosen.glob!r} matches "
                f"none of the modules that have one: {few}{more}"
            )
        return f"no attention of {self._model} was recorded. What came nearest:\n{self._text()}"


def _check(model: object, only: object, keep: object, on_call: object) -> None:
    if model is not None and not isinstance(model, nn.Module):
        raise ArgumentError(
            f"model is a {type(model).__name__}; wanted a torch.nn.Module, or nothing to watch "
            f"whatever runs"
        )
    if only is not None and not isinstance(only, str):
        raise ArgumentError(
            f"only is a {type(only).__name__}; wanted a pattern for module paths: '*.layer.3.*'"
        )
    if keep not in get_args(Keep):
        raise ArgumentError(f"keep is {keep!r}; wanted {' or '.join(map(repr, get_args(Keep)))}")
    if on_call is not None and not callable(on_call):
        raise ArgumentError(f"on_call is a {type(on_call).__name__}; wanted a function of a Call")
