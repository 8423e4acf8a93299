"""`qkv transcribe`: a recording becomes text, and its words get their times."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qkv.disk import cannot_read
from qkv.errors import ArgumentError, FileError

if TYPE_CHECKING:
    from qkv.models.hearing.sound import Sound
    from qkv.models.hearing.transcribe import Heard

HELP = """Write down what is said in a recording.

\b
  qkv transcribe talk.wav
  qkv transcribe talk.wav --words
  qkv transcribe talk.wav --json

A long recording is read window by window of up to 30 seconds; each is a line, printed at once.
"""

File = Annotated[Path | None, typer.Argument(metavar="FILE.wav", help="The recording.")]
Model = Annotated[str, typer.Option(help="A model's name (whisper-tiny) or its folder.")]
Words = Annotated[bool, typer.Option("--words", help="A line a word: where it begins and ends.")]
Language = Annotated[
    str | None, typer.Option(help="Of what is said, as en; where the model knows several.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]


def transcribe(
    file: File = None,
    *,
    model: Model = "whisper-tiny",
    words: Words = False,
    language: Language = None,
    json: Json = False,
) -> None:
    """Write down what is said in a recording."""
    from qkv.cli.opening import Wanted, opened, where

    if file is None:
        raise ArgumentError("FILE is missing; wanted the recording, a .wav file")
    wanted = Wanted(("whisper",), "a model that listens, such as whisper-tiny")
    path = where(model, wanted)
    sound = _sound(file)
    loaded = opened(model, path, wanted)
    from qkv.models.hearing.transcribe import hear

    heard = []
    windows = hear(loaded, sound, words=words, language=language)
    for part in _shown(windows, sound.seconds):
        heard.append(part)
        if not json:
            _write(part, words)
    if json:
        _write_json(heard, {"model": model, "file": str(file), "seconds": sound.seconds})
    else:
        _tell(heard, words)


def _shown(parts: "Iterator[Heard]", seconds: float) -> "Iterator[Heard]":
    """Show how far it is while a window is listened to; not while one is printed."""
    from qkv.cli.progress import moving

    end = 0.0
    while end < seconds:
        with moving("listening", seconds, at=end):
            found = next(parts, None)
        if found is None:
            return
        end = found.end
        yield found


def _tell(heard: "list[Heard]", words: bool) -> None:
    """Say what the text does not: that there is none, or where the times come from."""
    from qkv.cli.progress import say, watched

    if not any(part.segment is not None and part.segment.text for part in heard):
        say("nothing is said in it")
    elif words and watched():
        heads = ", ".join(f"layer {layer} head {head}" for layer, head in _heads(heard))
        say(f"the times are those at which cross-attention looked: {heads}")


def _sound(file: Path) -> "Sound":
    """Read the recording: nothing is loaded for one that cannot be read."""
    from qkv.cli.progress import waiting

    try:
        file.stat()
    except FileNotFoundError as error:
        raise FileError(f"{file} is not there; wanted a recording, a .wav file") from error
    except OSError as error:
        raise cannot_read(file, error) from error
    with waiting("reading the recording"):
        from qkv.models.hearing.sound import read_wav

        return read_wav(file)


def _write(part: "Heard", words: bool) -> None:
    from qkv.cli.screen import write
    from qkv.cli.texts import legible

    if words:
        lines = [f"{word.start:8.2f} {word.end:8.2f}  {word.text}" for word in part.words]
    else:
        lines = [part.segment.text] if part.segment is not None and part.segment.text else []
    write("".join(f"{legible(line)}\n" for line in lines))


def _write_json(heard: "list[Heard]", about: dict[str, Any]) -> None:
    from dataclasses import asdict

    from qkv.cli.screen import write_json

    segments = [part.segment for part in heard if part.segment is not None]
    words = [asdict(word) for part in heard for word in part.words]
    write_json(
        {
            **about,
            "language": next((part.language for part in heard if part.language), None),
            "text": " ".join(segment.text for segment in segments if segment.text),
            "segments": [asdict(segment) for segment in segments],
            "words": words,
            "heads": [{"layer": layer, "head": head} for layer, head in _heads(heard)],
        }
    )


def _heads(heard: "list[Heard]") -> list[tuple[int, int]]:
    """The heads that the times were read off, counted from 1."""
    found = next((part.heads for part in heard if part.heads), ())
    return [(layer + 1, head + 1) for layer, head in found]
