"""Words: a small network tells the next word, and the numbers of its words come to mean something.

From one word, or from several before it; these as a bag, in which their order is lost, or each in
its place. `models/word_model.py` says what is computed.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Int
from torch import Tensor, nn
from torch.nn.functional import normalize

from qkv.disk import write_whole
from qkv.errors import ArgumentError
from qkv.models.formats.files import Unwritten
from qkv.models.saving import save_folder
from qkv.models.text.tokenizer import Tokenizer
from qkv.models.word_model import WORD_MODEL, WordModel, WordModelConfig
from qkv.train.data.fingerprint import Fingerprint
from qkv.train.data.held_out import held_out
from qkv.train.data.prose import prose_of, sources
from qkv.train.data.words import Met, Numbers, word_tokenizer
from qkv.train.order import Examples, Order, Shuffled
from qkv.train.settings import Settings
from qkv.train.targets import nats, perplexity
from qkv.train.task import Task, Tensors

MOST_CONTEXT = 16
BLOCK = 100
"""Words in a row that are held out, or trained on, together: what is judged was never seen."""
HELD_OUT = 0.1

AT_ONCE, MOST = 1024, 20_000
"""Examples that are tried at once in a measure, and in all, taken evenly."""

ARTICLE = "the coffee spilled on"
"""The sentence on which word order is shown."""
OTHER_ORDER = (1, 3, 2, 0)
"""Makes "coffee on spilled the" of it."""

SHOWN, DRAWN = 5, 160
"""Words whose neighbours are told, and words in the picture."""
LETTERS = 5
"""A word in these has as many at least: shorter ones say little."""


@dataclass(frozen=True)
class WordBatch(Tensors):
    """Words, and the one that came next."""

    words: Int[Tensor, "batch context"]
    following: Int[Tensor, "batch"]

    @property
    def targets(self) -> int:
        """How many words are told."""
        return len(self.following)


class Words(Task[WordBatch]):
    """The next word, from those before it; a batch is so many words to tell.

    A word outside the vocabulary may stand before, but is never to be told: the perplexity is
    that of the words in it.

    Args:
        tokenizer: cuts text into words.
        ids: the text, in words.
        data: what the text is, as JSON.
        context: words before, that are looked at.
        positions: whether each of their places has a matrix of its own.
        size: numbers a word.
        seed: of what is held out.

    Raises:
        ArgumentError: sizes that make no model, or too short a text.
    """

    name = "words"
    judged_by = "perplexity"
    higher_is_better = False
    usual: ClassVar[Settings] = Settings(
        steps=4000, batch=256, learning_rate=3e-3, final_share=0.05, weight_decay=0.1,
        measure_every=500, save_every=1000,
    )  # fmt: skip

    def __init__(
        self,
        tokenizer: Tokenizer,
        ids: Numbers,
        data: Mapping[str, Any],
        *,
        context: int = 4,
        positions: bool = False,
        size: int = 64,
        seed: int = 0,
    ) -> None:
        """Hold a tenth of the text out."""
        _check(context, positions, size)
        self.tokenizer, self._ids, self._data, self._seed = tokenizer, ids, data, seed
        self.config = WordModelConfig(tokenizer.size, size, context, positions)
        self.training, self.held_out = _split(ids, context, seed)

    @classmethod
    def open(
        cls,
        data: Sequence[str] = (),
        *,
        seed: int = 0,
        context: int = 4,
        positions: bool = False,
        vocabulary: int = 2000,
        size: int = 64,
    ) -> "Words":
        """Read texts, and choose the words that are frequent in what is not held out.

        Args:
            data: names of built-in books, "books" for all of them, and paths of texts; the books
                by default.
            seed: of what is held out.
            context: words before, that are looked at: 1 to 16. Samples show two orders of 4.
            positions: whether each of their places has a matrix of its own.
            vocabulary: words at most, with the one that stands for all others.
            size: numbers a word.

        Raises:
            ArgumentError: sizes that make no model, or a text of too few words.
            FileError: a text that is not there or cannot be read.
        """
        _check(context, positions, size)
        if vocabulary < 3:
            raise ArgumentError(f"vocabulary is {vocabulary}; wanted 3 words or more")
        seen = Fingerprint()
        met = Met.of(text for source in sources(data) for text in seen.through(prose_of(source)))
        apart = _apart(len(met.numbers), seed)
        blocks = met.numbers[: len(apart) * BLOCK].reshape(-1, BLOCK)
        kept = met.frequent(blocks[~apart], vocabulary - 1)
        about = {"words": len(met.numbers), **seen.describe()}
        return cls(
            word_tokenizer(kept), met.among(kept), about, context=context, positions=positions,
            size=size, seed=seed,
        )  # fmt: skip

    def describe(self) -> Mapping[str, Any]:
        """Return the sizes, and what the text is."""
        c = self.config
        return {
            "context": c.context, "positions": c.positions, "size": c.hidden_size,
            "vocabulary": c.vocab_size, "held_out_by": self._seed, **self._data,
        }  # fmt: skip

    def model(self) -> WordModel:
        """Return a new model."""
        return WordModel(self.config, Unwritten(self.tokenizer))

    def order(self, batch: int, seed: int) -> Order:
        """Return the order of the words that are to be told."""
        return Shuffled(len(self.training), batch, seed)

    def batch(self, examples: Examples) -> WordBatch:
        """Return examples side by side."""
        return self._batch(self.training[examples])

    def loss(self, model: nn.Module, batch: WordBatch, label_smoothing: float) -> Tensor:
        """−Σ log softmax(y) at the word that came next, over the batch"""
        return nats(model(batch.words), batch.following, label_smoothing)

    def measure(self, model: nn.Module) -> Mapping[str, float]:
        """Return the perplexity, and how often the most probable word is the right one."""
        loss, right = 0.0, 0
        device = next(model.parameters()).device
        tried = self.held_out[:: -(-len(self.held_out) // MOST)]
        for start in range(0, len(tried), AT_ONCE):
            batch = self._batch(tried[start : start + AT_ONCE]).to(device)
            logits = model(batch.words).double()
            loss += float(nats(logits, batch.following, 0.0))
            right += int((logits.argmax(dim=-1) == batch.following).sum())
        return {"perplexity": perplexity(loss / len(tried)), "accuracy": right / len(tried)}

    def samples(self, model: nn.Module) -> list[str]:
        """Tell neighbours of frequent words, and what follows four words in two orders."""
        assert isinstance(model, WordModel)
        near = [
            f"near {word!r}: {', '.join(found.word for found in model.neighbours(word))}"
            for word in self.frequent(SHOWN)
        ]
        if self.config.context != len(OTHER_ORDER):
            return near
        return [*near, *_order_told(model, ARTICLE), *self._known_order_told(model)]

    def save(self, model: nn.Module, folder: Path) -> None:
        """Write the model with its vocabulary."""
        save_folder(model, WORD_MODEL, folder, tokenizer=self.tokenizer)

    def plot(self, model: nn.Module, path: Path) -> None:
        """Draw the embeddings of frequent words, each of length 1, as SVG.

        Raises:
            ArgumentError: fewer than three words.
            FileError: the file cannot be written.
        """
        from qkv.show.points import svg

        assert isinstance(model, WordModel)
        words = self.frequent(DRAWN)
        if len(words) < 3:
            raise ArgumentError(
                f"the vocabulary has {len(words)} words of {LETTERS} letters or more; wanted 3 to "
                f"draw"
            )
        numbers = [self.tokenizer.plain(word)[0] for word in words]
        rows = normalize(model.embedding.weight[numbers].detach().double(), dim=-1)
        title = f"The embeddings of {len(words)} frequent words, each of length 1"
        write_whole(path, svg(rows.cpu().numpy(), words, title).encode())

    def frequent(self, count: int) -> list[str]:
        """Return the most frequent words of some letters."""
        pieces = (self.tokenizer.piece(number) for number in range(1, self.tokenizer.size))
        long = (word for word in pieces if len(word) >= LETTERS)
        return [word for word, _ in zip(long, range(count), strict=False)]

    def _batch(self, at: Examples) -> WordBatch:
        before = np.arange(-self.config.context, 0)
        words = torch.from_numpy(self._ids[at[:, None] + before].astype(np.int64))
        return WordBatch(words, torch.from_numpy(self._ids[at].astype(np.int64)))

    def _known_order_told(self, model: WordModel) -> Iterable[str]:
        """Tell the same of four different words of the text, where the article's are unknown."""
        if model.knows(ARTICLE):
            return []
        four = len(OTHER_ORDER)
        for at in self.held_out:
            ids = self._ids[at - four : at].tolist()
            if 0 not in ids and len(set(ids)) == four:
                return _order_told(model, " ".join(map(self.tokenizer.piece, ids)))
        return []


def _check(context: int, positions: bool, size: int) -> None:
    if not 1 <= context <= MOST_CONTEXT:
        raise ArgumentError(f"context is {context}; wanted 1 to {MOST_CONTEXT} words")
    if positions and context == 1:
        raise ArgumentError("positions tell places apart, and one word has one: give context=4")
    if size < 1:
        raise ArgumentError(f"size is {size}; wanted 1 or more numbers a word")


def _apart(words: int, seed: int) -> npt.NDArray[np.bool_]:
    """Return for each block of words whether it is held out."""
    blocks = words // BLOCK
    if blocks < 2:
        raise ArgumentError(f"the text has {words} words; wanted {2 * BLOCK} or more")
    _, out = held_out(blocks, max(1, round(HELD_OUT * blocks)), seed)
    return np.isin(np.arange(blocks), out)


def _split(ids: Numbers, context: int, seed: int) -> tuple[Examples, Examples]:
    """Return the places of the words to be told, in training and in what is held out.

    What stands before them is in their own block; words outside the vocabulary are not told.
    """
    apart = _apart(len(ids), seed)
    at = np.arange(len(apart) * BLOCK)
    told = at[(at % BLOCK >= context) & (ids[at] != 0)]
    is_out = apart[told // BLOCK]
    if is_out.all() or not is_out.any():
        raise ArgumentError("the text has too few words of the vocabulary; give more text")
    return told[~is_out], told[is_out]


def _order_told(model: WordModel, text: str) -> Iterator[str]:
    """Tell what follows four words, and what follows them in another order."""
    words = text.split()
    other = " ".join(words[i] for i in OTHER_ORDER)
    unknown = [word for word in words if not model.knows(word)]
    for order in (text, other):
        found = ", ".join(f"{word} {share:.1%}" for word, share in model.predict(order, 3))
        yield f"after {order!r}: {found}"
    if unknown:
        yield f"    ({', '.join(unknown)}: not in the vocabulary)"
