"""Caption: small pictures of digits, and the sentence that says which stands where.

The pictures to train on never repeat; those that are held out show digits that no picture to
train on has shown.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import tokenizers
import torch
from jaxtyping import Int, UInt8
from tokenizers import decoders, pre_tokenizers
from tokenizers.models import WordLevel
from torch import Tensor, nn

from qkv.disk import write_whole
from qkv.errors import ArgumentError
from qkv.models.captioner import CAPTIONER, Captioner, CaptionerConfig
from qkv.models.formats.files import Unwritten
from qkv.models.saving import save_folder
from qkv.models.seeing import PLACE
from qkv.models.text.tokenizer import Tokenizer
from qkv.nn.attending import positive
from qkv.show.looks import svg
from qkv.train.data.pictures import (
    ARTICLES,
    DIGIT,
    RELATIONS,
    SIDE,
    WORDS,
    DigitPictures,
    Pictured,
)
from qkv.train.order import Examples, Order
from qkv.train.settings import Settings
from qkv.train.targets import IGNORED, before, nats
from qkv.train.task import Task, Tensors

SHOWN = 8
"""Pictures in samples and in the drawing."""

PAD, START, END, UNKNOWN = "<pad>", "<start>", "<end>", "<unk>"

LONGEST = 13
"""Tokens of the longest caption, and the one that begins it."""


@dataclass(frozen=True)
class Captions(Tensors):
    """Pictures and their captions side by side.

    Attributes:
        pictures: from 0 to 255.
        ids: the token that begins captions, then the caption.
        wanted: what is to follow each of them; `IGNORED` after the end.
    """

    pictures: UInt8[Tensor, "batch height width"]
    ids: Int[Tensor, "batch tokens"]
    wanted: Int[Tensor, "batch tokens"]

    @property
    def targets(self) -> int:
        """Tokens that are predicted."""
        return int((self.wanted != IGNORED).sum())


class Endless(Order):
    """Numbers that have never been before.

    Args:
        batch: of them a step.
        seed: of what they are.
    """

    STEPS = 1000
    """Of an epoch; there is no other difference between two."""

    def __init__(self, batch: int, seed: int) -> None:
        """Remember the sizes."""
        self._batch, self._seed = batch, seed

    def epoch(self, number: int) -> list[Examples]:
        """Return the batches of one epoch."""
        random = np.random.default_rng((self._seed, number))
        return list(random.integers(2**62, size=(self.STEPS, self._batch)))


class Caption(Task[Captions]):
    """Write what is to be seen: "a three left of a seven".

    Args:
        pictures: made of known and of held-out digits.
        sizes: of the model.
        held_out: pictures that a model is tried on.
    """

    name = "caption"
    judged_by = "exact"
    usual: ClassVar[Settings] = Settings(
        steps=5000, batch=64, learning_rate=1.5e-3, final_share=0.02, weight_decay=0.05,
        measure_every=500, save_every=500,
    )  # fmt: skip

    def __init__(self, pictures: DigitPictures, sizes: CaptionerConfig, held_out: int) -> None:
        """Make the held-out pictures."""
        self.pictures, self.sizes, self.tokenizer = pictures, sizes, tokenizer()
        self.held_out = [pictures.held_out(number) for number in range(held_out)]

    @classmethod
    def open(
        cls,
        data: Sequence[str] = (),
        *,
        seed: int = 0,
        width: int = 64,
        layers: int = 1,
        heads: int = 4,
        dropout: float = 0.0,
        held_out: int = 1000,
    ) -> "Caption":
        """Read the digits.

        Args:
            data: nothing; the pictures are made.
            seed: which digits are held out, and what the pictures are.
            width: values a token.
            layers: of the encoder, and of the decoder.
            heads: of every attention.
            dropout: in training.
            held_out: pictures that a model is tried on.

        Raises:
            ArgumentError: there is data, or sizes that make no model, or no held-out picture.
            MissingPackageError: scikit-learn, which holds the digits, is not installed.
        """
        if data:
            raise ArgumentError(
                f"data is {', '.join(data)}, but caption takes none: its pictures are made of "
                f"scikit-learn's digits, and their captions with them; leave --data out"
            )
        positive("held_out", held_out)
        if positive("width", width) % 4 or width % positive("heads", heads):
            raise ArgumentError(
                f"width is {width} and heads is {heads}; wanted a multiple of 4, and of heads"
            )
        positive("layers", layers)
        words = tokenizer()
        sizes = CaptionerConfig(
            words.size, SIDE, width, layers, heads, 4 * width, layers, heads, 4 * width,
            max_position_embeddings=LONGEST, decoder_start_token_id=words.special[START],
            eos_token_id=words.special[END], pad_token_id=words.special[PAD], dropout=dropout,
        )  # fmt: skip
        return cls(DigitPictures.open(seed), sizes, held_out)

    def describe(self) -> Mapping[str, Any]:
        """Return the sizes and what the held-out pictures are."""
        digest = sha256()
        for one in self.held_out:
            digest.update(one.picture.tobytes() + one.caption.encode())
        return {
            **asdict(self.sizes), "digits": len(self.pictures.known),
            "data_seed": self.pictures.seed, "held_out": len(self.held_out),
            "sha256": digest.hexdigest(),
        }  # fmt: skip

    def model(self) -> Captioner:
        """Return a new captioner."""
        return Captioner(self.sizes, Unwritten(self.tokenizer))

    def order(self, batch: int, seed: int) -> Order:
        """Return pictures that have never been before; `batch` counts them."""
        return Endless(batch, seed)

    def batch(self, examples: Examples) -> Captions:
        """Make the pictures of some numbers."""
        return side_by_side([self.pictures.training(int(n)) for n in examples], self.tokenizer)

    def loss(self, model: nn.Module, batch: Captions, label_smoothing: float) -> Tensor:
        """−Σ log p(word | the words before it, picture)"""
        return nats(model(batch.pictures, batch.ids), batch.wanted, label_smoothing)

    def measure(self, model: nn.Module) -> Mapping[str, float]:
        """Return the share of captions that are right to the last word, and more.

        Returns:
            exact: captions that are exactly right.
            words: tokens that are right where those before them are.
            looked: of the attention of each digit's word, the share that is on that digit, in the
                last layer; of a map that is alike everywhere it is about 0.15.
        """
        captioner = _captioner(model)
        written = captioner.caption(np.stack([one.picture for one in self.held_out]))
        exact = [said.text == one.caption for said, one in zip(written, self.held_out, strict=True)]
        looked = list(self._looked(captioner))
        return {
            "exact": sum(exact) / len(exact), "words": self._words(captioner),
            "looked": sum(looked) / len(looked),
        }  # fmt: skip

    def samples(self, model: nn.Module) -> list[str]:
        """Return captions of held-out pictures, and the right ones where they are not."""
        shown = self.held_out[:SHOWN]
        written = _captioner(model).caption(np.stack([one.picture for one in shown]))
        return [
            said.text if said.text == one.caption else f"{said.text} (wrong: it is {one.caption})"
            for said, one in zip(written, shown, strict=True)
        ]

    def save(self, model: nn.Module, folder: Path) -> None:
        """Write a folder that `qkv.load` reads."""
        save_folder(model, CAPTIONER, folder, tokenizer=self.tokenizer)

    def plot(self, model: nn.Module, path: Path) -> None:
        """Draw held-out pictures and where each word of their captions looked, as SVG.

        Raises:
            FileError: the file cannot be written.
        """
        captioner = _captioner(model)
        shown = [
            replace(captioner.looks(one.picture), truth=one.caption)
            for one in self.held_out[:SHOWN]
        ]
        says = "Weights of cross-attention, the mean over the heads of the decoder's last layer"
        write_whole(path, svg(shown, says).encode())

    def _parts(
        self, device: torch.device, size: int = 64
    ) -> Iterator[tuple[list[Pictured], Captions]]:
        for i in range(0, len(self.held_out), size):
            part = self.held_out[i : i + size]
            yield part, side_by_side(part, self.tokenizer).to(device)

    def _words(self, model: Captioner) -> float:
        """Return the share of tokens that are right where those before them are."""
        right = total = 0
        for _, batch in self._parts(model.device):
            right += int((model(batch.pictures, batch.ids).argmax(-1) == batch.wanted).sum())
            total += batch.targets
        return right / total

    def _looked(self, model: Captioner) -> Iterator[float]:
        """Go through the words of digits: how much of their attention was on their digit."""
        names = set(self.tokenizer(" ".join(WORDS), around=False).ids)
        for part, batch in self._parts(model.device):
            maps = model.looking(batch.pictures, batch.ids[:, 1:]).mean(dim=1)
            for one, ids, looks in zip(part, batch.ids[:, 1:].tolist(), maps, strict=True):
                places = [i for i, number in enumerate(ids) if number in names]
                for i, digit in zip(places, one.digits, strict=True):
                    yield float(looks[i][touched(digit.top), touched(digit.left)].sum())


def tokenizer() -> Tokenizer:
    """Return what cuts captions into words."""
    used = " ".join((*ARTICLES, *WORDS, *RELATIONS.values())).replace("{}", "").replace(",", " , ")
    special = (PAD, START, END, UNKNOWN)
    vocabulary = {word: i for i, word in enumerate((*special, *dict.fromkeys(used.split())))}
    rules = tokenizers.Tokenizer(WordLevel(vocabulary, unk_token=UNKNOWN))
    rules.pre_tokenizer = pre_tokenizers.Whitespace()
    rules.decoder = decoders.WordPiece()  # which writes no space before a comma
    rules.add_special_tokens(list(special))
    return Tokenizer(rules)


def side_by_side(examples: Sequence[Pictured], words: Tokenizer) -> Captions:
    """Return pictures and captions as a batch; `words` cuts the captions."""
    rows = [words(one.caption, around=False).ids for one in examples]
    width = 1 + max(map(len, rows))
    wanted = torch.full((len(rows), width), IGNORED)
    for i, row in enumerate(rows):
        wanted[i, : len(row) + 1] = torch.tensor([*row, words.special[END]])
    pictures = torch.from_numpy(np.stack([one.picture for one in examples]))
    return Captions(pictures, before(wanted, words.special[START], words.special[PAD]), wanted)


def touched(start: int) -> slice:
    """Return the rows (or columns) of a map that a digit touches, whose first pixel this is."""
    return slice(start // PLACE, (start + DIGIT - 1) // PLACE + 1)


def _captioner(model: nn.Module) -> Captioner:
    if not isinstance(model, Captioner):
        raise ArgumentError(f"model is a {type(model).__name__}; wanted a Captioner")
    return model
