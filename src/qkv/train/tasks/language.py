"""Language: a small Llama reads prose and learns how it goes on.

The last tenth of each text is held out: it is never trained on, and what the model reaches there
is what counts.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor, nn

from qkv.errors import ArgumentError
from qkv.models.decoder_only import DecoderOnly
from qkv.models.formats.files import Unwritten
from qkv.models.llama import LLAMA, LlamaConfig
from qkv.models.saving import save_folder
from qkv.models.text.tokenizer import Tokenizer
from qkv.train.data.fingerprint import Fingerprint
from qkv.train.data.prose import prose_of, sources
from qkv.train.order import Examples, Order
from qkv.train.packed import Packed
from qkv.train.settings import Settings
from qkv.train.targets import nats, perplexity
from qkv.train.task import Task, Tensors
from qkv.train.vocabulary import END, of_bytes, trained_bpe

Kind = Literal["bpe", "bytes"]

HELD_OUT = 0.1
CHUNK = 1 << 16
"""Characters that are cut into tokens at once."""

MOST_CHUNKS = 400
"""Of so many, at the beginning of the texts, the vocabulary is made: 26 million characters."""

MOST_WINDOWS = 256
"""Windows of held-out text that are read for a measure at most."""

AT_ONCE = 16
"""Windows that are read together."""

SPREAD = 0.02
"""Standard deviation of the numbers that training begins with (Radford et al. 2018, 4.1)."""

SHOWN = 3
NEW = 40
"""Continuations that are shown, and tokens of each."""


@dataclass(frozen=True)
class Windows(Tensors):
    """Pieces of text, and of each token the one that follows it."""

    ids: Int[Tensor, "batch tokens"]
    following: Int[Tensor, "batch tokens"]

    @classmethod
    def of(cls, packed: Packed, starts: Examples, length: int) -> "Windows":
        """Read pieces of so many tokens from these places on."""
        both = torch.from_numpy(packed.windows(starts, length + 1))
        return cls(both[:, :-1], both[:, 1:])

    @property
    def targets(self) -> int:
        """Tokens that are predicted."""
        return self.following.numel()


class Places(Order):
    """Windows side by side over a whole text, from another token on in each epoch, shuffled.

    Args:
        tokens: of the text.
        context: tokens of a window; one more is read, which is to be predicted last.
        batch: windows a step; fewer where there are not as many.
        seed: of where the windows begin, and of their order.
    """

    def __init__(self, tokens: int, context: int, batch: int, seed: int) -> None:
        """Remember the sizes."""
        self._tokens, self._context, self._batch, self._seed = tokens, context, batch, seed

    def epoch(self, number: int) -> list[Examples]:
        """Return the batches of one epoch; what fills no batch is left out."""
        random = np.random.default_rng((self._seed, number))
        room = self._tokens - self._context  # places where a window can begin
        first = int(random.integers(min(self._context, room)))
        starts = random.permutation(np.arange(first, room, self._context))
        size = min(self._batch, len(starts))
        return [starts[i : i + size] for i in range(0, len(starts) - size + 1, size)]


class Language(Task[Windows]):
    """How a text goes on; a batch is so many windows of `context` tokens.

    Attributes:
        bytes_of: bytes that each token stands for.

    Args:
        tokenizer: cuts text into tokens; `END` is one of them.
        training, held_out: the texts in tokens, each ended by `END`.
        data: what the texts are, as JSON.
        context: tokens that the model looks back on.
        layers, width, heads: sizes of the model; its feed-forward networks are 8/3 as wide.
        seed: of what the samples draw.

    Raises:
        ArgumentError: sizes that make no model, or less text than a window.
    """

    name = "language"
    judged_by = "perplexity"
    higher_is_better = False
    usual: ClassVar[Settings] = Settings(
        steps=800, batch=32, learning_rate=2e-3, final_share=0.05, warmup=50,
        weight_decay=0.1, betas=(0.9, 0.95), measure_every=100, save_every=200,
    )  # fmt: skip

    def __init__(
        self,
        tokenizer: Tokenizer,
        training: Packed,
        held_out: Packed,
        data: Mapping[str, Any],
        *,
        context: int = 128,
        layers: int = 4,
        width: int = 192,
        heads: int = 3,
        seed: int = 0,
    ) -> None:
        """Take the texts, and settle the sizes."""
        _check(context, layers, width, heads)
        _check_length(training, held_out, context)
        self.tokenizer, self.training, self.held_out = tokenizer, training, held_out
        self._data, self._seed, self._end = data, seed, tokenizer.special[END]
        self.context, self.config = context, LlamaConfig(
            tokenizer.size, width, layers, heads, width * 8 // 3, context,
            tie_word_embeddings=True, bos_token_id=self._end, eos_token_id=self._end,
        )  # fmt: skip
        self.bytes_of = torch.tensor([_length(tokenizer, i) for i in range(tokenizer.size)])

    @classmethod
    def open(
        cls,
        data: Sequence[str] = (),
        *,
        seed: int = 0,
        tokens: Kind = "bpe",
        vocabulary: int = 1024,
        **sizes: int,
    ) -> "Language":
        """Read texts, hold the last tenth of each out, and make a vocabulary of the rest.

        Args:
            data: names of built-in books, "books" for all of them, and files of text or Parquet;
                the books by default.
            seed: of what the samples draw.
            tokens: "bpe", pieces of words, or "bytes".
            vocabulary: tokens of "bpe" at most.
            sizes: as the class takes them.

        Raises:
            ArgumentError: tokens of no such kind, sizes that make no model, or too little text.
            FileError: a text that is not there or cannot be read.
        """
        if tokens not in get_args(Kind):
            raise ArgumentError(f"tokens is {tokens!r}; wanted {' or '.join(get_args(Kind))}")
        seen, names = Fingerprint(), sources(data)
        lengths = {name: sum(map(len, seen.through(prose_of(name)))) for name in names}
        cuts = {name: int(length * (1 - HELD_OUT)) for name, length in lengths.items()}
        read = [_chunks(_between(prose_of(name), 0, cuts[name])) for name in names]
        some = islice((chunk for text in read for chunk in text), MOST_CHUNKS)
        tokenizer = of_bytes() if tokens == "bytes" else trained_bpe(some, vocabulary)
        training = _packed(tokenizer, {name: (0, cuts[name]) for name in names})
        held_out = _packed(tokenizer, {name: (cuts[name], lengths[name]) for name in names})
        return cls(tokenizer, training, held_out, seen.describe(), seed=seed, **sizes)

    def describe(self) -> Mapping[str, Any]:
        """Return the data, the number of tokens, and the sizes."""
        sizes = self.config
        return {
            **self._data, "seed": self._seed, "training_tokens": self.training.tokens,
            "held_out_tokens": self.held_out.tokens, "vocabulary": sizes.vocab_size,
            "context": self.context, "layers": sizes.num_hidden_layers,
            "width": sizes.hidden_size, "heads": sizes.num_attention_heads,
        }  # fmt: skip

    def model(self) -> DecoderOnly:
        """Return a new Llama, drawn as GPT-2 was: small, what a layer adds even smaller."""
        model = LLAMA.build(self.config, Unwritten(self.tokenizer))
        for parameter in model.parameters():
            if parameter.ndim > 1:
                nn.init.normal_(parameter, std=SPREAD)
        with torch.no_grad():
            for layer in model.layers:  # 2 parts a layer add to what goes through all of them
                assert layer.attention.WO is not None
                for last in (layer.attention.WO, layer.feed_forward.W2):
                    last.weight.mul_((2 * len(model.layers)) ** -0.5)
        return model

    def order(self, batch: int, seed: int) -> Places:
        """Return where the windows of each step begin."""
        return Places(self.training.tokens, self.context, batch, seed)

    def batch(self, examples: Examples) -> Windows:
        """Return windows of the training text."""
        return Windows.of(self.training, examples, self.context)

    def loss(self, model: nn.Module, batch: Windows, label_smoothing: float) -> Tensor:
        """−Σ log p(token | tokens before it in its window)"""
        return nats(model(batch.ids), batch.following, label_smoothing)

    @torch.no_grad()
    def measure(self, model: nn.Module) -> dict[str, float]:
        """Return the perplexity of held-out text, its loss, and bits a byte.

        loss = −mean log p, perplexity = e^loss; bits a byte are comparable over all vocabularies.
        The text is read in windows, each by itself: its first tokens have little before them.
        """
        length = min(self.context, self.held_out.tokens - 1)
        every = np.arange(0, self.held_out.tokens - length, length)
        starts = every[:: -(-len(every) // MOST_WINDOWS)]
        device, total, read = next(model.parameters()).device, 0.0, 0
        for i in range(0, len(starts), AT_ONCE):
            windows = Windows.of(self.held_out, starts[i : i + AT_ONCE], length)
            total += float(self.loss(model, windows.to(device), 0.0))
            read += int(self.bytes_of[windows.following].sum())
        loss = total / (len(starts) * length)
        bits = total / math.log(2) / max(1, read)
        return {"perplexity": perplexity(loss), "loss": loss, "bits a byte": bits}

    def samples(self, model: nn.Module) -> list[str]:
        """Return how the model goes on where a few held-out lines begin."""
        assert isinstance(model, DecoderOnly)
        beginnings = [self._beginning(i) for i in range(SHOWN)]
        written = model.generate(
            beginnings, max_tokens=NEW, temperature=0.7, top_p=0.9, seed=self._seed
        )
        pairs = zip(beginnings, written, strict=True)
        return [f"{before} … {' '.join(after.text.split())}" for before, after in pairs]

    def save(self, model: nn.Module, folder: Path) -> None:
        """Write a folder of Llama, as `qkv generate --model FOLDER` reads it."""
        save_folder(model, LLAMA, folder, tokenizer=self.tokenizer)

    def _beginning(self, number: int) -> str:
        """The first words behind one of a few places of the held-out text."""
        place = self.held_out.tokens * number // SHOWN
        ids = self.held_out.window(place, min(32, self.held_out.tokens - place)).tolist()
        text = self.tokenizer.decode(ids)
        beginning = " ".join(text.split()[1:4]) or text.strip()[:10] or "The"
        return beginning if self._reads(beginning) else "The"[: self.context]

    def _reads(self, text: str) -> bool:
        return len(self.tokenizer(text).ids) < self.context


def _check(context: int, layers: int, width: int, heads: int) -> None:
    sizes = {"context": context, "layers": layers, "width": width, "heads": heads}
    for name, size in sizes.items():
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise ArgumentError(f"{name} is {size!r}; wanted a whole number above 0")
    if width % heads or width // heads % 2:
        raise ArgumentError(
            f"width={width} makes no even number of values for each of heads={heads}; rotary "
            f"positions turn them in pairs"
        )


def _check_length(training: Packed, held_out: Packed, context: int) -> None:
    if training.tokens <= context:
        raise ArgumentError(
            f"the text to train on has {training.tokens} tokens; wanted more than the context of "
            f"{context}: give more text, or a shorter context"
        )
    if held_out.tokens < 3:
        raise ArgumentError("the text that is held out has not one token; give more text")


def _packed(tokenizer: Tokenizer, parts: Mapping[str, tuple[int, int]]) -> Packed:
    """Cut parts of texts into tokens, and end each."""

    def sequences() -> Iterator[Sequence[int]]:
        for name, (start, end) in parts.items():
            for chunk in _chunks(_between(prose_of(name), start, end)):
                yield tokenizer.plain(chunk)
            yield (tokenizer.special[END],)

    return Packed.of(sequences(), tokenizer.size)


def _between(lines: Iterable[str], start: int, end: int) -> Iterator[str]:
    """Yield the characters of a text from one to another."""
    at = 0
    for line in lines:
        if piece := line[max(0, start - at) : max(0, end - at)]:
            yield piece
        at += len(line)


def _chunks(lines: Iterable[str]) -> Iterator[str]:
    """Join lines to longer pieces, so that blanks between lines are cut as within them."""
    held: list[str] = []
    size = 0
    for line in lines:
        held.append(line)
        size += len(line)
        if size >= CHUNK:
            yield "".join(held)
            held, size = [], 0
    if held:
        yield "".join(held)


def _length(tokenizer: Tokenizer, number: int) -> int:
    """Bytes of a token, each a letter of its name; a special one stands for none."""
    return 0 if number in tokenizer.special.values() else len(tokenizer.piece(number))
