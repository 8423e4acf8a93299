"""`qkv transcribe`: a recording in, text out, window by window."""

import json
import math
import re
import wave
from pathlib import Path

import numpy as np
import pytest
import torch

from qkv.cli import opening
from qkv.cli.texts import legible
from qkv.models.hearing.sound import read_wav
from qkv.models.hearing.transcribe import listen, transcribe
from tests.models.conftest import whisper_folder as whisper_folder  # noqa: PLC0414
from tests.models.hearing.test_transcribe import recording as recording  # noqa: PLC0414
from tests.models.listening import listener, spoken_at


@pytest.fixture(scope="module")
def small():
    torch.manual_seed(5)
    return listener()


@pytest.fixture
def use(monkeypatch, small):
    """Let the command use the small model, whose windows last a second."""
    monkeypatch.setattr(opening, "where", lambda name, wanted: Path(name))
    monkeypatch.setattr(opening, "opened", lambda name, path, wanted: small)
    return small


def written(path, samples, rate=16_000):
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes((samples.clamp(-1, 1).numpy() * 32767).astype("<i2").tobytes())
    return path


@pytest.fixture
def talk(tmp_path):
    samples = spoken_at([(0, 0.6), (0.8, 1.7), (2.0, 2.6)], 2.7)
    return written(tmp_path / "talk.wav", samples)


def test_windows_are_written_one_by_one_as_the_library_writes_them_all(qkv, use, talk):
    whole = transcribe(use, read_wav(talk), words=True)
    assert len(whole.segments) > 2
    ended = qkv("transcribe", talk)
    assert ended.code == 0
    assert ended.out == "".join(f"{legible(one.text)}\n" for one in whole.segments if one.text)
    told = json.loads(qkv("transcribe", talk, "--json", "--words").out)
    assert told["text"] == whole.text
    assert told["file"] == str(talk)
    assert told["seconds"] == pytest.approx(2.7)
    assert told["language"] is None
    for ours, theirs in zip(told["segments"], whole.segments, strict=True):
        assert (ours["text"], tuple(ours["ids"])) == (theirs.text, theirs.ids)
        assert (ours["start"], ours["end"]) == pytest.approx((theirs.start, theirs.end))
        assert ours["score"] == pytest.approx(theirs.score, abs=1e-5)
    for ours, theirs in zip(told["words"], whole.words, strict=True):
        assert ours["text"] == theirs.text
        assert (ours["start"], ours["end"]) == pytest.approx((theirs.start, theirs.end))
    heads = [(head["layer"] - 1, head["head"] - 1) for head in told["heads"]]
    assert heads == list(whole.heads)
    assert json.loads(qkv("transcribe", talk, "--json").out)["words"] == []


def test_a_window_is_printed_before_the_next_is_read(qkv, use, talk, monkeypatch):
    events = []
    monkeypatch.setattr("qkv.cli.screen.write", lambda text: events.append("line"))
    whole = transcribe(use, read_wav(talk))

    def heard(*arguments):
        events.append("window")
        return listen(*arguments)

    monkeypatch.setattr("qkv.models.hearing.transcribe.listen", heard)
    qkv("transcribe", talk)
    assert events == ["window", "line"] * len(whole.segments)


def test_words_are_lines_with_their_times(qkv, use, talk):
    whole = transcribe(use, read_wav(talk), words=True)
    lines = qkv("transcribe", talk, "--words").out.split("\n")[:-1]
    assert len(lines) == len(whole.words)
    for line, word in zip(lines, whole.words, strict=True):
        assert line == f"{word.start:8.2f} {word.end:8.2f}  {legible(word.text)}"


def test_silence_is_no_text_and_said_so(qkv, use, tmp_path):
    path = written(tmp_path / "silence.wav", torch.zeros(40_000))
    assert qkv("transcribe", path) == (0, "", "nothing is said in it\n")
    told = json.loads(qkv("transcribe", path, "--json").out)
    assert (told["text"], told["segments"], told["words"], told["heads"]) == ("", [], [], [])


def test_a_language_is_passed_on_and_an_unknown_one_is_refused(qkv, use, talk):
    ended = qkv("transcribe", talk, "--language", "en")
    assert (ended.code, ended.out) == (2, "")
    assert "language is 'en'; the model knows one language only, leave it out" in ended.err


def test_of_several_languages_the_first_windows_holds(qkv, use, talk, monkeypatch):
    numbers = {name.strip("<|>"): use.tokenizer._rules.token_to_id(name)
               for name in ("<|en|>", "<|fr|>")}  # fmt: skip
    marks = type(use.marks)(use.marks.start, numbers, None, use.marks.no_timestamps)
    monkeypatch.setattr(use, "marks", marks)
    told = json.loads(qkv("transcribe", talk, "--json").out)
    assert told["language"] in numbers
    assert told["language"] == transcribe(use, read_wav(talk)).language
    assert json.loads(qkv("transcribe", talk, "--language", "fr", "--json").out)["language"] == "fr"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "FILE is missing; wanted the recording, a .wav file"),
        (["no.wav"], "no.wav is not there; wanted a recording, a .wav file"),
        (["."], ". cannot be read: Is a directory"),
        (["text.wav"], "text.wav is no wav: it begins with b'hello"),
        (["cut.wav"], "cut.wav is cut off"),
        (["nothing.wav"], "nothing.wav holds no sound"),
        (["talk.wav", "--model", "minilm"], "minilm is an encoder: it embeds text and cannot write "
                                            "any; wanted a model that listens, such as"),
        (["talk.wav", "--model", "/no/such"], "there is no model named '/no/such'"),
        (["a\x1b[31m\n.wav"], "a�[31m�.wav is not there"),
        (["n" * 300 + ".wav"], "n.wav cannot be read: File name too long"),
    ],
)  # fmt: skip
def test_a_users_mistake_is_one_line_and_no_model_is_loaded(
    qkv, whisper_folder, talk, monkeypatch, arguments, message
):
    monkeypatch.chdir(talk.parent)
    Path("text.wav").write_text("hello, this is no sound")
    Path("cut.wav").write_bytes(talk.read_bytes()[:-100])
    written("nothing.wav", torch.zeros(0))
    monkeypatch.setattr(opening, "opened", None)
    ended = qkv("transcribe", *arguments)
    assert (ended.code, ended.out) == (2, "")
    assert message in ended.err
    assert len(ended.err.splitlines()) == 1


@pytest.mark.slow
def test_a_real_recording_is_written_down_with_its_times(qkv, whisper_folder, recording, tmp_path):
    some = recording.samples[: 8 * recording.rate]
    path = written(tmp_path / "cities.wav", some, recording.rate)
    ended = qkv("transcribe", path, "--words")
    lines = [line.split() for line in ended.out.splitlines()]
    said = " ".join(re.sub(r"\W", "", word).lower() for _, _, word in lines)
    assert said.startswith("it was the best of times it was the worst of times")
    times = np.array([[float(start), float(end)] for start, end, _ in lines])
    assert (np.diff(times.flatten()) >= 0).all()
    assert math.isclose(times[0, 0], 1.2, abs_tol=0.3)
