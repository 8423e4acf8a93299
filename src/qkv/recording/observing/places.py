"""Where an attention ran: module path, file and line, and which run; all read off the frames.

Nothing is hooked and nothing patched: a module that is called stands in the stack as the `self` of
`Module._call_impl`.
"""

import sys
import weakref
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import jaxtyping
import torch
from torch import nn

from qkv.recording.calls.place import Place

CALL = nn.Module._call_impl.__code__
PACKAGE = str(Path(__file__).parents[2])
ASKING = str(Path(__file__).parents[2] / "weights")
"""The folder whose lines compute what somebody asks about an attention."""

INSIDE = (
    *(str(Path(file).parent) for file in (torch.__file__, jaxtyping.__file__)),
    str(Path(__file__).parents[1]),
)
"""Folders whose lines are not the user's: PyTorch's, those of checks of shapes, and this one."""


class Places:
    """Reads the stack.

    Args:
        model: whose names are used, or None for whatever module is outermost.

    Attributes:
        run: which forward of an outermost module, counted from 0; −1 before the first.
        models: the outermost modules met, where none was named.
        compiled: whether any of it ran in compiled code.
    """

    def __init__(self, model: nn.Module | None) -> None:
        """Name the modules."""
        self.run = -1
        self.compiled = False
        self.models: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self._model = None if model is None else weakref.ref(model)
        self._outermost: FrameType | None = None  # held, or its identity would be used again
        self._names: weakref.WeakKeyDictionary[nn.Module, dict[int, str]]
        self._names = weakref.WeakKeyDictionary()
        self._of_model = {} if model is None else _names(model)

    def here(self) -> Place | None:
        """Say where the operation stands that is being dispatched, and count the runs.

        None: it answers a question about an attention, in the middle of the block.
        """
        frame: FrameType | None = sys._getframe(1)
        file, line, named = "?", 0, list[FrameType]()
        while frame is not None:
            code = frame.f_code
            if code is CALL:
                if self._model is None or id(frame.f_locals["self"]) in self._of_model:
                    named.append(frame)
                if frame is self._outermost:
                    break
            elif not line and not code.co_filename.startswith(("<", *INSIDE)):
                file, line = code.co_filename, frame.f_lineno
                if file.startswith(PACKAGE) and _asking(frame):
                    return None
            frame = frame.f_back
        while frame is not None and not line:  # PyTorch's own module, called by the user's code
            if not frame.f_code.co_filename.startswith(("<", *INSIDE)):
                file, line = frame.f_code.co_filename, frame.f_lineno
            frame = frame.f_back
        return Place(self._path(named), file, line)

    def release(self) -> None:
        """Let go of the last run's frame."""
        self._outermost = None

    def _path(self, frames: list[FrameType]) -> str | None:
        if not frames:
            self.run = max(self.run, 0)
            self.compiled = self.compiled or _compiled(sys._getframe(1))
            return None
        outermost = frames[-1]
        if outermost is not self._outermost:
            self._outermost, self.run = outermost, self.run + 1
            self.compiled = self.compiled or _compiled(sys._getframe(1))
        inner = frames[0].f_locals["self"]
        if self._model is not None:
            return self._of_model[id(inner)]
        outer = outermost.f_locals["self"]
        known = self._names.get(outer)
        if known is None:
            known = self._names[outer] = _names(outer)
            self.models.add(outer)
        for frame in frames:
            name = known.get(id(frame.f_locals["self"]))
            if name is not None:
                return f"{type(outer).__name__}.{name}".rstrip(".")
        return type(outer).__name__


def _compiled(frame: FrameType | None) -> bool:
    """Say whether the program came through what `torch.compile` makes."""
    while frame is not None:
        if frame.f_code.co_name == "compile_wrapper" and "_dynamo" in frame.f_code.co_filename:
            return True
        frame = frame.f_back
    return False


def _asking(frame: FrameType | None) -> bool:
    """Say whether our own code was called by what answers questions."""
    while frame is not None and frame.f_code.co_filename.startswith(("<", PACKAGE, *INSIDE)):
        if frame.f_code.co_filename.startswith(ASKING):
            return True
        frame = frame.f_back
    return False


def _names(model: nn.Module) -> dict[int, str]:
    """Name every module by its identity; one that has several names has its first."""
    return {id(module): name for name, module in modules(model)}


def modules(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Name the modules in order, as `named_modules` does and several times as fast."""
    seen, stack = set[int](), [("", model)]
    while stack:
        name, module = stack.pop()
        if id(module) not in seen:
            seen.add(id(module))
            yield name, module
            within = f"{name}." if name else ""
            children = [(within + k, m) for k, m in module._modules.items() if m is not None]
            stack += children[::-1]
