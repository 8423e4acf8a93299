"""Classifiers of text: an encoder, and one linear layer on the row that it makes of a text.

y = W mean(encoder(text)) + b        Devlin et al. 2018, section 3.2, on the mean of all rows
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from qkv.errors import ArgumentError
from qkv.models.bert import BERT, Bert, BertConfig, Embedding
from qkv.models.family import Family
from qkv.models.formats.files import Files
from qkv.models.pooling import Pooling
from qkv.models.reading import real_tokens
from qkv.models.text.tokenizer import Tokenizer
from qkv.nn.layers import EncoderLayer
from qkv.nn.transformer import Encoder


@dataclass(frozen=True)
class ClassifierConfig(BertConfig):
    """The sizes of the encoder, and the labels by their numbers: {"0": "bad", "1": "good"}."""

    id2label: Mapping[str, str] | None = None

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels in the order of their numbers.

        Raises:
            ArgumentError: fewer than two, one twice, or numbers that are not 0, 1, 2, …
        """
        given = self.id2label or {}
        named = tuple(given.get(str(number), "") for number in range(len(given)))
        texts = all(isinstance(label, str) and label for label in named)
        if len(named) < 2 or not texts or len(set(named)) < len(named):
            raise ArgumentError(
                f"id2label is {self.id2label!r}; wanted two or more different labels, numbered "
                f"from 0 on"
            )
        return named

    @classmethod
    def on(cls, encoder: BertConfig, labels: Sequence[str]) -> "ClassifierConfig":
        """Return the configuration of an encoder with labels on top."""
        sizes = {name: value for name, value in asdict(encoder).items() if name != "id2label"}
        return cls(**sizes, id2label={str(i): label for i, label in enumerate(labels)})


@dataclass(frozen=True)
class Classified:
    """What a text was found to be.

    Attributes:
        label: the most probable one.
        probabilities: of every label; they sum to 1.
    """

    label: str
    probabilities: Mapping[str, float]


class Classifier(nn.Module):
    """output(mean(bert(ids))): a text in, a logit for each label out.

    Args:
        config: the sizes, and the labels.
        files: where the model's tokenizer is; without it the model takes ids only.
        dropout: probability that a weight of the attention, a value that a part of a layer adds,
            or a value of the mean is dropped in training.

    Raises:
        ArgumentError: labels that make no choice.
    """

    def __init__(
        self, config: ClassifierConfig, files: Files | None = None, *, dropout: float = 0.0
    ) -> None:
        """Draw the weights."""
        super().__init__()
        self.config, self.labels, self.dropout = config, config.labels, dropout
        tokenizer = None if files is None else files.tokenizer()
        self.bert = Bert(config, tokenizer, Pooling(normalised=False), dropout=dropout)
        self.output = nn.Linear(config.hidden_size, len(self.labels))

    @property
    def tokenizer(self) -> Tokenizer:
        """What cuts text into this model's tokens; ModelError where its folder had none."""
        return self.bert.tokenizer

    @property
    def embedding(self) -> Embedding:
        """What makes rows of tokens."""
        return self.bert.embedding

    @property
    def encoder(self) -> Encoder:
        """The tower."""
        return self.bert.encoder

    @property
    def layers(self) -> tuple[EncoderLayer, ...]:
        """The layers of the encoder."""
        return self.bert.layers

    @property
    def towers(self) -> dict[str, nn.Module]:
        """The one tower."""
        return self.bert.towers

    @property
    def most(self) -> int:
        """Tokens that a text may have."""
        return self.config.max_position_embeddings

    def forward(
        self,
        ids: Int[Tensor, "batch tokens"],
        lengths: Sequence[int] | Int[Tensor, "batch"] | None = None,
    ) -> Float[Tensor, "batch labels"]:
        """Return a logit for each label.

        Args:
            ids: numbers of the tokens, padded on the right to one length.
            lengths: real tokens of each text; all of them by default.

        Raises:
            ArgumentError: no ids, too many, or ids that are not in the model's table; lengths that
                are not those of rows.
        """
        lengths = None if lengths is None else real_tokens(lengths, ids)
        x = self.bert(ids, lengths)
        real = torch.ones_like(ids, dtype=torch.bool)
        if lengths is not None:
            real = torch.arange(ids.shape[-1], device=ids.device) < lengths[:, None]
        mean = self.bert.pooling(x, real)
        y: Tensor = self.output(torch.dropout(mean, self.dropout, self.training))
        return y

    @torch.no_grad()
    def classify(self, texts: str | Sequence[str], *, batch_size: int = 32) -> list[Classified]:
        """Say of each text what it is.

        Args:
            texts: a text, or several; none is cut off.
            batch_size: texts that are run together.

        Raises:
            ArgumentError: no texts, an empty one, or one that is too long for the model.
            ModelError: the model has no tokenizer.
        """
        texts = [texts] if isinstance(texts, str) else texts
        if not texts or batch_size < 1:
            raise ArgumentError(
                f"there are {len(texts)} texts, {batch_size} at a time; wanted 1 or more"
            )
        rows = [torch.tensor(self.ids(text, f"text {n}")) for n, text in enumerate(texts, start=1)]
        parts = (rows[i : i + batch_size] for i in range(0, len(rows), batch_size))
        return [self._named(shares) for part in parts for shares in self._shares(part)]

    def ids(self, text: str, name: str = "the text") -> tuple[int, ...]:
        """Return the tokens of a text; `name` is for the errors.

        Raises:
            ArgumentError: an empty text, or one that is too long for the model.
            ModelError: the model has no tokenizer.
        """
        ids = self.tokenizer(text).ids
        if len(ids) > self.most:
            raise ArgumentError(
                f"{name} ({text[:40]!r}…) has {len(ids)} tokens, the model takes 1 to "
                f"{self.most}; give less of it"
            )
        return ids

    def _shares(self, rows: Sequence[Tensor]) -> list[list[float]]:
        device = self.output.weight.device
        ids = pad_sequence(list(rows), batch_first=True).to(device)
        logits = self(ids, [len(row) for row in rows])
        shares: list[list[float]] = logits.double().softmax(dim=-1).tolist()
        return shares

    def _named(self, shares: Sequence[float]) -> Classified:
        found = dict(zip(self.labels, shares, strict=True))
        return Classified(max(found, key=found.__getitem__), found)


CLASSIFIER = Family(
    name="qkv_classifier",
    config=ClassifierConfig,
    assumes=BERT.assumes,
    build=Classifier,
    tensors={
        **{f"bert.{theirs}": f"bert.{ours}" for theirs, ours in BERT.tensors.items()},
        "classifier": "output",
    },
    spelling={},
    unused=(),
)
