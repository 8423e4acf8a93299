"""A person's own script, run in this process as Python would run it."""

import os
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType, TracebackType

INTERRUPTED = 130
"""The exit code of what Ctrl-C has ended, as shells have it."""

STDOUT, STDERR = 1, 2
"""As other processes know them."""

LOADS = "<frozen importlib"
"""What compiles a script."""
WATCHES = str(Path(__file__).parents[1] / "recording")
"""Where the frames come from that a watch puts between a script and PyTorch."""


def run_script(path: Path, arguments: Sequence[str]) -> BaseException | None:
    """Run a script with its arguments; return how it ended, None where it came to its end.

    What it raises is shown at once, as Python would show it.
    """
    kept = sys.argv, sys.path[:], sys.stdout, sys.stderr, sys.excepthook
    main = sys.modules["__main__"]
    sys.argv = [str(path), *arguments]
    sys.path.insert(0, str(path.resolve().parent))
    try:
        _run_as_main(os.path.abspath(path))
    except SystemExit as end:
        return end
    except BaseException as error:
        _show(error)
        return error
    finally:
        sys.argv, sys.path[:], sys.stdout, sys.stderr, sys.excepthook = kept
        sys.modules["__main__"] = main
    return None


def end_as(ended: BaseException | None) -> None:
    """End this process as the script has ended."""
    if isinstance(ended, SystemExit):
        raise SystemExit(ended.code)
    if isinstance(ended, KeyboardInterrupt):
        raise SystemExit(INTERRUPTED)
    if ended is not None:
        raise SystemExit(1)


@contextmanager
def stdout_free() -> Iterator[None]:
    """Send what is written to stdout meanwhile to stderr, that of other processes too."""
    real = sys.stdout
    if real is not None:
        real.flush()
    try:
        before = os.dup(STDOUT)
    except OSError:  # it is closed
        with redirect_stdout(sys.stderr):
            yield
        return
    try:
        with redirect_stdout(sys.stderr):
            os.dup2(STDERR, STDOUT)
            yield
    finally:
        if real is not None:  # what a script wrote past the redirection
            real.flush()
        os.dup2(before, STDOUT)
        os.close(before)


def _run_as_main(path: str) -> None:
    """Run a file as the module `__main__` (`runpy` would also change its first argument)."""
    loader = SourceFileLoader("__main__", path)
    module = ModuleType("__main__")
    module.__file__, module.__loader__ = path, loader
    sys.modules["__main__"] = module
    exec(loader.source_to_code(loader.get_data(path), path), module.__dict__)


def _show(error: BaseException) -> None:
    """Show what a script raised: its own frames, without ours before and after them."""
    frames = _all(error.__traceback__)
    ours = [i for i, frame in enumerate(frames) if _file(frame) == __file__]
    own = [frame for frame in frames[ours[-1] + 1 :] if not _file(frame).startswith(LOADS)]
    last = max((i for i, frame in enumerate(own) if _is_a_persons(_file(frame))), default=0)
    watches = (i for i in range(last + 1, len(own)) if _file(own[i]).startswith(WATCHES))
    if (end := next(watches, None)) is not None:
        own[end - 1].tb_next = None
    first = own[0] if own else None
    sys.excepthook(type(error), error.with_traceback(first), first)


def _all(frame: TracebackType | None) -> list[TracebackType]:
    found = []
    while frame is not None:
        found.append(frame)
        frame = frame.tb_next
    return found


def _is_a_persons(file: str) -> bool:
    """Whether it is neither installed, nor Python's, nor a watch's."""
    return not file.startswith((WATCHES, sysconfig.get_path("stdlib"), "<")) and not any(
        folder in Path(file).parts for folder in ("site-packages", "dist-packages")
    )


def _file(frame: TracebackType) -> str:
    return frame.tb_frame.f_code.co_filename
