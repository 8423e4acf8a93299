"""Wavs against the standard library's reader, other rates against tones as formulas."""

import math
import struct
import wave
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from qkv.errors import ArgumentError, FileError
from qkv.models.hearing.sound import RATES, Sound, read_wav

EXTENSION = bytes.fromhex("000000001000800000aa00389b71")
"""What follows the format's number in WAVE_FORMAT_EXTENSIBLE."""


def wav(
    data: bytes, *, kind: int = 1, channels: int = 1, rate: int = 16_000, bits: int = 16,
    extra: bytes = b"", before: bytes = b"", size: int | None = None,
) -> bytes:  # fmt: skip
    frame = channels * bits // 8
    form = struct.pack("<HHIIHH", kind, channels, rate, 0, frame, bits) + extra
    body = b"WAVEfmt " + struct.pack("<I", len(form)) + form + before
    body += b"data" + struct.pack("<I", len(data) if size is None else size) + data
    return b"RIFF" + struct.pack("<I", len(body)) + body


@pytest.fixture
def write(tmp_path: Path) -> Callable[[bytes], Path]:
    def make(content: bytes) -> Path:
        path = tmp_path / "sound.wav"
        path.write_bytes(content)
        return path

    return make


def integers(bits: int, count: int) -> list[int]:
    """The ends of the range, 0 and its neighbours, then any."""
    half = 2 ** (bits - 1)
    chosen = [-half, half - 1, 0, -1, 1]
    return chosen + torch.randint(-half, half, (count - 5,)).tolist()


def as_bytes(values: list[int], bits: int) -> bytes:
    if bits == 8:
        return bytes(value + 128 for value in values)
    return b"".join(value.to_bytes(bits // 8, "little", signed=True) for value in values)


# --- reading --------------------------------------------------------------------------------------


@pytest.mark.parametrize("bits", [8, 16, 24, 32])
@pytest.mark.parametrize("channels", [1, 2, 5])
def test_what_the_standard_library_writes_is_read(tmp_path: Path, bits: int, channels: int) -> None:
    values, path = integers(bits, 7 * channels), tmp_path / "sound.wav"
    with wave.open(str(path), "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(bits // 8)
        file.setframerate(22_050)
        file.writeframes(as_bytes(values, bits))
    sound = read_wav(path)
    frames = np.array(values, float).reshape(7, channels) / 2 ** (bits - 1)
    np.testing.assert_allclose(sound.samples.numpy(), frames.sum(axis=1) / channels, atol=6e-8)
    assert sound.rate == 22_050
    assert sound.samples.dtype == torch.float32
    assert sound.seconds == 7 / 22_050


@pytest.mark.parametrize("bits", [32, 64])
def test_floats_are_read(write: Any, bits: int) -> None:
    values = np.random.default_rng(3).normal(size=(11, 3))
    path = write(wav(values.astype(f"<f{bits // 8}").tobytes(), kind=3, channels=3, bits=bits))
    np.testing.assert_allclose(read_wav(path).samples.numpy(), values.mean(axis=1), atol=1e-6)


@pytest.mark.parametrize(("kind", "bits"), [(1, 16), (1, 24), (3, 32)])
def test_the_extensible_format_names_the_real_one(write: Any, kind: int, bits: int) -> None:
    extra = struct.pack("<HHI", 22, bits, 4) + struct.pack("<H", kind) + EXTENSION
    one = struct.pack("<f", 0.5) if kind == 3 else as_bytes([2 ** (bits - 2)], bits)
    sound = read_wav(write(wav(one * 2, kind=0xFFFE, bits=bits, extra=extra)))
    assert sound.samples.tolist() == [0.5, 0.5]


def test_other_chunks_are_passed_over_even_of_an_odd_size(write: Any) -> None:
    before = b"LIST" + struct.pack("<I", 3) + b"abc\0"
    assert read_wav(write(wav(as_bytes([2**14], 16), before=before))).samples.tolist() == [0.5]


def test_a_file_written_to_a_pipe_is_read_to_its_end(write: Any) -> None:
    path = write(wav(as_bytes([2**14, -(2**14)], 16), size=0xFFFFFFFF))
    assert read_wav(path).samples.tolist() == [0.5, -0.5]


REFUSED = {
    "no wav": (b"ID3\x04 an MP3", "is no wav: it begins with b'ID3"),
    "nothing": (b"", "is no wav: it begins with b'', wanted RIFF and WAVE"),
    "another RIFF": (b"RIFF\x04\0\0\0AVI ", "is no wav"),
    "header alone": (b"RIFF\x04\0\0\0WAVE", "has no fmt chunk"),
    "no data": (wav(b"")[:36], "has no data chunk"),
    "no sound": (wav(b""), "holds no sound: its data are 0 bytes"),
    "half a sample": (wav(b"\0\0\0"), "is cut off: 3 bytes are no whole number of 2"),
    "cut off": (
        wav(b"\0\0", size=100),
        "is cut off: its chunk b'data' should have 100 bytes, 2 are there",
    ),
    "short format": (
        b"RIFF\x10\0\0\0WAVEfmt \x04\0\0\0\x01\0\x01\0", "has a fmt chunk of 4 bytes",
    ),
    "compressed": (
        wav(b"\0\0", kind=2, bits=4),
        "holds 4 bits of Microsoft ADPCM, which is not read here",
    ),
    "µ-law": (wav(b"\0\0", kind=7, bits=8), "8 bits of µ-law, which is not read here"),
    "unknown": (wav(b"\0\0", kind=99), "16 bits of format 99, which is not read here"),
    "12 bits": (wav(b"\0\0", bits=12), "holds 12 bits of PCM; wanted PCM of 8, 16, 24 or 32"),
    "half floats": (wav(b"\0\0", kind=3), "holds 16 bits of floats; wanted PCM of 8"),
    "no channels": (wav(b"\0\0", channels=0), "says 0 channels of 16 bits in 0 bytes"),
    "no rate": (wav(b"\0\0", rate=0), "says 0 samples a second; wanted 1000 to 768000"),
    "a huge rate": (wav(b"\0\0", rate=2**32 - 1), "says 4294967295 samples a second"),
    "not finite": (
        wav(struct.pack("<f", math.nan), kind=3, bits=32), "holds samples that are no finite",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_no_sound_is_refused(write: Any, case: str) -> None:
    content, message = REFUSED[case]
    with pytest.raises(FileError) as error:
        read_wav(write(content))
    assert message in str(error.value)
    assert "sound.wav" in str(error.value)


def test_every_beginning_of_a_wav_is_refused_as_a_file(write: Any) -> None:
    whole = wav(as_bytes([1, 2, 3], 16))
    for length in range(len(whole)):
        with pytest.raises(FileError):
            read_wav(write(whole[:length]))
    assert len(read_wav(write(whole)).samples) == 3


def test_a_file_that_is_not_there_and_a_folder_are_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "absent.wav", tmp_path):
        with pytest.raises(FileError, match="cannot be read"):
            read_wav(path)


# --- other rates ----------------------------------------------------------------------------------

HALF = 8_000.0
"""What 16,000 samples a second can hold."""


def tone(hertz: float, rate: int, seconds: float = 0.5) -> Tensor:
    t = torch.arange(int(rate * seconds), dtype=torch.float64) / rate
    return torch.sin(2 * math.pi * hertz * t + 0.7)


RECORDED = [44_100, 48_000, 8_000, 11_025, 16_001, 192_000]
TONES = [0.0, 440.0, 3_600.0, 7_300.0, 8_100.0, 15_900.0, 21_000.0]


@pytest.mark.parametrize(
    ("rate", "hertz"), [(rate, f) for rate in RECORDED for f in TONES if f < rate / 2 * 0.92]
)
def test_a_tone_stays_the_same_or_is_gone(rate: int, hertz: float) -> None:
    seconds = 0.05 if rate == 16_001 else 0.5
    sound = Sound(tone(hertz, rate, seconds), rate).at(16_000)
    expected = tone(hertz, 16_000, seconds) if hertz < HALF else torch.zeros(int(16_000 * seconds))
    inner = slice(150, -150)  # the filter reaches beyond the ends
    torch.testing.assert_close(sound.samples[inner], expected.double()[inner], rtol=0, atol=1.5e-4)
    assert len(sound.samples) == len(expected)


def test_between_half_the_rate_and_the_filters_end_nothing_grows() -> None:
    for hertz in range(7_400, 8_600, 100):
        samples = Sound(tone(hertz, 48_000), 48_000).at(16_000).samples[200:-200]
        assert samples.abs().max() < (1.001 if hertz < HALF else 1e-3)


def test_every_sample_counts_alike() -> None:
    """One sample alone moves the sum of what comes out by the ratio of the rates, wherever."""
    for old, new in [(44_100, 16_000), (8_000, 16_000), (12_007, 7_919)]:
        impulse = torch.zeros(3_001, dtype=torch.float64)
        impulse[1_503] = 1
        total = Sound(impulse, old).at(new).samples.sum()
        assert abs(float(total) - new / old) < 2e-4 * new / old


@pytest.mark.parametrize(("old", "new"), [(44_100, 16_000), (8_000, 44_100), (16_000, 15_999)])
@pytest.mark.parametrize("length", [0, 1, 2, 160, 441, 1_009])
def test_the_length_is_the_time_there_is(old: int, new: int, length: int) -> None:
    sound = Sound(torch.randn(length), old).at(new)
    assert len(sound.samples) == math.ceil(length * new / old)
    assert sound.rate == new


def test_the_same_rate_changes_nothing() -> None:
    sound = Sound(torch.randn(7), 16_000)
    assert sound.at(16_000) is sound


def test_long_recordings_equal_short_ones_where_they_agree() -> None:
    samples = torch.randn(48_000)
    long = Sound(torch.cat([samples, torch.randn(48_000)]), 48_000).at(16_000)
    short = Sound(samples, 48_000).at(16_000)
    torch.testing.assert_close(long.samples[:15_900], short.samples[:15_900], rtol=0, atol=1e-6)


@pytest.mark.usefixtures("as_shipped")
@pytest.mark.parametrize("rate", [0, -16_000, 999, 768_001, 16_000.5, "fast"])
def test_rates_that_cannot_be_meant_are_refused(rate: Any) -> None:
    with pytest.raises(ArgumentError, match=f"rate is .*{rate}.*; wanted 1000 to 768000"):
        Sound(torch.zeros(3), 16_000).at(rate)
    with pytest.raises(ArgumentError, match="wanted 1000 to 768000"):
        Sound(torch.zeros(3), rate).at(16_000)
    assert RATES[0] == 1_000
