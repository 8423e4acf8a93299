"""What a model of any family reads: a text, a sound or a picture, and the names of its rows."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, isfinite
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from qkv.errors import ArgumentError, FileError, MissingPackageError, ModelError
from qkv.explaining.text import window
from qkv.models import load
from qkv.models.bert import Bert
from qkv.models.encoder_decoder import EncoderDecoderModel
from qkv.models.formats.files import Files
from qkv.models.hearing.sound import read_wav
from qkv.models.hearing.spectrogram import HOP, RATE, log_mel, padded
from qkv.models.hearing.transcribe import transcribe
from qkv.models.named import find
from qkv.models.text.marian_tokenizer import MarianTokenizer
from qkv.models.text.tokenizer import Tokenizer
from qkv.models.vit import Vit
from qkv.models.whisper import Whisper
from qkv.models.writing.generate import write
from qkv.models.writing.options import Sampling

NEW_WORD = "Ġ▁"
"""How vocabularies mark a token that begins a word."""


@dataclass(frozen=True)
class Rows:
    """The rows of one side of a model.

    Attributes:
        names: of all rows, those around the input included.
        own: which of them are the input's own.
    """

    names: tuple[str, ...]
    own: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Input:
    """What a model has read.

    Attributes:
        model: the model.
        given: what its `forward` takes.
        rows: the rows of each tower, "encoder" and "decoder".
    """

    model: nn.Module
    given: tuple[Tensor, ...]
    rows: dict[str, Rows]


def read(source: str, model: str, tokens: str | None = None, output: str | None = None) -> Input:
    """Let a model read a text, or the file of a sound or a picture.

    Args:
        source: the text; for Whisper the path of a wav file, for ViT that of a picture.
        model: its name or path.
        tokens: "A:B" reads only these tokens of a text.
        output: what a model of two towers has written; what it writes itself by default.

    Raises:
        ArgumentError: an empty text, one that is too long, or an option without effect.
        ModelError, FileError, MissingPackageError: the model or the file cannot be read.
    """
    loaded = load(model)
    if isinstance(loaded, Whisper | Vit) and tokens is not None:
        raise ArgumentError(f"tokens is {tokens!r}, which cuts a text; this model reads none")
    if isinstance(loaded, EncoderDecoderModel):
        if isinstance(loaded, Whisper):
            return _sound(loaded, source, output)
        return _translation(loaded, source, model, tokens, output)
    if not hasattr(loaded, "towers"):
        kind = type(loaded).__name__
        raise ArgumentError(f"{model} is a {kind}: it has no layers of attention to look into")
    if output is not None:
        raise ArgumentError(f"output is {output[:40]!r}, but this model has no second text")
    if isinstance(loaded, Vit):
        return _picture(loaded, source, find(model))
    rows, ids = _text(loaded, source, tokens)
    tower = next(iter(loaded.towers))
    return Input(loaded, (torch.tensor([ids]),), {tower: rows})


def _text(model: Any, text: str, tokens: str | None) -> tuple[Rows, list[int]]:
    tokenizer: Tokenizer = model.tokenizer
    found = tokenizer(text)
    own = [i for i, special in enumerate(found.special) if not special]
    taken = {own[i] for i in window(len(own), tokens)}
    kept = [i for i, special in enumerate(found.special) if special or i in taken]
    ids = [found.ids[i] for i in kept]
    most = model.config.max_position_embeddings if isinstance(model, Bert) else model.most
    if most is not None and len(ids) > most:
        raise ArgumentError(
            f"the text has {len(ids)} tokens, the model takes 1 to {most}: choose fewer tokens "
            f"(in the command: --tokens 0:{max(1, most // 2)})"
        )
    places = tuple(place for place, i in enumerate(kept) if i in taken)
    return Rows(tuple(name_of(tokenizer, number) for number in ids), places), ids


def _translation(model: Any, text: str, name: str, tokens: str | None, output: str | None) -> Input:
    rows, ids = _text(model, text, tokens)
    source, speller = torch.tensor([ids]), model.tokenizer
    if output is None:
        (written,) = write(model, [()], Sampling(), model.read(source))
        numbers: Sequence[int] = written.ids
    else:
        folder = find(name)
        if (folder / "target.spm").exists():
            speller = MarianTokenizer.read(folder, "target.spm")
        numbers = speller(output, around=False).ids
    target, ids = _target(model, model.rules.starts, numbers)
    return Input(model, (source, torch.tensor([ids])), {"encoder": rows, "decoder": target})


def _target(
    model: EncoderDecoderModel, before: Sequence[int], numbers: Sequence[int]
) -> tuple[Rows, list[int]]:
    """What the decoder reads: what begins a text, and what it wrote, without its end."""
    ids = [*before, *(number for number in numbers if number not in model.rules.ends)]
    ids = ids[: model.most]  # the last token that was written was never read
    names = tuple(name_of(model.tokenizer, number) for number in ids)
    return Rows(names, tuple(range(len(before), len(ids)))), ids


def _sound(model: Whisper, path: str, output: str | None) -> Input:
    sound = read_wav(path)
    samples = sound.at(RATE).samples.float()
    mel = log_mel(padded(samples, model.frames), model.config.num_mel_bins)
    most = int(model.config.max_source_positions)
    own = range(min(most, ceil(len(samples) / (2 * HOP))))
    rows = Rows(tuple(f"{2 * HOP * i / RATE:.2f} s" for i in range(most)), tuple(own))
    few = Sampling(max_tokens=1 if output is not None else max(1, (model.most or 2) // 2))
    heard = transcribe(model, sound, sampling=few)
    numbers: Sequence[int] = [number for segment in heard.segments for number in segment.ids]
    if output is not None:
        numbers = model.tokenizer(f" {output.strip()}", around=False).ids
    target, ids = _target(model, model.marks.prompt(heard.language), numbers)
    given = mel[None].to(model.words.weight.dtype), torch.tensor([ids])
    return Input(model, given, {"encoder": rows, "decoder": target})


def _picture(model: Vit, path: str, folder: Path) -> Input:
    """Bring a picture to the size and the range that the model was trained on."""
    mean, spread = _range(folder)
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError as error:
        raise MissingPackageError("pictures are read by Pillow: pip install pillow") from error
    size, patches = model.config.image_size, model.config.side
    try:
        with Image.open(path) as picture:
            small = picture.convert("RGB").resize((size, size), Image.Resampling.BILINEAR)
            levels = torch.frombuffer(bytearray(small.tobytes()), dtype=torch.uint8)
    except (OSError, UnidentifiedImageError, Image.DecompressionBombError) as error:
        raise FileError(f"{path} cannot be read as a picture: {error}") from error
    pixels = (levels.view(size, size, 3).float() / 255 - mean) / spread
    places = [
        f"patch {row + 1},{column + 1}" for row in range(patches) for column in range(patches)
    ]
    rows = Rows(("[class]", *places), tuple(range(1, len(places) + 1)))
    return Input(model, (pixels.permute(2, 0, 1)[None],), {"encoder": rows})


def _range(folder: Path) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of each colour, as preprocessor_config.json has them, or 0.5."""
    said = Files(folder).json("preprocessor_config.json") or {}
    found = []
    for name in ("image_mean", "image_std"):
        three = said.get(name, [0.5] * 3)
        if not isinstance(three, list) or len(three) != 3 or not all(
            type(x) in (int, float) and isfinite(x) and (x > 0 or name == "image_mean")
            for x in three
        ):  # fmt: skip
            raise ModelError(f"{name} is {three!r} in {folder}; wanted a number for each colour")
        found.append(torch.tensor(three, dtype=torch.float32))
    return found[0], found[1]


def name_of(tokenizer: Tokenizer, number: int) -> str:
    """Name a token as its vocabulary does, without marks of bytes and of the beginning of words."""
    try:
        piece = tokenizer.piece(number)
    except ArgumentError:  # a row that only fills up the model's table
        return f"#{number}"
    if piece[:1] not in NEW_WORD and piece.isascii():
        return piece
    text = tokenizer.decode([number], special=True).strip()
    return piece if not text or "�" in text else text
