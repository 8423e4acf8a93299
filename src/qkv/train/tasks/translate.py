"""Translate: English to Spanish, by a transformer or by what came before it.

    transformer     Vaswani et al. 2017
    single          an encoder's last state is all that the decoder gets (Cho et al. 2014)
    additive        attention as in Montreal (Bahdanau et al. 2015)
    dot             attention as in Stanford (Luong et al. 2015)

All read and write the same tokens and are measured on the same sentences.
"""

from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor, nn

from qkv.errors import ArgumentError
from qkv.models.saving import save_folder
from qkv.train.order import Examples, OfLikeLength, Order
from qkv.train.packed import Packed
from qkv.train.settings import Settings
from qkv.train.targets import IGNORED, before, nats
from qkv.train.task import Task, Tensors
from qkv.train.translation.corpus import Corpus
from qkv.train.translation.measures import check_package, measured
from qkv.train.translation.spelling import END, PAD, plain, spelling
from qkv.train.translation.systems import SYSTEMS, Sizes

AT_ONCE = 128
"""Sentences that are translated at once in a measure."""

SHOWN, LETTERS = 4, 100
"""Sentences that are shown, and letters of each."""


@dataclass(frozen=True)
class PairBatch(Tensors):
    """Sentences and their translations in tokens, padded on the right.

    Attributes:
        source: what is read.
        source_lengths: how much of each row is no padding.
        ids: what stands before each token that is to be written.
        wanted: these tokens; padding is -100.
        targets: how many of them there are.
    """

    source: Int[Tensor, "batch keys"]
    source_lengths: Int[Tensor, "batch"]
    ids: Int[Tensor, "batch tokens"]
    wanted: Int[Tensor, "batch tokens"]
    targets: int


class Translate(Task[PairBatch]):
    """Sentences and their translations; a batch is so many tokens, padding counted.

    Args:
        pairs: what there is to learn.
        system: transformer, single, additive or dot.
        sizes: of the model.

    Raises:
        ArgumentError: there is no such system, or a set of which nothing could be measured: all
            that is held out of it is too long, or has no token.
    """

    name = "translate"
    judged_by = "chrf"
    usual: ClassVar[Settings] = Settings(
        steps=3000, batch=2048, learning_rate=3e-3, warmup=300, label_smoothing=0.05,
        measure_every=500, save_every=500,
    )  # fmt: skip

    def __init__(
        self, pairs: Corpus, system: str = "transformer", sizes: Sizes | None = None
    ) -> None:
        """Make a vocabulary of the sentences that train, and cut them into its tokens."""
        _check(system)
        self.pairs, self.system = pairs, SYSTEMS[system]
        self.sizes = Sizes() if sizes is None else sizes
        texts = (text for pair in pairs.training() for text in pair)
        self.tokenizer = spelling(texts, self.sizes.vocabulary)
        self._left_out = 0
        self._tokens = Packed.of(self._sides(), self.tokenizer.size)
        self.held_out = [pair for pair in pairs.held_out if self._cut(*pair[:2])]
        self._left_out += len(pairs.held_out) - len(self.held_out)
        self._check_held_out()
        self.wanted = [plain(pair.target) for pair in self.held_out]

    @classmethod
    def open(
        cls,
        data: Sequence[str] = (),
        *,
        seed: int = 0,
        system: str = "transformer",
        sizes: Sizes | None = None,
        limit: int | None = None,
    ) -> "Translate":
        """Read sentence pairs.

        Args:
            data: "phrasebook", "clauses", "verses", or files of two columns; the phrase book by
                default.
            seed: of what is held out.
            system: transformer, single, additive or dot.
            sizes: of the model.
            limit: pairs that are taken of each set, about; all by default.

        Raises:
            ArgumentError: no such system, a set twice, or one of fewer than two pairs, or of none
                that could be measured.
            FileError: a file that cannot be read, holds nothing, or has bad lines; names them all.
            MissingPackageError: what measures translations is not installed.
        """
        _check(system)
        return cls(Corpus.open(data, seed=seed, limit=limit), system, sizes)

    def by(self, system: str) -> "Translate":
        """Return the same task for another system: the same pairs, tokens and sizes.

        Raises:
            ArgumentError: there is no such system.
        """
        _check(system)
        other = copy(self)
        other.system = SYSTEMS[system]
        return other

    def describe(self) -> Mapping[str, Any]:
        """Return the system, its sizes, and what the pairs are; `left_out` are those too long."""
        about = {"system": self.system.name, **self.system.describe(self.sizes)}
        about |= {"vocabulary": self.tokenizer.size, "training": len(self._tokens) // 2}
        about |= {"left_out": self._left_out}
        return about | {"data": dict(self.pairs.describe())}

    def model(self) -> nn.Module:
        """Return a new model."""
        return self.system.model(self.sizes, self.tokenizer)

    def order(self, batch: int, seed: int) -> Order:
        """Return the order of the pairs, those of like length together."""
        lengths = self._tokens.lengths
        return OfLikeLength(np.maximum(lengths[0::2], lengths[1::2]), batch, seed)

    def batch(self, examples: Examples) -> PairBatch:
        """Return pairs side by side."""
        source = torch.from_numpy(self._tokens.padded(2 * examples, PAD))
        wanted = torch.from_numpy(self._tokens.padded(2 * examples + 1, IGNORED))
        ids = before(wanted, PAD, PAD)  # which begins every translation
        lengths = torch.from_numpy(self._tokens.lengths[2 * examples])
        return PairBatch(source, lengths, ids, wanted, targets=int((wanted != IGNORED).sum()))

    def loss(self, model: nn.Module, batch: PairBatch, label_smoothing: float) -> Tensor:
        """−Σ log softmax(y) at each token of the translations"""
        logits: Tensor = model(batch.source, batch.ids, batch.source_lengths)
        return nats(logits, batch.wanted, label_smoothing)

    def measure(self, model: nn.Module) -> Mapping[str, float]:
        """Return chrF, BLEU and the share that is exactly right; that of each set too."""
        found = self.translations(model, [pair.source for pair in self.held_out])
        told = dict(measured(found, self.wanted))
        names = _short_names(self.pairs.sets)
        right: dict[str, list[bool]] = {name: [] for name in self.pairs.sets}
        for pair, its, wanted in zip(self.held_out, found, self.wanted, strict=True):
            right[pair.origin].append(its == wanted)
        if len(right) > 1:
            told |= {f"exact {names[name]}": sum(its) / len(its) for name, its in right.items()}
        return told

    def samples(self, model: nn.Module) -> list[str]:
        """Translate a few sentences."""
        texts = [pair.source for pair in self.held_out[:SHOWN]]
        return [
            f"{_cut_off(text)} → {_cut_off(its)}"
            for text, its in zip(texts, self.translations(model, texts), strict=True)
        ]

    def save(self, model: nn.Module, folder: Path) -> None:
        """Write the model with its vocabulary, in half precision."""
        save_folder(
            model, self.system.family, folder, tokenizer=self.tokenizer, dtype=torch.float16
        )

    def translations(self, model: Any, texts: Sequence[str], *, beams: int = 1) -> list[str]:
        """Translate sentences, those of like length together.

        Args:
            model: what `model` makes, or a folder of it that was loaded.
            texts: the sentences.
            beams: beginnings that are followed at once; 1 takes the best token each time.
        """
        most = 2 * int(self._tokens.lengths[1::2].max())
        lengths = [len(self.tokenizer(text)) for text in texts]
        order = np.argsort(lengths, kind="stable")
        written = model.translate(
            [texts[i] for i in order], batch_size=AT_ONCE, max_tokens=most, beams=beams
        )
        found = [""] * len(texts)
        for i, one in zip(order, written, strict=True):
            found[i] = one.text
        return found

    def _sides(self) -> Iterator[Sequence[int]]:
        """Read the tokens of a sentence, of its translation, of the next sentence, …"""
        for pair in self.pairs.training():
            sides = self._cut(*pair)
            if sides is None:
                self._left_out += 1
            else:
                yield from sides

    def _check_held_out(self) -> None:
        """Refuse a set of which nothing could be measured."""
        left = {pair.origin for pair in self.held_out}
        if gone := [name for name in self.pairs.sets if name not in left]:
            raise ArgumentError(
                f"of {', '.join(gone)} no pair that is held out has 1 to {self.sizes.longest - 1} "
                f"tokens on both sides; give shorter sentences, or leave the set out"
            )

    def _cut(self, *texts: str) -> list[tuple[int, ...]] | None:
        """Return the tokens of both sides; None where one has none, or too many."""
        sides = [(*self.tokenizer.plain(text), END) for text in texts]
        fits = all(2 <= len(side) <= self.sizes.longest for side in sides)
        return sides if fits else None


def _short_names(sets: Sequence[str]) -> dict[str, str]:
    """Return names for measures: files without their folders, where that tells them apart."""
    short = {name: Path(name).name for name in sets}
    return short if len(set(short.values())) == len(short) else {name: name for name in sets}


def _cut_off(text: str) -> str:
    return text if len(text) <= LETTERS else f"{text[:LETTERS]}…"


def _check(system: str) -> None:
    check_package()
    if system not in SYSTEMS:
        raise ArgumentError(f"system is {system!r}; wanted one of {', '.join(SYSTEMS)}")
