"""`qkv watch`: the attention of a model, of a person's own script, or of a recording."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from qkv.cli.asked import Asked, Head, Reading
from qkv.cli.targets import check_target
from qkv.errors import ArgumentError, FileError

HELP = """Watch attention as it runs: of a model, or of your own script; or look at a recording.

\b
  qkv watch --model minilm "the coffee spilled on the laptop and it stopped working"
  qkv watch --model smollm2 "The capital of France is" --head 3.5
  qkv watch --model smollm2 "Once upon a time" --max-tokens 20 --save seen.safetensors
  qkv watch train.py --epochs 1
  qkv watch --head 2.1 --excel head.xlsx train.py --epochs 1
  qkv watch seen.safetensors --head 3.5

Attentions and heads are counted from 1, in the order in which they run; tokens from 0: --tokens
10:40 reads 10 up to 39. What stands after the name of a script is the script's own.
"""

Rest = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="TEXT | SCRIPT.py [ARGS]... | FILE.safetensors",
        help="What the model reads; or a script; or a recording.",
    ),
]
Model = Annotated[str | None, typer.Option(help="A model's name (minilm) or its folder.")]
HeadOption = Annotated[
    str | None, typer.Option("--head", metavar="A.H", help="Draw head H of attention A.")
]
Everything = Annotated[bool, typer.Option("--all", help="A line for each head, not for a few.")]
Only = Annotated[
    str | None, typer.Option(metavar="GLOB", help="Record these modules only: '*.layers.3.*'.")
]
MaxTokens = Annotated[
    int | None, typer.Option(metavar="N", help="Let a decoder write N tokens, and watch that too.")
]
Tokens = Annotated[str | None, typer.Option(metavar="A:B", help="Read only these tokens.")]
Output = Annotated[
    str | None,
    typer.Option(metavar="TEXT", help="What the decoder wrote; by default what it writes itself."),
]
Excel = Annotated[Path | None, typer.Option(help="With --head: its workbook.")]
Save = Annotated[Path | None, typer.Option(help="Write what was recorded: a .safetensors file.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]

SCRIPT, RECORDING = ".py", ".safetensors"
MOST_TOKENS = 100_000


class WatchCommand(TyperCommand):
    """Options may stand after a text; what stands after a script is the script's own."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the command line."""
        ctx.allow_interspersed_args = not self._runs_a_script(args)
        return super().parse_args(ctx, args)

    def _runs_a_script(self, args: Sequence[str]) -> bool:
        takes = {
            name
            for parameter in self.params
            if parameter.param_type_name == "option" and not getattr(parameter, "is_flag", False)
            for name in parameter.opts
        }
        waiting = False
        for word in args:
            if waiting or (word.startswith("-") and word != "-"):
                if word.split("=")[0] == "--model" and not waiting:
                    return False
                waiting = word in takes and not waiting
                continue
            return word.endswith(SCRIPT)
        return False


def watch(
    rest: Rest = None,
    *,
    model: Model = None,
    head: HeadOption = None,
    everything: Everything = False,
    only: Only = None,
    tokens: Tokens = None,
    max_tokens: MaxTokens = None,
    output: Output = None,
    excel: Excel = None,
    save: Save = None,
    json: Json = False,
) -> None:
    """Watch attention as it runs: of a model, or of your own script; or look at a recording."""
    _check_source(rest or [], model)
    chosen = None if head is None else Head.read(head)
    if excel is not None:
        if chosen is None:
            raise ArgumentError("--excel writes the workbook of one head; say --head 3.5 too")
        check_target("excel", excel, ".xlsx")
    if save is not None:
        check_target("save", save, RECORDING)
    if only is not None and not only.strip():
        raise ArgumentError(f"only is {only!r}; wanted a pattern of paths: '*.layers.3.*'")
    asked = Asked(chosen, excel, save, only, everything, json)
    assert rest is not None
    if model is not None:
        _watch_model(rest[0], model, Reading(tokens, max_tokens, output), asked)
        return
    said = {"--tokens": tokens, "--max-tokens": max_tokens, "--output": output}
    if rest[0].endswith(SCRIPT):
        _refuse({"--all": everything or None, **said}, "a script")
        _watch_script(Path(rest[0]), rest[1:], asked)
    else:
        _refuse(said, "a recording")
        from qkv.cli.watched_file import watch_file

        watch_file(Path(rest[0]), asked)


def _check_source(rest: Sequence[str], model: str | None) -> None:
    if not rest:
        raise ArgumentError("wanted a TEXT and --model, or a script, or a recording; see --help")
    if model is None and not rest[0].endswith((SCRIPT, RECORDING)):
        raise ArgumentError(
            f"{rest[0][:40]!r} is no script ({SCRIPT}) and no recording ({RECORDING}); for a text "
            f"say --model too"
        )
    if model is not None and len(rest) > 1:
        raise ArgumentError(f"wanted one TEXT, got {len(rest)}: put it into quotes")
    if rest[0].endswith(RECORDING) and len(rest) > 1:
        raise ArgumentError(f"wanted one recording, got {len(rest)} names")


def _refuse(said: Mapping[str, Any], source: str) -> None:
    if surplus := [name for name, value in said.items() if value is not None]:
        raise ArgumentError(f"{', '.join(surplus)} cannot go with {source}: say --model too")


def _watch_script(path: Path, arguments: Sequence[str], asked: Asked) -> None:
    if not path.is_file():
        raise FileError(f"{path} is not there; wanted a Python script")
    if not os.access(path, os.R_OK):
        raise FileError(f"{path} cannot be read: there is no permission to")
    from qkv.cli.watched_script import watch_script

    watch_script(path, arguments, asked)


def _watch_model(text: str, model: str, reading: Reading, asked: Asked) -> None:
    from qkv.models.named import find

    max_tokens = reading.max_tokens
    if max_tokens is not None and not 1 <= max_tokens <= MOST_TOKENS:
        raise ArgumentError(f"max_tokens is {max_tokens}; wanted 1 to {MOST_TOKENS}")
    if max_tokens is not None and reading.output is not None:
        raise ArgumentError("--max-tokens lets the model write, --output says what it wrote")
    find(model)
    from qkv.cli.texts import given

    (text,) = given([text], "TEXT")
    from qkv.cli.watched_model import watch_model

    watch_model(text, model, reading, asked)
