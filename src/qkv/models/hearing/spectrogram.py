"""The log-mel spectrogram: how loud each band of pitches is, a hundred times a second."""

import math

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from qkv.errors import ArgumentError

RATE = 16_000
"""Samples a second that the spectrogram is made of."""
WINDOW, HOP = 400, 160
"""Samples of one frame (25 ms), and from one frame to the next (10 ms)."""
TOP = 15 + 27 * math.log(8, 6.4)
"""8,000 Hz in mel: 15 up to 1,000 Hz in a straight line, above it 27 for a factor of 6.4."""
FRAMES = 3_000
"""Frames of the windows that Whisper hears at once: 30 seconds."""


def log_mel(
    samples: Float[Tensor, "*batch samples"], mels: int = 80
) -> Float[Tensor, "*batch mels frames"]:
    """Return the spectrogram of windows of sound      Radford et al. 2022, section 2.2

        S = |STFT(x)|² in Hann windows          power of each frequency in each frame
        L = log10 max(M S, 1e-10)               M: `mel_filters`
        (max(L, max L − 8) + 4) / 4             80 dB below the loudest is silence

    Args:
        samples: −1 to 1, `RATE` a second; every window of the batch is one of its own.
        mels: bands of pitches.

    Raises:
        ArgumentError: a window of 200 samples or fewer.
    """
    if samples.shape[-1] <= WINDOW // 2:
        raise ArgumentError(
            f"the sound has {samples.shape[-1]} samples; wanted more than {WINDOW // 2}"
        )
    hann = torch.hann_window(WINDOW, dtype=samples.dtype, device=samples.device)
    spectrum = torch.stft(samples, WINDOW, HOP, window=hann, return_complex=True)
    power = spectrum[..., :-1].abs().square().contiguous()
    filters = mel_filters(mels).to(power)
    loud = (filters @ power).clamp(min=1e-10).log10()
    loud = torch.maximum(loud, loud.amax(dim=(-2, -1), keepdim=True) - 8)
    return (loud + 4) / 4


def padded(samples: Float[Tensor, "samples"], frames: int = FRAMES) -> Float[Tensor, "window"]:
    """Return a window of so many frames, 30 seconds by default: the sound, then silence.

    Raises:
        ArgumentError: the sound is longer.
    """
    missing = frames * HOP - len(samples)
    if missing < 0:
        raise ArgumentError(
            f"the sound has {len(samples)} samples; wanted at most {frames * HOP}, which are "
            f"{frames * HOP / RATE:g} s"
        )
    return F.pad(samples, (0, missing))


def mel_filters(mels: int) -> Float[Tensor, "mels frequencies"]:
    """Return M: one triangle a band over the frequencies 0 to 8,000 Hz      Slaney 1998

    The triangles stand at even distances on the mel scale, each falls to 0 at its neighbours'
    peaks, and each has the area 1, so that wide ones are not louder. In float64.

    Raises:
        ArgumentError: fewer than one band.
    """
    if mels < 1:
        raise ArgumentError(f"mels is {mels}; wanted 1 or more")
    frequencies = torch.linspace(0, RATE / 2, WINDOW // 2 + 1, dtype=torch.float64)
    corners = _hertz(torch.linspace(0, TOP, mels + 2, dtype=torch.float64))
    low, peak, high = (c[:, None] for c in (corners[:-2], corners[1:-1], corners[2:]))
    rising = (frequencies - low) / (peak - low)
    falling = (high - frequencies) / (high - peak)
    return torch.minimum(rising, falling).clamp(min=0) * 2 / (high - low)


def _hertz(mel: Float[Tensor, "n"]) -> Float[Tensor, "n"]:
    return torch.where(mel < 15, mel * 1000 / 15, 1000 * 6.4 ** ((mel - 15) / 27))
