"""Word models: the small networks that gave words their numbers, years before transformers.

    one word before:           y = U C(w₋₁) + b
    several, as a bag:         y = U Σᵢ C(w₋ᵢ) + b                  their order is lost
    several, each in place:    y = U tanh(Σᵢ Hᵢ C(w₋ᵢ) + d) + b     Bengio et al. 2003, equation 1

An input for each word, an output for each word, and what comes next to be told: the weights from
the inputs, C, are the words' embeddings.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import normalize

from qkv.errors import ArgumentError, ModelError, ShapeError
from qkv.models.family import Family
from qkv.models.formats.files import Files
from qkv.models.reading import check_ids
from qkv.models.text.tokenizer import Tokenizer

SPREAD = 0.1
"""Standard deviation of an embedding's numbers before training."""


@dataclass(frozen=True)
class WordModelConfig:
    """The sizes, by their names in config.json.

    Attributes:
        vocab_size: words, with the one that stands for all others.
        hidden_size: numbers a word.
        context: words that are looked at.
        positions: whether each of their places has a matrix of its own.
        unk_token_id: the word that stands for all others.
    """

    vocab_size: int
    hidden_size: int
    context: int
    positions: bool = False
    unk_token_id: int = 0


class Nearby(NamedTuple):
    """A word, and the cosine of its embedding with that of another."""

    word: str
    cosine: float


class Next(NamedTuple):
    """A word that may come next, and how probable that is."""

    word: str
    probability: float


class WordModel(nn.Module):
    """Tells the next word from the words before it.

    Args:
        config: the sizes.
        files: where the model's tokenizer is; without it the model takes ids only.

    Raises:
        ArgumentError: an unknown word that is not in the table.
    """

    def __init__(self, config: WordModelConfig, files: Files | None = None) -> None:
        """Draw the weights."""
        super().__init__()
        words, n = config.vocab_size, config.hidden_size
        if not 0 <= config.unk_token_id < words:
            raise ArgumentError(f"unk_token_id is {config.unk_token_id} in a table of {words}")
        self.config = config
        self._tokenizer = None if files is None else files.tokenizer()
        self.embedding = nn.Embedding(words, n)
        nn.init.normal_(self.embedding.weight, std=SPREAD)
        self.places = nn.Linear(config.context * n, n) if config.positions else None
        self.output = nn.Linear(n, words)

    @property
    def tokenizer(self) -> Tokenizer:
        """What cuts text into this model's words; ModelError where its folder had none."""
        if self._tokenizer is None:
            raise ModelError("the model's folder has no tokenizer.json: give it ids, not text")
        return self._tokenizer

    def forward(self, words: Int[Tensor, "*batch context"]) -> Float[Tensor, "*batch vocabulary"]:
        """Return the logits of the next word.

        Args:
            words: those before it, in their order.

        Raises:
            ShapeError: more or fewer words than the model looks at.
            ArgumentError: numbers of words that are not in its table.
        """
        if words.shape[-1] != self.config.context:
            raise ShapeError(
                f"words are {tuple(words.shape)}; wanted (…, {self.config.context}), the words "
                f"that this model looks at"
            )
        check_ids("words", words, self.config.vocab_size)
        x = self.embedding(words)  # C(w₋ᵢ)
        # [H₁ … Hₙ] times the embeddings end to end is Σᵢ Hᵢ C(w₋ᵢ)
        h = x.sum(dim=-2) if self.places is None else torch.tanh(self.places(x.flatten(-2)))
        y: Tensor = self.output(h)
        return y

    @torch.no_grad()
    def neighbours(self, word: str, count: int = 5) -> list[Nearby]:
        """Return the words whose embeddings are most like that of a word, the nearest first.

        Args:
            word: one that the model knows, in any letters.
            count: how many; all others where there are fewer.

        Raises:
            ArgumentError: no word that the model knows, or a count below 1.
            ModelError: the model has no tokenizer.
        """
        number = self._known(word)
        rows = normalize(self.embedding.weight.double(), dim=-1)
        cosines = rows @ rows[number]
        others = [number, self.config.unk_token_id]
        return [Nearby(*found) for found in self._largest(cosines, count, others)]

    @torch.no_grad()
    def predict(self, words: str | Sequence[str], count: int = 5) -> list[Next]:
        """Return the most probable next words; the word that stands for others is not among them.

        Args:
            words: those before, as a text or one by one; the last ones are looked at. What the
                model does not know counts as its word for all others.
            count: how many; all of them where there are fewer.

        Raises:
            ArgumentError: fewer words than the model looks at, or a count below 1.
            ModelError: the model has no tokenizer.
        """
        text = words if isinstance(words, str) else " ".join(words)
        ids, context = self.tokenizer.plain(text), self.config.context
        if len(ids) < context:
            raise ArgumentError(
                f"words are {text[:40]!r}, which is {len(ids)}; the model looks at {context}"
            )
        before = torch.tensor(ids[-context:], device=self.embedding.weight.device)
        shares = self(before).double().softmax(dim=-1)
        found = self._largest(shares, count, [self.config.unk_token_id])
        return [Next(*one) for one in found]

    def knows(self, text: str) -> bool:
        """Whether every word of a text is in the vocabulary."""
        return self.config.unk_token_id not in self.tokenizer.plain(text)

    def _known(self, word: str) -> int:
        ids = self.tokenizer.plain(word)
        if len(ids) != 1 or ids[0] == self.config.unk_token_id:
            raise ArgumentError(
                f"word is {word[:40]!r}; wanted one of the {self.config.vocab_size - 1} words "
                f"that the model knows"
            )
        return ids[0]

    def _largest(
        self, values: Float[Tensor, "vocabulary"], count: int, without: Sequence[int]
    ) -> list[tuple[str, float]]:
        """Return the words with the largest values; of several alike the first comes first."""
        if count < 1:
            raise ArgumentError(f"count is {count}; wanted 1 or more")
        order = values.argsort(descending=True, stable=True).tolist()
        kept = [number for number in order if number not in without][:count]
        return [(self.tokenizer.piece(number), float(values[number])) for number in kept]


WORD_MODEL = Family(
    name="qkv_words",
    config=WordModelConfig,
    assumes={},
    build=WordModel,
    tensors={"embedding": "embedding", "places": "places", "output": "output"},
    spelling={},
    unused=(),
)
