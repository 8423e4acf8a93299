"""Whisper (Radford et al. 2022): sound in, text out, through cross-attention."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from qkv.errors import ArgumentError, ModelError
from qkv.models.encoder_decoder import EncoderDecoderModel, towers
from qkv.models.family import Family
from qkv.models.formats.files import Files
from qkv.models.hearing.sound import Sound, read_wav
from qkv.models.language import WritingRules
from qkv.models.marian import TOWERS
from qkv.nn.embedding import PositionalEncoding, WordEmbedding

if TYPE_CHECKING:
    from qkv.models.hearing.transcribe import Transcript

Head = tuple[int, int]
"""A layer of the decoder and one of its cross-attention's heads, both counted from 0."""


@dataclass(frozen=True)
class WhisperConfig:
    """The sizes, by their names in config.json."""

    vocab_size: int
    num_mel_bins: int
    d_model: int
    encoder_layers: int
    encoder_attention_heads: int
    encoder_ffn_dim: int
    decoder_layers: int
    decoder_attention_heads: int
    decoder_ffn_dim: int
    max_source_positions: int
    max_target_positions: int
    decoder_start_token_id: int | None = None
    pad_token_id: int | None = None
    eos_token_id: int | Sequence[int] | None = None
    suppress_tokens: Sequence[int] | None = None
    begin_suppress_tokens: Sequence[int] | None = None


@dataclass(frozen=True)
class Marks:
    """What stands before a transcript, and which heads follow the sound while it is written.

    Attributes:
        start: the token that begins it.
        languages: the token of each language, "en" and so on; none in a model of one language.
        transcribe: the token that asks for the words as they are said, not for a translation.
        no_timestamps: the token after which no times are written.
        following: the heads that a file lists; () where it lists none.
    """

    start: int | None = None
    languages: Mapping[str, int] = field(default_factory=dict)
    transcribe: int | None = None
    no_timestamps: int | None = None
    following: tuple[Head, ...] = ()

    @classmethod
    def of(cls, config: WhisperConfig, files: Files) -> "Marks":
        """Read them from generation_config.json.

        Raises:
            ModelError: a token that is none, or a head that the model has not.
        """
        path = files.path / "generation_config.json"
        said = files.json(path.name) or {}
        for name, kind in {"lang_to_id": dict, "task_to_id": dict, "alignment_heads": list}.items():
            if not isinstance(said.get(name) or kind(), kind):
                wanted = "an object" if kind is dict else "a list"
                raise ModelError(f"{path}: {name} is {said[name]!r}; wanted {wanted}")
        several = bool(said.get("is_multilingual"))
        named = {
            "start": said.get("decoder_start_token_id", config.decoder_start_token_id),
            "no_timestamps": said.get("no_timestamps_token_id"),
            "transcribe": (said.get("task_to_id") or {}).get("transcribe") if several else None,
        }
        spoken = said.get("lang_to_id") or {} if several else {}
        for token in (*named.values(), *spoken.values()):
            if token is not None and not (type(token) is int and 0 <= token < config.vocab_size):
                raise ModelError(
                    f"{path} names the token {token!r}; wanted one below {config.vocab_size}"
                )
        heads = (_head(head, config, path) for head in said.get("alignment_heads") or ())
        languages = {name.strip("<|>"): number for name, number in spoken.items()}
        return cls(**named, languages=languages, following=tuple(heads))

    def prompt(self, language: str | None = None) -> tuple[int, ...]:
        """Return what stands before a transcript.

        Args:
            language: of what is said, as "en"; left out where the model knows one only.

        Raises:
            ArgumentError: a language that the model does not know.
        """
        spoken = None
        if language is not None:
            spoken = self.languages.get(language)
            if spoken is None:
                known = ", ".join(self.languages) or "one language only, leave it out"
                raise ArgumentError(f"language is {language!r}; the model knows {known}")
        task = self.transcribe if spoken is not None else None
        tokens = (self.start, spoken, task, self.no_timestamps)
        return tuple(token for token in tokens if token is not None)


def _head(head: object, config: WhisperConfig, path: Path) -> Head:
    layers, heads = config.decoder_layers, config.decoder_attention_heads
    if isinstance(head, list) and len(head) == 2 and all(type(n) is int for n in head):
        layer, number = head
        if 0 <= layer < layers and 0 <= number < heads:
            return layer, number
    raise ModelError(f"{path} lists the head {head!r}; there are {layers} × {heads}")


class Listening(nn.Module):
    """gelu(conv₂(gelu(conv₁(mel)))) + positions: one row for 20 ms  Radford et al. 2022, sec. 2.2

    Args:
        mels: bands of the spectrogram.
        n_embed: values a row.
        most: rows that there are positions for; each is made of two frames.
    """

    def __init__(self, mels: int, n_embed: int, most: int) -> None:
        """Draw the weights."""
        super().__init__()
        self.conv1 = nn.Conv1d(mels, n_embed, kernel_size=3, padding=1)
        self.conv2 = nn.Conv1d(n_embed, n_embed, kernel_size=3, stride=2, padding=1)
        self.positions = PositionalEncoding(n_embed, most, learned=True)

    def forward(
        self, mel: Float[Tensor, "batch mels frames"]
    ) -> Float[Tensor, "batch keys n_embed"]:
        """Return one row for every two frames."""
        x = F.gelu(self.conv2(F.gelu(self.conv1(mel))))
        rows: Tensor = self.positions(x.mT)
        return rows


class Whisper(EncoderDecoderModel):
    """Sound in, text out.

    Args:
        config: the sizes.
        files: what the model's folder holds beside its weights.
    """

    from_source = "model.transcribe(sound)"

    def __init__(self, config: WhisperConfig, files: Files | None = None) -> None:
        """Draw the weights: pre-norm, GELU, keys without a bias."""
        n, most = config.d_model, config.max_target_positions
        encoder, decoder = towers(config, norm_first=True, bias=("WQ", "WV", "WO"))
        self.marks = Marks(config.decoder_start_token_id)
        rules = None
        if files is not None:
            self.marks = Marks.of(config, files)
            rules = _rules(config, files, self.marks)
        super().__init__(
            config, encoder, decoder, WordEmbedding(config.vocab_size, n),
            PositionalEncoding(n, most, learned=True), most=most, rules=rules,
            tokenizer=None if files is None else files.tokenizer(),
        )  # fmt: skip
        self.listening = Listening(config.num_mel_bins, n, config.max_source_positions)

    @property
    def frames(self) -> int:
        """Frames of the windows that the model hears at once: two for each of its positions."""
        return 2 * int(self.config.max_source_positions)

    def embed_source(
        self, source: Float[Tensor, "batch mels frames"]
    ) -> Float[Tensor, "batch keys n_embed"]:
        """Return one row for every two frames of a log-mel spectrogram.

        Raises:
            ArgumentError: other bands than the model has, no frames, or too many.
        """
        mels, most = self.config.num_mel_bins, self.frames
        if source.dim() != 3 or source.shape[1] != mels or not 1 <= source.shape[2] <= most:
            raise ArgumentError(
                f"source is {tuple(source.shape)}; wanted (batch, mels={mels}, frames=1 to {most})"
            )
        x: Tensor = self.listening(source)
        return x

    def transcribe(self, sound: Sound | str | PathLike[str], **options: Any) -> "Transcript":
        """Write down what is said in a recording, or in a .wav file.

        The options and errors are those of `qkv.models.hearing.transcribe.transcribe`; and a
        FileError where the file cannot be read.
        """
        from qkv.models.hearing.transcribe import transcribe  # it asks for this class

        return transcribe(self, sound if isinstance(sound, Sound) else read_wav(sound), **options)


def _rules(config: WhisperConfig, files: Files, marks: Marks) -> WritingRules:
    """Return the rules of writing: the prompt at first, and no times, which are not asked for."""
    rules = WritingRules.of(config, files)
    times: frozenset[int] = frozenset()
    if marks.no_timestamps is not None:
        times = frozenset(range(marks.no_timestamps + 1, config.vocab_size))
    return replace(rules, starts=marks.prompt(), never=rules.never | times)


WHISPER = Family(
    name="whisper",
    config=WhisperConfig,
    assumes={
        "activation_function": "gelu",
        "scale_embedding": False,
        "tie_word_embeddings": True,
    },
    build=Whisper,
    tensors={
        "model.encoder.conv1": "listening.conv1",
        "model.encoder.conv2": "listening.conv2",
        "model.encoder.embed_positions": "listening.positions",
        "model.encoder.layer_norm": "encoder.norm",
        "model.decoder.embed_tokens": "words",
        "model.decoder.embed_positions": "positions",
        "model.decoder.layer_norm": "decoder.norm",
        **TOWERS,
    },
    spelling={},
    unused=("proj_out.weight",),  # the table of words once more
)
