"""`watch`: record the attention of any PyTorch model while it runs."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from fnmatch import fnmatchcase
from types import TracebackType
from typing import Any, NoReturn, get_args
from weakref import ref

from torch import nn

from qkv.errors import ArgumentError, RecordingError
from qkv.recording.calls.call import Call
from qkv.recording.memory.keeping import Keep, Keeping
from qkv.recording.observing.mode import Observer
from qkv.recording.recording import Recording
from qkv.recording.tokens import Given, Tokens


def watch(
    model: nn.Module | None = None,
    *,
    only: str | None = None,
    keep: Keep = "inputs",
    on_call: Callable[[Call], object] | None = None,
    tokens: Given | None = None,
    tokenizer: object | None = None,
) -> "Watch":
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
            generation the new rows; everything can be asked, until something is written into
            these tensors after the block (RecordingError then). "summary" computes at once what a
            table needs, and lets go of the rest: for long generations and whole corpora.
        on_call: called with every `Call` as it is made, in the middle of the forward.
        tokens: what the model reads: the texts of the tokens, one list or one an example of the
            batch; with a tokenizer also a text, or ids. Measures of words and separators need
            them. They can be given later: `seen.with_tokens`.
        tokenizer: of `transformers`, of `tokenizers`, or of a model of ours.

    Returns:
        What `with` takes, once; it gives the recording, which can be asked while it grows.

    Raises:
        ArgumentError: an argument that cannot be meant, before anything runs.
        Exception: what `on_call` raised, after the block.
    """
    _check(model, only, keep, on_call)
    if tokens is None and tokenizer is not None:
        raise ArgumentError(
            "tokenizer= was given without tokens=; wanted also what the model reads: the text, or "
            "the ids (tokens=inputs['input_ids'])"
        )
    read = None if tokens is None else Tokens.read(tokens, tokenizer)
    return Watch(model, only, Keeping(keep, read, on_call))


class Watch(AbstractContextManager[Recording]):
    """A block that is about to be watched; the recording is what `with … as seen` gives.

    Args:
        model, only: as `watch` takes them.
        keeping: takes the calls.
    """

    def __init__(self, model: nn.Module | None, only: str | None, keeping: Keeping) -> None:
        """Nothing runs yet."""
        self._about: tuple[nn.Module | None, str | None] | None = model, only
        self._keeping = keeping
        self._observer: Observer | None = None

    def __enter__(self) -> Recording:
        """Begin.

        Raises:
            RecordingError: it was used before.
        """
        if self._about is None:
            raise RecordingError("this watch was used before; wanted qkv.watch(...) once more")
        (model, only), self._about = self._about, None
        aliases = Aliases(model)
        keeping, chosen = self._keeping, Chosen(only, {} if only is None else aliases())
        self._observer = observer = Observer(model, keeping.take, None if only is None else chosen)
        keeping.notes = observer.misses.notes
        name = "whatever ran" if model is None else type(model).__name__
        missed = Missed(name, observer.misses.text, chosen)
        observer.__enter__()
        return Recording(name, keeping, None, missed, self._keeping.tokens, aliases=aliases)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        raised: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End; raise what `on_call` raised, unless the block itself did."""
        assert self._observer is not None
        observer, self._observer = self._observer, None
        try:
            observer.__exit__(kind, raised, trace)
        finally:
            self._keeping.close()
        if raised is None and self._keeping.failure is not None:
            raise self._keeping.failure

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("_") and hasattr(Recording, name):
            self._refuse(f".{name}")
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __getitem__(self, path: object) -> NoReturn:
        self._refuse(f"[{path!r}]")

    def __iter__(self) -> NoReturn:
        self._refuse("")

    def __contains__(self, path: object) -> NoReturn:
        self._refuse("")

    def _refuse(self, asked: str) -> NoReturn:
        raise RecordingError(
            f"a watch is no recording; wanted: with qkv.watch(model) as seen: model(...), and "
            f"then seen{asked}"
        )


class Aliases:
    """The other names of the modules that have several, and the names that calls have.

    Args:
        model: whose modules; it is not held.
    """

    def __init__(self, model: nn.Module | None) -> None:
        """Nothing is looked for yet."""
        self._model = None if model is None else ref(model)

    def __call__(self) -> dict[str, str]:
        """Return the first name by each of the others."""
        model = None if self._model is None else self._model()
        first: dict[nn.Module, str] = {}
        others: dict[str, str] = {}
        for name, module in () if model is None else model.named_modules(remove_duplicate=False):
            if first.setdefault(module, name) != name:
                others[name] = first[module]
        return others


class Chosen:
    """The modules that a glob lets through.

    Attributes:
        others: paths that it did not let through.
    """

    def __init__(self, glob: str | None, aliases: Mapping[str, str] | None = None) -> None:
        """Nothing has been asked yet."""
        self.glob = glob
        self._by_alias: set[str] = set()
        if glob is not None:
            self._by_alias = {
                path for name, path in (aliases or {}).items() if fnmatchcase(name, glob)
            }
        self.others: dict[str, None] = {}

    def __call__(self, path: str | None) -> bool:
        """Whether the attention of this module is recorded."""
        if self.glob is None or path == self.glob or fnmatchcase(path or "", self.glob):
            return True
        if path in self._by_alias:
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
