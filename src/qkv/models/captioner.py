"""A captioner: an encoder over the places of a small picture, a decoder that says what is there."""

from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike
from typing import Any

import torch
from jaxtyping import Float, Int, Num
from torch import Tensor

from qkv.errors import ArgumentError, ModelError, ShapeError
from qkv.models.encoder_decoder import EncoderDecoderModel, towers
from qkv.models.family import Family
from qkv.models.formats.files import Files
from qkv.models.language import WritingRules
from qkv.models.marian import TOWERS
from qkv.models.seeing import PLACE, Pictures, Seeing, inked, side_by_side
from qkv.models.writing.generate import write
from qkv.models.writing.options import Sampling
from qkv.models.writing.written import Written
from qkv.nn.embedding import PositionalEncoding, WordEmbedding
from qkv.weights.looks import Looks


@dataclass(frozen=True)
class CaptionerConfig:
    """The sizes, by their names in config.json.

    Attributes:
        image_size: pixels along one side of a picture.
        dropout: in training.
    """

    vocab_size: int
    image_size: int
    d_model: int
    encoder_layers: int
    encoder_attention_heads: int
    encoder_ffn_dim: int
    decoder_layers: int
    decoder_attention_heads: int
    decoder_ffn_dim: int
    max_position_embeddings: int
    decoder_start_token_id: int
    eos_token_id: int
    pad_token_id: int
    dropout: float = 0.0

    @property
    def rules(self) -> WritingRules:
        """Which tokens begin and end a caption; ModelError for one that there is not."""
        start, end, pad = self.decoder_start_token_id, self.eos_token_id, self.pad_token_id
        if max(start, end, pad) >= self.vocab_size:
            raise ModelError(f"tokens {start}, {end} and {pad} begin, end and fill a caption; "
                             f"wanted ones below vocab_size={self.vocab_size}")  # fmt: skip
        return WritingRules((start,), frozenset({end}), pad, never=frozenset({start, pad}))


class Captioner(EncoderDecoderModel):
    """A picture in, a sentence about it out.

    Args:
        config: the sizes.
        files: where the model's tokenizer is; without it the model takes ids only.
    """

    from_source = "model.caption(pictures)"

    def __init__(self, config: CaptionerConfig, files: Files | None = None) -> None:
        """Draw the weights: pre-norm, GELU."""
        n, most = config.d_model, config.max_position_embeddings
        encoder, decoder = towers(config, norm_first=True, dropout=config.dropout)
        tokenizer = None if files is None else files.tokenizer()
        super().__init__(
            config, encoder, decoder, WordEmbedding(config.vocab_size, n, scaled=True),
            PositionalEncoding(n, most), most=most, rules=config.rules, tokenizer=tokenizer,
        )  # fmt: skip
        self.seeing = Seeing(n, config.image_size)

    def embed_source(
        self, source: Num[Tensor, "batch height width"]
    ) -> Float[Tensor, "batch places n_embed"]:
        """Return one row for 4 × 4 pixels.

        Raises:
            ShapeError: pictures of another size than the model's.
        """
        size = self.config.image_size
        if source.dim() != 3 or tuple(source.shape[1:]) != (size, size):
            raise ShapeError(f"pictures are {tuple(source.shape)}; wanted (batch, {size}, {size})")
        x: Tensor = self.seeing(inked(source, self.words.weight.dtype))
        return x

    def caption(
        self, pictures: Pictures | str | PathLike[str], *, batch_size: int = 64, **options: Any
    ) -> list[Written]:
        """Say what is to be seen in pictures, each by itself.

        Args:
            pictures: (height, width) or (pictures, height, width), ink on nothing: uint8 from 0
                to 255 or numbers from 0 to 1; or the path of a .npy file that holds them.
            batch_size: pictures that are read and written together.
            options: how to choose, and when to end: `qkv.models.writing.options.Sampling`.

        Raises:
            ArgumentError: no pictures, numbers out of their range, or options that do not fit.
            ShapeError: pictures of another size than the model's.
            FileError: a file that cannot be read.
        """
        seen = side_by_side(pictures, self.config.image_size, self.device)
        if batch_size < 1:
            raise ArgumentError(f"batch_size is {batch_size}; wanted 1 or more")
        sampling = Sampling.of(options)
        return [one for batch in seen.split(batch_size) for one in self._captioned(batch, sampling)]

    def looks(
        self,
        picture: Pictures | str | PathLike[str],
        caption: str | None = None,
        *,
        layer: int | None = None,
        head: int | None = None,
    ) -> Looks:
        """Return where each word of a caption looked while it was written.

        The weights are those of the cross-attention as it ran, of the query that wrote the word.
        They lie over places of the picture whose rows the encoder has mixed with others: they say
        where the word was found, not that nothing else had a part in it.

        Args:
            picture: one, as `caption` takes it.
            caption: what to look for; by default what the model writes.
            layer: of the decoder, counted from 1; the last by default.
            head: of that layer, counted from 1; by default the mean over all of them.

        Raises:
            ArgumentError, ShapeError, FileError: as `caption`; or no such layer or head, or
                several pictures.
            ModelError: the model has no tokenizer.
        """
        seen = side_by_side(picture, self.config.image_size, self.device)
        if len(seen) != 1:
            raise ArgumentError(f"there are {len(seen)} pictures; wanted one, to look at")
        if caption is None:
            (written,) = self._captioned(seen, Sampling())
            caption = written.text
            ids = [number for number in written.ids if number not in self.rules.ends]
        else:
            ids = list(self.tokenizer(caption, around=False).ids)
        weights = self.looking(seen, torch.tensor([ids], device=self.device).long(), layer)[0]
        if head is not None and not 1 <= head <= len(weights):
            raise ArgumentError(f"head is {head}; there are heads 1 to {len(weights)}")
        maps = weights.mean(dim=0) if head is None else weights[head - 1]
        ink = inked(seen[0], torch.float64).cpu().numpy()
        words = tuple(self.tokenizer.piece(number) for number in ids)
        return Looks(ink, caption, words, maps.double().cpu().numpy())

    @torch.no_grad()
    def looking(
        self,
        pictures: Num[Tensor, "batch height width"],
        ids: Int[Tensor, "batch words"],
        layer: int | None = None,
    ) -> Float[Tensor, "batch heads words rows columns"]:
        """Return the weights of a layer's cross-attention over the picture, word by word.

        Args:
            pictures: what `embed_source` takes.
            ids: the captions, without the token that begins them; row i is the query that wrote
                word i.
            layer: of the decoder, counted from 1; the last by default.

        Raises:
            ArgumentError: there is no such layer, or too many words.
        """
        from qkv.recording.watching import watch  # whoever only loads a model does without it

        layer = self.num_layers if layer is None else layer
        if not 1 <= layer <= self.num_layers:
            raise ArgumentError(f"layer is {layer}; there are layers 1 to {self.num_layers}")
        starts = torch.tensor(self.rules.starts, device=ids.device).expand(len(ids), -1)
        side = self.config.image_size // PLACE
        if not ids.shape[1]:  # an empty caption looked nowhere
            heads = self.layers[layer - 1].attention.num_heads
            return self.words.weight.new_zeros(len(ids), heads, 0, side, side)
        path = f"decoder.layers.{layer - 1}.cross"
        with watch(self, only=path) as seen:
            self(pictures, torch.cat((starts, ids), dim=1)[:, :-1])
        weights = seen[path].weights
        maps: Tensor = weights.dense(weights.shape.numel()).unflatten(-1, (side, side))
        return maps

    @torch.inference_mode()
    def _captioned(self, pictures: Tensor, sampling: Sampling) -> list[Written]:
        prompts: Sequence[Sequence[int]] = [()] * len(pictures)
        return write(self, prompts, sampling, self.read(pictures))


CAPTIONER = Family(
    name="qkv_captioner",
    config=CaptionerConfig,
    assumes={},
    build=Captioner,
    tensors={
        "model.encoder.conv1": "seeing.conv1",
        "model.encoder.conv2": "seeing.conv2",
        "model.encoder.conv3": "seeing.conv3",
        "model.encoder.embed_norm": "seeing.norm",
        "model.encoder.layer_norm": "encoder.norm",
        "model.decoder.embed_tokens": "words",
        "model.decoder.layer_norm": "decoder.norm",
        **TOWERS,
    },
    spelling={},
    unused=(),
)
