"""Words and their times, read off the cross-attention that wrote them."""

import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from qkv.errors import ArgumentError
from qkv.models.hearing.alignment import follows, starts
from qkv.models.hearing.spectrogram import HOP, RATE
from qkv.models.whisper import Head, Whisper
from qkv.nn.attention import MultiHeadAttention
from qkv.nn.cache import KeyValueCache
from qkv.weights.matrix import Weights

STEP = 2 * HOP
"""Samples that the encoder makes one row of: 20 ms."""
FOLLOWING = 0.5
"""Share from which on a head counts as following the sound."""
PAUSE = 15
"""Frames of silence, 0.3 s, that no word is spoken across."""
BREAK = 5
"""Frames of silence, 0.1 s, that part two words."""


@dataclass(frozen=True)
class Word:
    """A word of a transcript.

    Attributes:
        text: the word, with the punctuation that touches it.
        start, end: seconds from the beginning of the recording.
        weight: share of what the heads gave while the word was written that fell within its time.
    """

    text: str
    start: float
    end: float
    weight: float


@dataclass(frozen=True)
class Reading:
    """The cross-attention of a text that was written from a sound.

    Attributes:
        ids: the tokens.
        weights: of each head: row i is the query that wrote token i, and where there was room
            for one more, the last row wrote the end; columns are the 20 ms of the sound, without
            the silence that fills the window.
    """

    ids: tuple[int, ...]
    weights: Mapping[Head, Float[Tensor, "queries frames"]]

    def measures(self) -> dict[Head, float]:
        """Return how well each head follows the sound, 0 to 1, as `alignment.follows` says."""
        return {head: follows(weights) for head, weights in self.weights.items()}


@torch.no_grad()
def follow(
    model: Whisper,
    cache: KeyValueCache,
    prompt: Sequence[int],
    ids: Sequence[int],
    samples: int,
) -> Reading:
    """Read a text again, all at once, and return what each head of the decoder looked at.

    softmax(Q Kᵀ / √d_k)        Vaswani et al. 2017, equation 1, with K of the sound

    Args:
        model: wrote the text.
        cache: what `listen` gave; only its memory is used.
        prompt: what stood before the text.
        ids: the text, without the token that ended it.
        samples: length of the sound, at 16,000 a second.
    """
    frames, first = -(-samples // STEP), len(prompt) - 1
    found: dict[Head, Tensor] = {}

    def keep(layer: int) -> Callable[..., None]:
        def look(cross: nn.Module, given: tuple[Any, ...], _: object) -> None:
            assert isinstance(cross, MultiHeadAttention)
            q, k, _ = cross.project(given[0][:, first:], *given[1:3])
            weights = Weights(q, k, scale=cross.scale)
            heard = weights.tile(slice(None), slice(frames))[0].float()
            found.update({(layer, head): each for head, each in enumerate(heard)})

        return look

    crossings = enumerate(layer.cross for layer in model.layers)
    hooks = [cross.register_forward_hook(keep(i)) for i, cross in crossings if cross is not None]
    try:
        read = [*prompt, *ids][: model.most]  # the last token of a text may have no position
        model.hidden_states(torch.tensor([read], device=model.device), cache)
    finally:
        for hook in hooks:
            hook.remove()
    return Reading(tuple(ids), found)


def heads_that_follow(reading: Reading) -> tuple[Head, ...]:
    """Return the heads that follow the sound, at least the one that does it best."""
    measures = reading.measures()
    best = max(measures, key=lambda head: measures[head])
    return tuple(head for head, share in measures.items() if share >= FOLLOWING or head == best)


def words_of(
    model: Whisper,
    reading: Reading,
    heads: Sequence[Head],
    samples: Float[Tensor, "samples"],
    before: float = 0.0,
) -> list[Word]:
    """Return the words of a reading with their times.

    A word lasts from where its first token begins to where its last one with a letter ends, as
    the path through the heads' weights says. Then the sound itself is asked: a word does not
    begin in silence, nor end in it, and what is heard on this side of a pause belongs to it.
    Where there are more tokens than frames, some words take no time.

    Args:
        model: wrote the text.
        reading: what its heads looked at.
        heads: those that follow the sound.
        samples: the sound, at 16,000 a second.
        before: seconds of the recording before this window.

    Raises:
        ArgumentError: a head that the model has not.
    """
    absent = [head for head in heads if head not in reading.weights]
    if absent or not heads:
        raise ArgumentError(f"heads are {list(heads)}; the model has {sorted(reading.weights)}")
    weights = torch.stack([reading.weights[head] for head in heads])
    begins, given = [*starts(weights), weights.shape[-1]], weights.sum(dim=0)
    parts, sounds = spoken(model, reading.ids), sounding(samples)
    rows = [given[part.start : part.spoken].sum(dim=0) for part in parts]
    spans = [
        _within(range(begins[part.start], begins[part.spoken]), row, sounds)
        for part, row in zip(parts, rows, strict=True)
    ]
    words = []
    for part, row, span in zip(parts, rows, _meeting(spans, sounds), strict=True):
        share = float(row[span.start : span.stop].sum() / row.sum())
        start, end = (before + frame * STEP / RATE for frame in (span.start, span.stop))
        words.append(Word(part.text, start, end, share))
    return words


@dataclass(frozen=True)
class Spoken:
    """Tokens of a word: the first, the one after the last with a letter or digit, and all."""

    text: str
    start: int
    spoken: int
    stop: int


def spoken(model: Whisper, ids: Sequence[int]) -> list[Spoken]:
    """Put the tokens of a text together to words: each begins with a space.

    In scripts that write no spaces each character that is not put together of several tokens is
    a word.
    """
    words: list[Spoken] = []
    start = 0
    for stop in range(1, len(ids) + 1):
        text = model.tokenizer.decode(ids[start:stop])
        if text.endswith("\ufffd") and stop < len(ids):
            continue  # a token may end within a character
        letters = any(unicodedata.category(c)[0] in "LNS" for c in text)
        if words and not text.startswith(" ") and not _stands_alone(text):
            last = words.pop()
            end = stop if letters else last.spoken
            words.append(Spoken(last.text + text, last.start, end, stop))
        else:
            words.append(Spoken(text, start, stop, stop))
        start = stop
    return [Spoken(w.text.strip(), w.start, w.spoken, w.stop) for w in words if w.text.strip()]


def _stands_alone(text: str) -> bool:
    """Whether a text is of a script that writes no spaces: letters that have no case or joining."""
    names = [unicodedata.name(c, "") for c in text[:1]]
    return any(name.startswith(("CJK", "HIRAGANA", "KATAKANA", "THAI", "LAO")) for name in names)


def sounding(samples: Float[Tensor, "samples"]) -> Bool[Tensor, "frames"]:
    """Return whether there is sound in each 20 ms.

    That is what has six times the power of the quietest tenth, which in speech is a pause; but
    27 dB below the loudest is sound and 50 dB below it is none, whatever else there is.
    """
    missing = -len(samples) % STEP
    power = nn.functional.pad(samples, (0, missing)).unflatten(0, (-1, STEP)).square().mean(-1)
    most = power.max()
    sounds: Tensor = power > (6 * power.quantile(0.1)).clamp(1e-5 * most, 2e-3 * most)
    return sounds


def _within(span: range, given: Float[Tensor, "frames"], sounds: Tensor) -> range:
    """Leave out what is silent at the ends of a word, or beyond a pause in it.

    Of the stretches between pauses the one is taken that the heads looked at most.
    """
    stretches: list[range] = []
    for frame in span:
        if not sounds[frame]:
            continue
        if stretches and frame - stretches[-1].stop < PAUSE:
            stretches[-1] = range(stretches[-1].start, frame + 1)
        else:
            stretches.append(range(frame, frame + 1))
    return max(stretches, key=lambda s: float(given[s.start : s.stop].sum()), default=span)


def _meeting(spans: Sequence[range], sounds: Tensor) -> list[range]:
    """Give what sounds between two words to the one that it touches.

    Between them stands the time of the punctuation, in which there are silences or none.
    """
    met = list(spans)
    for i in range(1, len(met)):
        silences = _silences(range(met[i - 1].stop, met[i].start), sounds)
        if silences:
            met[i - 1] = range(met[i - 1].start, silences[0].start)
            met[i] = range(silences[-1].stop, met[i].stop)
    return met


def _silences(span: range, sounds: Tensor) -> list[range]:
    """Return where nothing sounds for a while."""
    found, start = [], span.start
    for frame in [*span, span.stop]:
        if frame == span.stop or sounds[frame]:
            if frame - start >= BREAK:
                found.append(range(start, frame))
            start = frame + 1
    return found
