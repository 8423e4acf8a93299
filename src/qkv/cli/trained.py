"""What is printed of a training that is over."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

from qkv.cli import printable
from qkv.cli.texts import legible
from qkv.train.finite import finite

if TYPE_CHECKING:
    from qkv.cli.training import Asked
    from qkv.train.loop import Result


def measures(values: Mapping[str, float]) -> str:
    """Return measures in a line, the one that judges first."""
    return ", ".join(f"{name.replace('_', ' ')} {value:.4g}" for name, value in values.items())


def lasted(seconds: float) -> str:
    """Return a time as a person says it."""
    minutes, rest = divmod(round(seconds), 60)
    if not minutes:
        return f"{seconds:.1f} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def text(asked: "Asked", result: "Result", samples: Sequence[str]) -> str:
    """Return the result as lines: how good, how large, how long, and what to type next."""
    lines = [
        f"{measures(result.values)} on held-out data, at step {result.best_step:,} of "
        f"{result.step:,}",
        f"{result.parameters:,} parameters, {lasted(result.seconds)}",
        *(f"  {line}" for sample in samples for line in sample.split("\n")),
        f"the model: {printable(str(asked.out))}",
    ]
    if asked.plot is not None:
        lines.append(f"the picture: {printable(str(asked.plot))}")
    if asked.entry.then:
        lines.append(f"next: {then(asked.entry.then, asked.out)}")
    return "".join(f"{legible(line)}\n" for line in lines)


def then(use: str, out: Path) -> str:
    """Return what uses a model, with its folder in it, as a shell or Python takes it."""
    path = printable(str(out))
    return use.format(out=quote(path), path=repr(path))


def plain(asked: "Asked", result: "Result", samples: Sequence[str]) -> dict[str, Any]:
    """Return the result for JSON."""
    return {
        "task": asked.name,
        "out": str(asked.out),
        "data": list(asked.data),
        "step": result.step,
        "best_step": result.best_step,
        "measures": finite(result.values),
        "samples": list(samples),
        "parameters": result.parameters,
        "seconds": result.seconds,
        "plot": None if asked.plot is None else str(asked.plot),
    }
