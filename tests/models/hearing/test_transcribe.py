"""Whole recordings: where they are cut, what is passed on, and a real one word by word."""

import itertools
import os
import re
import wave
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from qkv.errors import ArgumentError, ModelError
from qkv.models import load
from qkv.models.hearing.sound import Sound, read_wav
from qkv.models.hearing.transcribe import Transcript, hear, listen, transcribe, windows
from qkv.models.hearing.wording import follow
from qkv.models.whisper import Whisper
from qkv.models.writing.sampling import Sampling
from tests.models.conftest import packaged
from tests.models.listening import listener, spoken_at

# --- where a recording is cut ---------------------------------------------------------------------


def test_a_short_recording_is_one_window() -> None:
    for samples in (1, 300, 48_000):
        assert list(windows(torch.randn(samples), 48_000)) == [slice(0, samples)]


def test_a_long_recording_is_cut_in_the_pause_near_the_end_of_each_window() -> None:
    pauses = [(2.2, 2.8), (4.6, 5.2), (7.0, 7.6)]  # of windows of 3 s
    times = itertools.pairwise([0.0, *itertools.chain(*pauses), 9.0])
    samples = spoken_at(list(times)[::2], 9.0)
    cuts = list(windows(samples, 48_000))
    assert cuts[0].start == 0
    assert cuts[-1].stop == len(samples)
    assert all(a.stop == b.start for a, b in itertools.pairwise(cuts))
    for cut, (start, end) in zip(cuts[:-1], pauses, strict=True):
        assert start <= cut.stop / 16_000 <= end


@pytest.mark.parametrize("samples", [48_001, 100_003, 480_000])
def test_no_window_is_too_long_and_none_is_empty(samples: int) -> None:
    for sound in (torch.randn(samples), torch.zeros(samples)):
        cuts = list(windows(sound, 48_000))
        assert sum(cut.stop - cut.start for cut in cuts) == samples
        assert all(0 < cut.stop - cut.start <= 48_000 for cut in cuts)
        assert all(cut.stop - cut.start >= 32_000 for cut in cuts[:-1])


# --- a small model of random weights --------------------------------------------------------------


@pytest.fixture(scope="module")
def small() -> Whisper:
    torch.manual_seed(5)
    return listener()


def test_segments_and_words_cover_the_recording(small: Whisper) -> None:
    sound = Sound(spoken_at([(0, 0.6), (0.8, 1.7), (2.0, 2.6)], 2.7), 16_000)
    told: list[float] = []
    found = transcribe(small, sound, words=True, progress=told.append)
    assert [segment.end for segment in found.segments] == told
    assert told[-1] == pytest.approx(2.7)
    assert found.text == " ".join(segment.text for segment in found.segments)
    assert len(found.segments) > 2
    assert len(found.words) > 10
    assert found.segments[0].start == 0
    for segment, after in itertools.pairwise(found.segments):
        assert segment.end == after.start
    times = [time for word in found.words for time in (word.start, word.end)]
    assert times == sorted(times)
    assert found.heads
    written = "".join(segment.text for segment in found.segments)
    spelled = "".join(word.text for word in found.words)
    assert re.sub(r"\s", "", spelled) == re.sub(r"\s", "", written)


def test_another_rate_and_length_are_told_by_the_sound(small: Whisper) -> None:
    at_8 = spoken_at([(0, 0.9)], 0.9, rate=8_000)
    sound = Sound(at_8, 8_000)
    assert transcribe(small, sound).text == transcribe(small, sound.at(16_000)).text
    assert transcribe(small, sound).words == ()


def test_a_window_gives_what_it_gives_alone(small: Whisper) -> None:
    samples = spoken_at([(0, 0.7), (0.9, 1.4)], 1.5)
    whole = transcribe(small, Sound(samples, 16_000))
    for segment in whole.segments:
        part = samples[round(segment.start * 16_000) : round(segment.end * 16_000)]
        (alone,) = transcribe(small, Sound(part, 16_000)).segments
        assert alone.ids == segment.ids
        assert alone.score == pytest.approx(segment.score)


def test_silence_is_no_segment(small: Whisper) -> None:
    found = transcribe(small, Sound(torch.zeros(40_000), 16_000), words=True)
    assert found == Transcript("", (), (), (), None)


def test_options_reach_what_writes(small: Whisper) -> None:
    sound = Sound(spoken_at([(0, 0.9)], 0.9), 16_000)
    assert len(transcribe(small, sound, sampling=Sampling(max_tokens=3)).segments[0].ids) <= 3
    assert transcribe(small, sound, sampling=Sampling(beams=3)).segments
    told = transcribe(small, sound, words=True, heads=[(1, 1)])
    assert told.heads == ((1, 1),)


def test_the_heads_that_the_files_list_are_taken() -> None:
    torch.manual_seed(7)
    model = listener(following=((0, 1), (1, 0)))
    sound = Sound(spoken_at([(0, 0.9)], 0.9), 16_000)
    assert transcribe(model, sound, words=True).heads == ((0, 1), (1, 0))


def test_a_language_is_heard_once_and_kept() -> None:
    torch.manual_seed(11)
    numbers = listener().tokenizer.special
    languages = {"en": numbers["<|en|>"], "fr": numbers["<|fr|>"]}
    model = listener(languages=languages)
    sound = Sound(spoken_at([(0, 0.7), (0.9, 1.4)], 1.5), 16_000)
    found = transcribe(model, sound)
    with torch.no_grad():
        cache = listen(model, sound.samples[: round(found.segments[0].end * 16_000)])
        logits = model.next(torch.tensor([[model.marks.start]]), cache)[0]
    expected = max(languages, key=lambda name: float(logits[languages[name]]))
    assert found.language == expected
    assert transcribe(model, sound, language=expected).text == found.text
    assert transcribe(listener(), sound).language is None


def test_each_window_is_given_out_before_the_next_is_listened_to(
    small: Whisper, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[Any] = []

    def heard(model: Whisper, samples: torch.Tensor) -> Any:
        events.append("listens")
        return listen(model, samples)

    monkeypatch.setattr("qkv.models.hearing.transcribe.listen", heard)
    silent = torch.cat([spoken_at([(0, 0.9)], 1.0), torch.zeros(32_000)])
    windows = list(hear(small, Sound(silent, 16_000), words=True))
    assert [one.segment is None for one in windows][-1]
    assert windows[-1].heads == windows[0].heads
    assert windows[-1].end == pytest.approx(3.0)
    events.clear()
    sound = Sound(spoken_at([(0, 0.6), (0.8, 1.7), (2.0, 2.6)], 2.7), 16_000)
    for one in hear(small, sound):
        events.append(one.end)
    assert events[::2] == ["listens"] * len(events[::2])
    assert events[1::2] == sorted(events[1::2])
    assert torch.is_grad_enabled()


def test_the_model_itself_transcribes_sounds_and_files(small: Whisper, tmp_path: Path) -> None:
    samples = spoken_at([(0, 0.7), (0.9, 1.4)], 1.5)
    sound = Sound(samples, 16_000)
    assert small.transcribe(sound, words=True) == transcribe(small, sound, words=True)
    path = tmp_path / "talk.wav"
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(16_000)
        file.writeframes((samples.clamp(-1, 1).numpy() * 32767).astype("<i2").tobytes())
    for where in (path, str(path)):
        assert small.transcribe(where) == transcribe(small, read_wav(path))


def test_to_generate_without_a_sound_says_what_to_call(small: Whisper) -> None:
    with pytest.raises(ArgumentError, match=r"call model\.transcribe\(sound\)"):
        small.generate([()])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"language": "fr"}, "language is 'fr'; the model knows one language only"),
        ({"words": True, "heads": [(9, 9)]}, r"heads are \[\(9, 9\)\]; the model has"),
    ],
)
def test_what_the_model_has_not_is_refused(
    small: Whisper, options: dict[str, Any], message: str
) -> None:
    sound = Sound(spoken_at([(0, 0.9)], 0.9), 16_000)
    with pytest.raises(ArgumentError, match=message):
        transcribe(small, sound, **options)


def test_no_sound_and_no_tokenizer_are_refused(small: Whisper) -> None:
    with pytest.raises(ArgumentError, match="the sound has no samples"):
        transcribe(small, Sound(torch.zeros(0), 16_000))
    with pytest.raises(ArgumentError, match="the sound's samples are"):
        transcribe(small, Sound(torch.tensor([0.1, float("nan"), 0.2] * 9), 16_000))
    model = listener()
    model._tokenizer = None
    with pytest.raises(ModelError, match="has no tokenizer"):
        transcribe(model, Sound(spoken_at([(0, 0.9)], 0.9), 16_000))


# --- Whisper tiny.en and a real recording ---------------------------------------------------------

SAID = """
It was the best of times, it was the worst of times, it was the age of wisdom, it was the age of
foolishness, it was the epoch of belief, it was the epoch of incredulity, it was the season of
Light, it was the season of Darkness, it was the spring of hope, it was the winter of despair, we
had everything before us, we had nothing before us, we were all going direct to Heaven, we were all
going direct the other way -- in short, the period was so far like the present period, that some of
its noisiest authorities insisted on its being received, for good or for evil, in the superlative
degree of comparison only.
"""
"""Charles Dickens, A Tale of Two Cities (1859): the first sentence."""


def words_in(text: str) -> list[str]:
    return re.sub(r"[^\w\s']", " ", text.lower()).split()


def errors(said: list[str], written: list[str]) -> int:
    """Words put in, left out or exchanged, at least (Levenshtein 1965)."""
    row = list(range(len(written) + 1))
    for i, word in enumerate(said, 1):
        before, row = row, [i]
        for j, other in enumerate(written, 1):
            row.append(min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (word != other)))
    return row[-1]


@pytest.fixture(scope="session")
def whisper_tiny() -> Whisper:
    """Whisper tiny.en on our own modules."""
    packaged("whisper-tiny")
    model: Whisper = load("whisper-tiny")
    return model


@pytest.fixture(scope="session")
def recording() -> Sound:
    """Someone reads the beginning of A Tale of Two Cities."""
    spec = find_spec("moonshine_voice")
    if spec is None and not os.environ.get("QKV_REQUIRE_MODELS"):
        pytest.skip("moonshine-voice is not installed: no real recording was transcribed")
    assert spec is not None
    assert spec.submodule_search_locations
    return read_wav(Path(spec.submodule_search_locations[0]) / "assets" / "two_cities.wav")


@pytest.fixture(scope="session")
def written(whisper_tiny: Whisper, recording: Sound) -> Transcript:
    return transcribe(whisper_tiny, recording, words=True)


@pytest.mark.slow
def test_a_real_recording_is_written_down(recording: Sound, written: Transcript) -> None:
    said = words_in(SAID)
    rate = errors(said, words_in(written.text)) / len(said)
    assert rate <= 0.1, written.text
    assert recording.rate == 48_000
    assert recording.seconds > 30


@pytest.mark.slow
def test_its_words_have_times_that_can_be_true(recording: Sound, written: Transcript) -> None:
    assert [word.text for word in written.words] == written.text.split()
    times = [time for word in written.words for time in (word.start, word.end)]
    assert times == sorted(times)
    assert times[0] > 1.0  # more than a second of room noise comes first
    assert times[-1] < recording.seconds
    lengths = [word.end - word.start for word in written.words]
    assert max(lengths) < 1.2
    assert sum(length >= 0.06 for length in lengths) > 0.95 * len(lengths)


@pytest.mark.slow
def test_its_words_fall_where_there_is_sound(recording: Sound, written: Transcript) -> None:
    samples = recording.at(16_000).samples
    power = samples[: len(samples) // 320 * 320].unflatten(0, (-1, 320)).square().mean(-1)
    sounds = power > 8 * power[5:20].mean()  # of the room, before anyone speaks
    covered = torch.zeros_like(sounds)
    for word in written.words:
        first, last = round(word.start / 0.02), round(word.end / 0.02)
        assert sounds[first:last].any(), word  # a soft f is little more than noise
        covered[first:last] = True
    assert sounds[covered].double().mean() > 0.8
    assert covered[sounds].double().mean() > 0.95


@pytest.mark.slow
@torch.no_grad()
def test_the_heads_that_its_makers_list_follow_the_sound(
    whisper_tiny: Whisper, recording: Sound, written: Transcript
) -> None:
    listed = {(1, 0), (2, 0), (2, 5), (3, 0), (3, 1), (3, 2), (3, 3), (3, 4)}
    assert set(written.heads) == listed
    segment, samples = written.segments[1], recording.at(16_000).samples
    part = samples[round(segment.start * 16_000) : round(segment.end * 16_000)]
    cache = listen(whisper_tiny, part)
    prompt = whisper_tiny.marks.prompt()
    measures = follow(whisper_tiny, cache, prompt, segment.ids, len(part)).measures()
    assert len(measures) == 24
    assert all(measures[head] > 0.5 for head in listed), measures
    others = sorted(share for head, share in measures.items() if head not in listed)
    assert others[0] < 0.2  # heads that do something else
    middle = sorted(measures.values())[12]
    assert sum(measures[head] >= middle for head in listed) >= 5
