"""Sound as numbers: read from a wav, brought to another rate without folding tones over."""

import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from qkv.disk import cannot_read
from qkv.errors import ArgumentError, FileError

PCM, FLOAT, EXTENSIBLE = 1, 3, 0xFFFE
COMPRESSED = {2: "Microsoft ADPCM", 6: "A-law", 7: "µ-law", 17: "IMA ADPCM", 85: "MP3"}
RATES = range(1_000, 768_001)
"""Samples a second that a recording may have."""

CROSSINGS = 64
"""Zero crossings of the sinc on either side: tones up to 92 % of the lower rate's half pass."""

KAISER = 7.86
"""β of the Kaiser window for 80 dB: what would fold over is 10,000 times weaker than it was."""


@dataclass(frozen=True)
class Sound:
    """A recording of one channel.

    Attributes:
        samples: the pressure, −1 to 1.
        rate: samples a second.
    """

    samples: Float[Tensor, "samples"]
    rate: int

    @property
    def seconds(self) -> float:
        """How long it lasts."""
        return len(self.samples) / self.rate

    def at(self, rate: int) -> "Sound":
        """Return the sound at another rate; what it cannot hold is filtered out.

            y(t) = Σ_k x[k] · h(t − k / from)       Smith, Digital Audio Resampling, section 2
            h(t) = (2 f_c / from) sinc(2 f_c t) · Kaiser(t)

        The cutoff f_c lies so far below half of the lower rate that the window's transition ends
        there.

        Raises:
            ArgumentError: a rate outside of 1,000 to 768,000.
        """
        for which in (rate, self.rate):
            if which not in RATES:
                raise ArgumentError(f"rate is {which!r}; wanted {RATES[0]} to {RATES[-1]}")
        if rate == self.rate:
            return self
        return Sound(_resampled(self.samples, self.rate, rate), rate)


def _resampled(x: Tensor, old: int, new: int) -> Tensor:
    """Sample x where the new samples lie; those of one phase see the old ones alike."""
    common = math.gcd(old, new)
    step, phases = old // common, new // common  # `phases` new samples every `step` old ones
    reach = math.ceil(CROSSINGS * max(1.0, old / new))
    length = -(-len(x) * new // old)
    periods = -(-length // phases)
    around = torch.nn.functional.pad(x, (reach, reach + step))
    out = x.new_empty(phases, periods)
    taps = torch.arange(-reach, reach + 1, dtype=torch.float64)
    for phase in range(min(phases, length)):
        whole, part = divmod(phase * old, new)  # the new sample lies at whole + part / new
        kernel = _kernel(part / new - taps, min(1.0, new / old))
        windows = around[whole:].unfold(0, len(taps), step)[:periods]
        # some at a time: the windows overlap in `x`, but are copied before they are multiplied
        out[phase, : len(windows)] = torch.cat([w @ kernel.to(x) for w in windows.split(8192)])
    return out.T.flatten()[:length]


def _kernel(t: Tensor, ratio: float) -> Tensor:
    """h at t, counted in old samples; `ratio` is the lower rate over the old one."""
    transition = (80 - 7.95) / (2.285 * 2 * CROSSINGS) / (2 * math.pi)  # Kaiser 1974, of a rate
    cutoff = ratio * (0.5 - transition / 2)
    inside = (1 - (t * ratio / CROSSINGS).square()).clamp(min=0)
    window = torch.special.i0(KAISER * inside.sqrt()) / torch.special.i0(torch.tensor(KAISER))
    return 2 * cutoff * torch.sinc(2 * cutoff * t) * torch.where(inside > 0, window, 0.0)


class _Format(NamedTuple):
    """What a wav says about its samples: integers or floats, and their sizes."""

    kind: int
    channels: int
    rate: int
    bits: int


def read_wav(path: str | PathLike[str]) -> Sound:
    """Read a wav: PCM of 8, 16, 24 or 32 bits, or floats of 32 or 64.

    Several channels are averaged.

    Raises:
        FileError: it is no wav, cut off, empty, compressed, or holds what is not finite.
    """
    path = Path(path)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise cannot_read(path, error) from error
    if content[:4] != b"RIFF" or content[8:12] != b"WAVE":
        raise FileError(f"{path} is no wav: it begins with {content[:12]!r}, wanted RIFF and WAVE")
    form = data = None
    for name, body in _chunks(content, path):
        form = _format(body, path) if name == b"fmt " and form is None else form
        data = body if name == b"data" and data is None else data
    if form is None or data is None:
        raise FileError(
            f"{path} has no {'fmt' if form is None else 'data'} chunk; it may be cut off"
        )
    return Sound(_mono(data, form, path), form.rate)


def _chunks(content: bytes, path: Path) -> Iterator[tuple[bytes, memoryview]]:
    """Walk over the chunks: four letters, a size, a body, filled up to an even size."""
    at, view = 12, memoryview(content)
    while at + 8 <= len(content):
        name, size = struct.unpack_from("<4sI", content, at)
        body = view[at + 8 : at + 8 + size]
        if len(body) < size and not (name == b"data" and size == 0xFFFFFFFF):  # written to a pipe
            raise FileError(
                f"{path} is cut off: its chunk {name!r} should have {size} bytes, {len(body)} are "
                f"there"
            )
        yield name, body
        at += 8 + size + size % 2


def _format(body: memoryview, path: Path) -> _Format:
    if len(body) < 16:
        raise FileError(f"{path} has a fmt chunk of {len(body)} bytes; wanted 16 or more")
    kind, channels, rate, _, frame, bits = struct.unpack_from("<HHIIHH", body)
    if kind == EXTENSIBLE and len(body) >= 26:
        kind = struct.unpack_from("<H", body, 24)[0]
    if (kind, bits) not in {(PCM, 8), (PCM, 16), (PCM, 24), (PCM, 32), (FLOAT, 32), (FLOAT, 64)}:
        name = COMPRESSED.get(kind, f"format {kind}")
        what = {PCM: "PCM", FLOAT: "floats"}.get(kind, f"{name}, which is not read here")
        raise FileError(
            f"{path} holds {bits} bits of {what}; wanted PCM of 8, 16, 24 or 32 bits or floats of "
            f"32 or 64 (with ffmpeg: -c:a pcm_s16le)"
        )
    if channels < 1 or frame != channels * bits // 8:
        raise FileError(
            f"{path} says {channels} channels of {bits} bits in {frame} bytes; the three disagree"
        )
    if rate not in RATES:
        raise FileError(f"{path} says {rate} samples a second; wanted {RATES[0]} to {RATES[-1]}")
    return _Format(kind, channels, rate, bits)


def _mono(data: memoryview, form: _Format, path: Path) -> Tensor:
    frame = form.channels * form.bits // 8
    if len(data) < frame:
        raise FileError(f"{path} holds no sound: its data are {len(data)} bytes")
    if len(data) % frame:
        raise FileError(f"{path} is cut off: {len(data)} bytes are no whole number of {frame}")
    values = _numbers(data, form).reshape(-1, form.channels)
    samples = torch.from_numpy(values.mean(axis=1, dtype=np.float64).astype(np.float32))
    if not samples.isfinite().all():
        raise FileError(f"{path} holds samples that are no finite numbers")
    return samples


def _numbers(data: memoryview, form: _Format) -> NDArray[np.floating]:
    """−1 to 1; 8 bits are counted from 128, all others from 0."""
    if form.kind == FLOAT:
        return np.frombuffer(data, f"<f{form.bits // 8}")
    if form.bits == 8:
        return (np.frombuffer(data, np.uint8) - 128.0) / 128
    if form.bits == 24:  # as the upper three bytes of 32
        wide = np.zeros((len(data) // 3, 4), np.uint8)
        wide[:, 1:] = np.frombuffer(data, np.uint8).reshape(-1, 3)
        return wide.view("<i4")[:, 0] / 2.0**31
    return np.frombuffer(data, f"<i{form.bits // 8}") / 2.0 ** (form.bits - 1)
