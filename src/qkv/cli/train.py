"""`qkv train`: data in, a folder with a trained model out."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from qkv.errors import ArgumentError, FileError
from qkv.train.tasks.catalogue import TASKS, Entry, find

HELP = f"""Train a model on a task, and keep what is best on held-out data.

\b
{chr(10).join(f"  {name:<11}{entry.says}" for name, entry in TASKS.items())}

\b
  qkv train translate --out spanish
  qkv train language --data book.txt --out prose --steps 2000
  qkv train language --data book.txt --out prose --steps 2000 --resume
  torchrun --standalone --nproc-per-node 2 -m qkv train language --out prose

The folder holds the model, which the other commands take by --model, a log, and the last
checkpoint. After a Ctrl-C the same command goes on by --resume.
"""

TaskName = Annotated[
    str | None, typer.Argument(metavar="TASK", help=f"What to learn: {', '.join(TASKS)}.")
]
Out = Annotated[Path | None, typer.Option(metavar="FOLDER", help="Where the model goes.")]
Data = Annotated[
    list[str] | None,
    typer.Option(metavar="X", help="A file, or the name of a built-in set; may be repeated."),
]
Steps = Annotated[int | None, typer.Option(metavar="N", help="How often weights are changed.")]
Batch = Annotated[int | None, typer.Option(metavar="N", help="The size of the batch of a step.")]
Rate = Annotated[float | None, typer.Option(metavar="X", help="The largest, after the warm-up.")]
Warmup = Annotated[
    int | None, typer.Option(metavar="N", help="Steps in which the learning rate rises.")
]
Clip = Annotated[float | None, typer.Option(metavar="X", help="Cut longer gradients to this.")]
Seed = Annotated[int, typer.Option(metavar="N", help="Of weights, of order and of held-out data.")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on from the last checkpoint.")]
Precision = Annotated[
    str | None, typer.Option(metavar="P", help="float32, bfloat16 (by autocast) or float64.")
]
Accumulate = Annotated[
    int | None, typer.Option(metavar="N", help="Cut each batch into N parts, to spare memory.")
]
Smoothing = Annotated[
    float | None, typer.Option(metavar="X", help="Share of a target spread over the vocabulary.")
]
Patience = Annotated[
    int | None, typer.Option(metavar="N", help="End after N measures that are no better.")
]
MeasureEvery = Annotated[
    int | None, typer.Option(metavar="N", help="Steps from one measure to the next.")
]
SaveEvery = Annotated[
    int | None, typer.Option(metavar="N", help="Steps from one checkpoint to the next.")
]
Shard = Annotated[
    bool, typer.Option("--shard", help="Under torchrun: each process keeps a part of the model.")
]
TensorBoard = Annotated[
    bool, typer.Option("--tensorboard", help="Log for TensorBoard too, in FOLDER/tensorboard.")
]
Plot = Annotated[
    Path | None, typer.Option(metavar="FILE", help="words, caption: draw what was learnt.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
System = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="translate: transformer, single, additive or dot."),
]
Tokens = Annotated[str | None, typer.Option(metavar="KIND", help="language: bytes or bpe.")]
Context = Annotated[
    int | None, typer.Option(metavar="N", help="words: how many words stand before.")
]
Positions = Annotated[
    bool | None, typer.Option("--positions", help="words: each place has parameters of its own.")
]
Model = Annotated[
    str | None, typer.Option(metavar="MODEL", help="classify: the encoder to begin with.")
]
Frozen = Annotated[
    bool | None, typer.Option("--frozen", help="classify: leave that encoder as it is.")
]


def train(
    task: TaskName = None,
    *,
    out: Out = None,
    data: Data = None,
    steps: Steps = None,
    batch: Batch = None,
    learning_rate: Rate = None,
    warmup: Warmup = None,
    clip: Clip = None,
    seed: Seed = 0,
    resume: Resume = False,
    precision: Precision = None,
    accumulate: Accumulate = None,
    label_smoothing: Smoothing = None,
    patience: Patience = None,
    measure_every: MeasureEvery = None,
    save_every: SaveEvery = None,
    shard: Shard = False,
    tensorboard: TensorBoard = False,
    plot: Plot = None,
    json: Json = False,
    system: System = None,
    tokens: Tokens = None,
    context: Context = None,
    positions: Positions = None,
    model: Model = None,
    frozen: Frozen = None,
) -> None:
    """Train a model on a task."""
    if task is None:
        raise ArgumentError(f"TASK is missing; wanted one of {', '.join(TASKS)}")
    entry = find(task)
    own = {"system": system, "tokens": tokens, "context": context, "positions": positions,
           "model": model, "frozen": frozen}  # fmt: skip
    own = _given(own)
    _check_options(task, entry, own)
    out = _checked(out)
    _check_plot(task, entry, plot)
    settings = {"steps": steps, "batch": batch, "learning_rate": learning_rate, "warmup": warmup,
                "clip": clip, "seed": seed, "precision": precision, "accumulate": accumulate,
                "patience": patience, "label_smoothing": label_smoothing,
                "measure_every": measure_every, "save_every": save_every}  # fmt: skip
    from qkv.cli.training import Asked, run

    asked = Asked(task, entry, out, tuple(data or ()), own, _given(settings), plot)
    run(asked, resume=resume, shard=shard, tensorboard=tensorboard, json=json)


def _given(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _check_options(task: str, entry: Entry, own: Mapping[str, Any]) -> None:
    """Refuse what the task would ignore."""
    surplus = [f"--{name}" for name in own if name not in entry.options]
    if surplus:
        its = ", ".join(f"--{name}" for name in entry.options) or "none"
        raise ArgumentError(
            f"{', '.join(surplus)}: the task {task} has no such option; its own are: {its}"
        )


def _checked(out: Path | None) -> Path:
    """Refuse a folder that cannot be one."""
    if out is None:
        raise ArgumentError("--out is missing; wanted the folder that the model goes to")
    above = next(folder for folder in (out, *out.absolute().parents) if os.path.exists(folder))
    if not os.path.isdir(above):
        raise FileError(f"out is {str(out)!r}, but {above} is a file; wanted a folder")
    if not os.access(above, os.W_OK):
        raise FileError(f"{out} cannot be written to: there is no permission to")
    return out


def _check_plot(task: str, entry: Entry, plot: Path | None) -> None:
    from qkv.cli.targets import check_target

    if plot is None:
        return
    if not entry.pictures:
        draw = ", ".join(name for name, entry in TASKS.items() if entry.pictures)
        raise ArgumentError(f"--plot: the task {task} draws nothing; these do: {draw}")
    ending = plot.suffix.lower()
    check_target("plot", plot, ending if ending in entry.pictures else entry.pictures[0])
