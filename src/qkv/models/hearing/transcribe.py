"""Recordings of any length, written down; and when each word was said."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from qkv.errors import ArgumentError
from qkv.models.hearing.sound import Sound
from qkv.models.hearing.spectrogram import HOP, RATE, log_mel, padded
from qkv.models.hearing.wording import Word, follow, heads_that_follow, words_of
from qkv.models.whisper import Head, Whisper
from qkv.models.writing.generate import write
from qkv.models.writing.options import Sampling
from qkv.nn.cache import KeyValueCache

QUIET = 0.4
"""Seconds of a pause at which a recording is cut."""
SEARCHED = 1 / 3
"""Part of a window, its last, in which such a pause is looked for."""
SILENCE = 1e-4
"""Loudness (root mean square) below which nothing is said."""


@dataclass(frozen=True)
class Segment:
    """What was said in one window of the recording.

    Attributes:
        text: the words.
        start, end: of the window, in seconds.
        score: mean log-probability of its tokens: how sure the model was.
        ids: the tokens.
    """

    text: str
    start: float
    end: float
    score: float
    ids: tuple[int, ...]


@dataclass(frozen=True)
class Transcript:
    """What was said.

    Attributes:
        text: all of it.
        segments: window by window; silent ones are left out.
        words: each with its time, where that was asked for.
        heads: the heads of cross-attention that the times were read off.
        language: of what was said, where the model knows several.
    """

    text: str
    segments: tuple[Segment, ...]
    words: tuple[Word, ...] = ()
    heads: tuple[Head, ...] = ()
    language: str | None = None


@dataclass(frozen=True)
class Heard:
    """What was said in one window of the recording.

    Attributes:
        end: of the window, in seconds.
        segment: what was said; None where it is silent.
        words: each with its time, where that was asked for.
        heads: the heads of cross-attention that the times were read off.
        language: of what was said, where the model knows several.
    """

    end: float
    segment: Segment | None = None
    words: tuple[Word, ...] = ()
    heads: tuple[Head, ...] = ()
    language: str | None = None


def transcribe(
    model: Whisper,
    sound: Sound,
    *,
    words: bool = False,
    heads: Sequence[Head] | None = None,
    language: str | None = None,
    sampling: Sampling | None = None,
    progress: Callable[[float], None] | None = None,
) -> Transcript:
    """Write down what is said in a recording of any length and rate.

    Args:
        model, sound, words, heads, language, sampling: as `hear` takes them.
        progress: told the seconds that have been written down, after each window.

    Raises:
        ArgumentError, ModelError: as `hear`.
    """
    heard = []
    for one in hear(model, sound, words=words, heads=heads, language=language, sampling=sampling):
        heard.append(one)
        if progress is not None:
            progress(one.end)
    segments = tuple(one.segment for one in heard if one.segment is not None)
    text = " ".join(segment.text for segment in segments if segment.text)
    found = tuple(word for one in heard for word in one.words)
    return Transcript(text, segments, found, heard[-1].heads, heard[-1].language)


@torch.no_grad()
def hear(
    model: Whisper,
    sound: Sound,
    *,
    words: bool = False,
    heads: Sequence[Head] | None = None,
    language: str | None = None,
    sampling: Sampling | None = None,
) -> Iterator[Heard]:
    """Write a recording down window by window; each is given out as soon as it is written.

    The language and the heads of the first window that is not silent hold for all others.

    Args:
        model: listens and writes.
        sound: the recording.
        words: whether to find out when each word was said.
        heads: which heads of cross-attention tell it; by default those that the model's files
            list, or else those that follow this recording best.
        language: of what is said, as "en"; where the model knows several, it hears by default.
        sampling: how tokens are chosen; greedy by default.

    Raises:
        ArgumentError: a sound without samples, or a language or heads that the model has not.
        ModelError: the model's folder has no tokenizer.
    """
    if not len(sound.samples):
        raise ArgumentError("the sound has no samples; wanted a recording of some length")
    if not sound.samples.is_floating_point() or not bool(sound.samples.isfinite().all()):
        raise ArgumentError(
            f"the sound's samples are {sound.samples.dtype}, or some are no numbers; wanted "
            f"fractions from -1 to 1"
        )
    samples = sound.at(RATE).samples.float()
    sampling = sampling or Sampling(max_tokens=max(1, (model.most or 2) // 2))
    chosen = () if heads is None else tuple(heads)
    for window in windows(samples, model.frames * HOP):
        part, segment, found = samples[window], None, []
        if float(_loudness(part).max()) >= SILENCE:
            cache = listen(model, part)
            language = language or _language(model, cache)
            prompt = model.marks.prompt(language)
            segment = _write(model, cache, prompt, sampling, window)
            if words and segment.ids:
                reading = follow(model, cache, prompt, segment.ids, len(part))
                if heads is None:
                    chosen = chosen or model.marks.following or heads_that_follow(reading)
                found = words_of(model, reading, chosen, part, window.start / RATE)
        yield Heard(window.stop / RATE, segment, tuple(found), chosen, language)


def listen(model: Whisper, samples: Float[Tensor, "samples"]) -> KeyValueCache:
    """Return a cache that holds what the encoder makes of one window, for `next` to write from.

    Args:
        model: listens.
        samples: at most a window, at 16,000 a second.

    Raises:
        ArgumentError: the sound is longer than a window.
    """
    mel = log_mel(padded(samples, model.frames), model.config.num_mel_bins)
    return model.read(mel[None].to(model.device, model.words.weight.dtype))


def windows(samples: Float[Tensor, "samples"], size: int) -> Iterator[slice]:
    """Cut a recording at the quietest place in the last third of each window."""
    start = 0
    while len(samples) - start > size:
        searched = round(size * SEARCHED)
        loud = _loudness(samples[start + size - searched : start + size])
        stop = start + size - searched + int(loud.argmin()) + (searched - len(loud)) // 2
        yield slice(start, stop)
        start = stop
    yield slice(start, len(samples))


def _loudness(samples: Float[Tensor, "samples"]) -> Float[Tensor, "places"]:
    """Root mean square of each stretch as long as a pause, or of all of it."""
    width = min(len(samples), round(QUIET * RATE))
    summed = F.pad(samples.double().square().cumsum(0), (1, 0))
    return ((summed[width:] - summed[:-width]).clamp(min=0) / width).sqrt()


def _language(model: Whisper, cache: KeyValueCache) -> str | None:
    """Return the language that the model hears, where it knows several."""
    languages, start = model.marks.languages, model.marks.start
    if not languages or start is None:
        return None
    asked = model.new_cache()
    asked.memory = cache.memory
    logits = model.next(torch.tensor([[start]], device=model.device), asked)[0]
    return max(languages, key=lambda name: float(logits[languages[name]]))


def _write(
    model: Whisper,
    cache: KeyValueCache,
    prompt: Sequence[int],
    sampling: Sampling,
    window: slice,
) -> Segment:
    (written,) = write(model, [prompt], sampling, cache)
    ids = tuple(number for number in written.ids if number not in model.rules.ends)
    start, end = window.start / RATE, window.stop / RATE
    return Segment(written.text.strip(), start, end, written.score, ids)
