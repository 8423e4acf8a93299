"""The log-mel spectrogram beside Hugging Face's, and tones where they belong."""

import math

import numpy as np
import pytest
import torch
from transformers import WhisperFeatureExtractor

from qkv.errors import ArgumentError
from qkv.models.hearing.spectrogram import log_mel, mel_filters, padded

MELS = [80, 128, 7]


def sweep(seconds: float) -> torch.Tensor:
    """A tone that rises from 50 to 7,500 Hz, and noise."""
    t = torch.arange(int(16_000 * seconds), dtype=torch.float64) / 16_000
    turns = 50 * t + (7_500 - 50) / (2 * seconds) * t.square()
    return (0.4 * torch.sin(2 * math.pi * turns) + 0.01 * torch.randn_like(t)).float()


@pytest.mark.parametrize("mels", MELS)
def test_the_filters_equal_hugging_faces(mels: int) -> None:
    theirs = WhisperFeatureExtractor(feature_size=mels).mel_filters.T
    np.testing.assert_allclose(mel_filters(mels).numpy(), theirs, rtol=0, atol=1e-14)


@pytest.mark.parametrize("mels", MELS)
@pytest.mark.parametrize("seconds", [0.011, 1.7, 30.0])
def test_the_spectrogram_equals_hugging_faces(mels: int, seconds: float) -> None:
    samples = sweep(seconds)
    theirs = WhisperFeatureExtractor(feature_size=mels)(samples.numpy(), sampling_rate=16_000)
    ours = log_mel(padded(samples), mels)
    assert ours.shape == (mels, 3_000)
    np.testing.assert_allclose(ours.numpy(), theirs["input_features"][0], rtol=0, atol=1e-4)


def test_it_equals_the_sums_written_out_in_float64() -> None:
    x = sweep(0.06).double()
    around = torch.cat([x[1:201].flip(0), x, x[-201:-1].flip(0)]).numpy()
    n = np.arange(400)
    hann = 0.5 - 0.5 * np.cos(2 * np.pi * n / 400)
    waves = np.exp(-2j * np.pi * np.outer(np.arange(201), n) / 400)
    frames = [around[start : start + 400] * hann for start in range(0, len(x), 160)]
    power = np.stack([np.abs(waves @ frame) ** 2 for frame in frames], axis=1)
    loud = np.log10(np.maximum(mel_filters(80).numpy() @ power, 1e-10))
    expected = (np.maximum(loud, loud.max() - 8) + 4) / 4
    np.testing.assert_allclose(log_mel(x).numpy(), expected, rtol=0, atol=1e-9)


def test_windows_of_a_batch_do_not_hear_each_other() -> None:
    loud, quiet = sweep(0.5), 1e-3 * torch.randn(8_000)
    both = log_mel(torch.stack([loud, quiet]))
    torch.testing.assert_close(both[0], log_mel(loud), rtol=0, atol=1e-5)
    torch.testing.assert_close(both[1], log_mel(quiet), rtol=0, atol=1e-5)


def test_silence_is_even() -> None:
    silent = log_mel(torch.zeros(3_200))
    assert silent.unique().tolist() == [-1.5]  # (log10 1e-10 + 4) / 4


def test_the_bands_of_a_tone_are_those_around_it() -> None:
    t = torch.arange(16_000) / 16_000
    for hertz in (200.0, 1_000.0, 5_000.0):
        loudest = int(log_mel(torch.sin(2 * math.pi * hertz * t))[:, 50].argmax())
        filters = mel_filters(80)[loudest]
        assert filters[round(hertz / 40)] > 0


@pytest.mark.parametrize("samples", [0, 1, 200])
def test_a_sound_shorter_than_half_a_frame_is_refused(samples: int) -> None:
    with pytest.raises(ArgumentError, match=f"has {samples} samples; wanted more than 200"):
        log_mel(torch.zeros(samples))


def test_more_than_a_window_is_refused() -> None:
    with pytest.raises(
        ArgumentError, match="has 480001 samples; wanted at most 480000, which are 30 s"
    ):
        padded(torch.zeros(480_001))
    assert padded(torch.ones(3)).sum() == 3
    assert len(padded(torch.ones(3))) == 480_000
    assert len(padded(torch.ones(3), 14)) == 14 * 160


def test_no_bands_are_refused() -> None:
    with pytest.raises(ArgumentError, match="mels is 0; wanted 1 or more"):
        log_mel(torch.zeros(400), 0)
