"""The application: its commands, and how errors end."""

import os
import sys
from typing import Annotated

import typer

from qkv.cli import printable
from qkv.cli.classify import HELP as CLASSIFY_HELP
from qkv.cli.classify import classify
from qkv.cli.embed import HELP as EMBED_HELP
from qkv.cli.embed import embed
from qkv.cli.explain import HELP, explain
from qkv.cli.generate import HELP as GENERATE_HELP
from qkv.cli.generate import generate
from qkv.cli.history import HELP as HISTORY_HELP
from qkv.cli.history import history
from qkv.cli.map import HELP as MAP_HELP
from qkv.cli.map import draw
from qkv.cli.models import HELP as MODELS_HELP
from qkv.cli.models import models
from qkv.cli.train import HELP as TRAIN_HELP
from qkv.cli.train import train
from qkv.cli.transcribe import HELP as TRANSCRIBE_HELP
from qkv.cli.transcribe import transcribe
from qkv.cli.translate import HELP as TRANSLATE_HELP
from qkv.cli.translate import translate
from qkv.cli.watch import HELP as WATCH_HELP
from qkv.cli.watch import WatchCommand, watch
from qkv.errors import LinesError, QkvError, VerificationError

app = typer.Typer(
    name="qkv",
    help="Attention you can build, see and prove.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command(help=HELP)(explain)
app.command(help=WATCH_HELP, cls=WatchCommand)(watch)
app.command(help=EMBED_HELP)(embed)
app.command(help=CLASSIFY_HELP)(classify)
app.command(help=GENERATE_HELP)(generate)
app.command(help=TRANSLATE_HELP)(translate)
app.command(help=TRANSCRIBE_HELP)(transcribe)
app.command(help=TRAIN_HELP)(train)
app.command(help=HISTORY_HELP)(history)
app.command("map", help=MAP_HELP)(draw)
app.command(help=MODELS_HELP)(models)


@app.callback(invoke_without_command=True)
def main(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    """Attention you can build, see and prove."""
    if version:
        from qkv import __version__

        typer.echo(__version__)
        raise typer.Exit


def run() -> None:
    """Run the command line; what qkv refuses becomes one message and an exit code."""
    try:
        app()
    except VerificationError as error:
        _end(printable(f"the proof failed: {error}"), 1)
    except LinesError as error:
        _end("\n     ".join(map(printable, str(error).split("\n"))), 2)
    except QkvError as error:
        _end(printable(str(error)), 2)
    except OSError as error:
        _let_go()
        _end(printable(f"cannot write the output: {error.strerror or error}"), 2)
    except SystemExit as end:
        # The reader has seen enough (`qkv explain … | head`). Typer ends that with 1, which
        # means here that a proof failed.
        if not isinstance(end.__context__, BrokenPipeError):
            raise
        _let_go()
        sys.exit(0)


def _let_go() -> None:
    """Turn stdout away from what cannot be written to: Python flushes it on the way out."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _end(message: str, code: int) -> None:
    if sys.stderr is not None:  # closed: nobody wants to read, and stdout is for data
        print(f"qkv: {message}", file=sys.stderr)  # noqa: T201
    sys.exit(code)
