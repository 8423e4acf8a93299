"""`qkv transcribe`: a recording becomes text, and its words get their times."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qkv.errors import ArgumentError, FileError

if TYPE_CHECKING:
    from qkv.models.hearing.sound import Sound
    from qkv.models.hearing.transcribe import Transcript
    from qkv.models.whisper import Whisper

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
    heard = []
    for part in _shown(_heard(loaded, sound, words, language), sound.seconds):
        heard.append(part)
        if not json:
            _write(part, words)
    if json:
        _write_json(heard, {"model": model, "file": str(file), "seconds": sound.seconds})
    else:
        _tell(heard, words)


def _shown(parts: "Iterator[tuple[Transcript, float]]", seconds: float) -> "Iterator[Transcript]":
    """Show how far it is while a window is listened to; not while one is printed."""
    from qkv.cli.progress import moving

    end = 0.0
    while end < seconds:
        with moving("listening", seconds, at=end):
            found = next(parts, None)
        if found is None:
            return
        part, end = found
        yield part


def _tell(heard: "list[Transcript]", words: bool) -> None:
    """Say what the text does not: that there is none, or where the times come from."""
    from qkv.cli.progress import say, watched

    if not any(segment.text for part in heard for segment in part.segments):
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
        raise FileError(f"{file} cannot be read: {error.strerror}") from error
    with waiting("reading the recording"):
        from qkv.models.hearing.sound import read_wav

        return read_wav(file)


def _heard(
    model: "Whisper", sound: "Sound", words: bool, language: str | None
) -> "Iterator[tuple[Transcript, float]]":
    """Give out each window as soon as it is written down, with the second at which it ends.

    The language and the heads of the first hold for all the others.
    """
    from dataclasses import replace

    from qkv.models.hearing.sound import Sound
    from qkv.models.hearing.spectrogram import HOP, RATE
    from qkv.models.hearing.transcribe import transcribe as written
    from qkv.models.hearing.transcribe import windows

    samples, heads = sound.at(RATE).samples.float(), None
    for window in windows(samples, model.frames * HOP):
        part = Sound(samples[window], RATE)
        found = written(model, part, words=words, heads=heads, language=language)
        language, heads = found.language or language, found.heads or None
        at = window.start / RATE
        segments = (replace(s, start=s.start + at, end=s.end + at) for s in found.segments)
        timed = (replace(w, start=w.start + at, end=w.end + at) for w in found.words)
        yield replace(found, segments=tuple(segments), words=tuple(timed)), window.stop / RATE


def _write(part: "Transcript", words: bool) -> None:
    from qkv.cli.screen import write
    from qkv.cli.texts import legible

    if words:
        lines = [f"{word.start:8.2f} {word.end:8.2f}  {word.text}" for word in part.words]
    else:
        lines = [segment.text for segment in part.segments if segment.text]
    write("".join(f"{legible(line)}\n" for line in lines))


def _write_json(heard: "list[Transcript]", about: dict[str, Any]) -> None:
    from dataclasses import asdict

    from qkv.cli.screen import write_json

    segments = [segment for part in heard for segment in part.segments]
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


def _heads(heard: "list[Transcript]") -> list[tuple[int, int]]:
    """The heads that the times were read off, counted from 1."""
    found = next((part.heads for part in heard if part.heads), ())
    return [(layer + 1, head + 1) for layer, head in found]
