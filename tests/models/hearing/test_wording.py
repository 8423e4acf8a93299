"""Words out of tokens, and their times out of weights that were made to follow a sound."""

import pytest
import torch
from torch import Tensor

from qkv.errors import ArgumentError
from qkv.models.hearing.spectrogram import RATE
from qkv.models.hearing.transcribe import listen
from qkv.models.hearing.wording import (
    Reading,
    Word,
    follow,
    heads_that_follow,
    sounding,
    spoken,
    words_of,
)
from qkv.models.whisper import Whisper
from tests.models.listening import listener, spoken_at


@pytest.fixture(scope="module")
def model() -> Whisper:
    torch.manual_seed(3)
    return listener()


def ids(model: Whisper, text: str) -> list[int]:
    return list(model.tokenizer(text, around=False).ids)


# --- words ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("It was the best of times, it.", ["It", "was", "the", "best", "of", "times,", "it."]),
        (" It's 3.50 $ — 'so'!", ["It's", "3.50", "$", "—", "'so'!"]),
        ("été déjà-vu", ["été", "déjà-vu"]),
        ("日本語 it", ["日", "本", "語", "it"]),
        ("日本。", ["日", "本。"]),
        ("🙂 x", ["🙂", "x"]),
        ("  two", ["two"]),
        ("", []),
    ],
)  # fmt: skip
def test_tokens_are_put_together_to_words(model: Whisper, text: str, words: list[str]) -> None:
    tokens = ids(model, text) if text else []
    found = spoken(model, tokens)
    assert [word.text for word in found] == words
    for word in found:
        assert model.tokenizer.decode(tokens[word.start : word.stop]).strip() == word.text
        assert word.start < word.spoken <= word.stop


def test_the_punctuation_after_a_word_is_not_spoken(model: Whisper) -> None:
    (times,) = [word for word in spoken(model, ids(model, "of times,.")) if "times" in word.text]
    assert times.text == "times,."
    assert times.stop - times.spoken == 2


def test_half_a_character_at_the_end_is_a_word_of_its_own_kind(model: Whisper) -> None:
    tokens = ids(model, "It ж")
    assert [word.text for word in spoken(model, tokens[:-1])] == ["It", "\ufffd"]


# --- what the heads looked at ---------------------------------------------------------------------


@torch.no_grad()
def test_the_weights_are_those_that_the_model_used(model: Whisper) -> None:
    """Every layer's output, recomputed from them, is what the layer's cross-attention gave."""
    samples, text = spoken_at([(0, 0.9)], 0.9), ids(model, "It was the best")
    prompt, cache = model.marks.prompt(), listen(model, samples)
    reading = follow(model, cache, prompt, text, len(samples))
    assert cache.length == 0
    gave: list[Tensor] = []
    hooks = [
        layer.cross.register_forward_hook(lambda module, given, out: gave.append(out))
        for layer in model.layers if layer.cross is not None
    ]  # fmt: skip
    model.hidden_states(torch.tensor([[*prompt, *text]]), cache)
    for hook in hooks:
        hook.remove()
    assert cache.memory is not None
    for i, layer in enumerate(model.layers):
        assert layer.cross is not None
        values = layer.cross.project(cache.memory, cache.memory, cache.memory)[2]
        weights = torch.stack([reading.weights[i, head] for head in range(2)])
        assert weights.shape == (2, len(text) + 1, 45)
        assert (weights.sum(-1) < 1).all()  # the silence that fills the window has the rest
    whole = follow(model, cache, prompt, text, 50 * 320)
    for i, layer in enumerate(model.layers):
        assert layer.cross is not None
        values = layer.cross.project(cache.memory, cache.memory, cache.memory)[2]
        weights = torch.stack([whole.weights[i, head] for head in range(2)])[None]
        torch.testing.assert_close(weights.sum(-1), torch.ones(1, 2, len(text) + 1))
        out = layer.cross.join(weights @ values)
        torch.testing.assert_close(out, gave[i][:, len(prompt) - 1 :], rtol=0, atol=1e-5)
        assert torch.equal(whole.weights[i, 1][:, :45], reading.weights[i, 1])


@torch.no_grad()
def test_looking_leaves_nothing_behind(model: Whisper) -> None:
    samples = spoken_at([(0, 0.9)], 0.9)
    cache = listen(model, samples)
    follow(model, cache, model.marks.prompt(), ids(model, "It"), len(samples))
    assert all(not layer.cross._forward_hooks for layer in model.layers if layer.cross is not None)
    with pytest.raises(ArgumentError):
        follow(model, cache, model.marks.prompt(), [10_000], len(samples))
    assert all(not layer.cross._forward_hooks for layer in model.layers if layer.cross is not None)


def test_a_text_that_fills_all_positions_is_read_as_far_as_it_goes(model: Whisper) -> None:
    samples = spoken_at([(0, 0.9)], 0.9)
    text = (ids(model, " was") * 30)[:22]
    reading = follow(model, listen(model, samples), model.marks.prompt(), text, len(samples))
    assert reading.weights[0, 0].shape == (22, 45)
    words = words_of(model, reading, [(0, 0)], samples)
    assert len(words) == 22
    assert words[-1].end <= 0.9


# --- times ----------------------------------------------------------------------------------------


def pointing(begins: list[int], frames: int) -> Tensor:
    """Weights of a head: row i looks at the frames from begins[i] to the next."""
    weights = torch.full((len(begins), frames), 1e-3)
    for i, (start, end) in enumerate(zip(begins, [*begins[1:], frames], strict=True)):
        weights[i, start:end] = 1.0
    return weights / weights.sum(-1, keepdim=True)


def timed(model: Whisper, text: str, begins: list[int], sound: Tensor) -> list[Word]:
    frames = -(-len(sound) // 320)
    reading = Reading(tuple(ids(model, text)), {(1, 0): pointing(begins, frames)})
    return words_of(model, reading, [(1, 0)], sound, before=10.0)


def test_words_begin_where_their_tokens_do_and_end_where_the_next_begins(model: Whisper) -> None:
    words = timed(model, "It was the", [0, 20, 50, 90], spoken_at([(0, 2)], 2))
    assert [word.text for word in words] == ["It", "was", "the"]
    found = [(word.start - 10, word.end - 10) for word in words]
    for (start, end), expected in zip(found, [(0, 0.4), (0.4, 1.0), (1.0, 1.8)], strict=True):
        assert start == pytest.approx(expected[0], abs=0.09)  # of a median over 7 frames
        assert end == pytest.approx(expected[1], abs=0.09)
    assert all(word.weight > 0.7 for word in words)


def test_a_word_neither_begins_nor_ends_in_silence(model: Whisper) -> None:
    sound = spoken_at([(0.3, 0.7), (1.2, 1.6)], 2)
    words = timed(model, "It was", [0, 50, 99], sound)
    assert [(round(w.start - 10, 2), round(w.end - 10, 2)) for w in words] == [
        (0.3, 0.7),
        (1.2, 1.6),
    ]


def test_what_sounds_in_the_time_of_a_comma_belongs_to_the_word_it_touches(model: Whisper) -> None:
    sound = spoken_at([(0.0, 0.8), (1.2, 2.0)], 2)
    first, second = timed(model, " times, was", [0, 30, 70, 99], sound)
    assert first.text == "times,"
    assert (round(first.end - 10, 2), round(second.start - 10, 2)) == (0.8, 1.2)


def test_a_word_is_on_that_side_of_a_pause_where_the_heads_looked_more(model: Whisper) -> None:
    sound = spoken_at([(0.2, 0.3), (1.0, 1.8)], 2)
    first, second = timed(model, "It was", [0, 70, 99], sound)
    assert (round(first.start - 10, 2), round(second.end - 10, 2)) == (1.0, 1.8)


def test_in_silence_words_have_the_times_that_the_heads_say(model: Whisper) -> None:
    words = timed(model, "It was", [0, 50, 99], torch.zeros(2 * RATE))
    assert words[0].start == 10
    assert words[0].end == words[1].start
    assert words[1].end <= 12


def test_words_never_overlap_nor_run_backwards(model: Whisper) -> None:
    text = "It was the best of times, it was the worst of times."
    count = len(ids(model, text)) + 1
    for _ in range(20):
        weights = torch.rand(count, 75).softmax(-1)
        sound = spoken_at([(0.1, 0.4), (0.5, 1.4)], 1.5)
        words = words_of(
            model, Reading(tuple(ids(model, text)), {(0, 1): weights}), [(0, 1)], sound
        )
        times = [time for word in words for time in (word.start, word.end)]
        assert times == sorted(times)
        assert all(word.start < word.end for word in words)
        assert all(0 <= word.weight <= 1 for word in words)


def test_heads_that_the_model_has_not_are_refused(model: Whisper) -> None:
    reading = Reading((1,), {(0, 0): torch.rand(2, 50)})
    for heads in ([(0, 1)], [(5, 0), (0, 0)], []):
        with pytest.raises(ArgumentError, match=r"heads are .*; the model has \[\(0, 0\)\]"):
            words_of(model, reading, heads, torch.zeros(16_000))


# --- heads ----------------------------------------------------------------------------------------


def test_heads_are_measured_and_chosen() -> None:
    good = pointing(list(range(0, 330, 30)), 330)
    reading = Reading((1,) * 10, {(0, 0): good.flip(0), (0, 1): good, (1, 0): torch.rand(11, 330)})
    measures = reading.measures()
    assert measures[0, 1] > 0.9 > max(measures[0, 0], measures[1, 0])
    assert heads_that_follow(reading) == ((0, 1),)
    poor = Reading(reading.ids, {(1, 0): reading.weights[1, 0]})
    assert heads_that_follow(poor) == ((1, 0),)


# --- sound ----------------------------------------------------------------------------------------


def test_sound_is_told_from_silence_frame_by_frame() -> None:
    for level in (1.0, 1e-3):
        sounds = sounding(level * spoken_at([(0.2, 0.6), (1.0, 1.3)], 1.5))
        found = sounds.nonzero().flatten().tolist()
        assert found == [*range(10, 30), *range(50, 65)]


def test_quiet_speech_without_pauses_is_sound() -> None:
    samples = spoken_at([(0, 2)], 2)
    samples[16_000:] *= 0.1  # 20 dB less
    assert sounding(samples).all()
    assert not sounding(torch.zeros(16_000)).any()
