"""The application: its commands, and how errors end."""

import sys
from typing import Annotated

import typer

from qkv.cli.explain import HELP, explain
from qkv.errors import QkvError, VerificationError

app = typer.Typer(
    name="qkv",
    help="Attention you can build, see and prove.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command(help=HELP)(explain)


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
        _end(f"the proof failed: {error}", 1)
    except QkvError as error:
        _end(str(error), 2)
    except BrokenPipeError:  # the reader has seen enough: `qkv explain … | head`
        sys.stderr.close()
        sys.exit(0)
    except KeyboardInterrupt:
        _end("interrupted", 130)


def _end(message: str, code: int) -> None:
    print(f"qkv: {message}", file=sys.stderr)  # noqa: T201
    sys.exit(code)
