"""BERT (Devlin et al. 2018): an encoder over token, position and segment embeddings."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from qkv.core.mask import Mask
from qkv.errors import ArgumentError, ModelError
from qkv.models.encoder_only import EncoderOnly
from qkv.models.family import Family
from qkv.models.formats.files import Files
from qkv.models.pooling import Pooling
from qkv.models.reading import check_ids
from qkv.models.text.tokenizer import Tokenizer
from qkv.nn.attending import positive
from qkv.nn.layers import Norm
from qkv.nn.transformer import Encoder


@dataclass(frozen=True)
class BertConfig:
    """The sizes, by their names in config.json."""

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    intermediate_size: int
    max_position_embeddings: int
    type_vocab_size: int = 2
    layer_norm_eps: float = 1e-12


class Embedding(nn.Module):
    """norm(token + position + segment)        Devlin et al. 2018, figure 2"""

    def __init__(self, config: BertConfig, norm: Norm) -> None:
        """Draw the three tables."""
        super().__init__()
        self.token = nn.Embedding(config.vocab_size, config.hidden_size)
        self.position = nn.Embedding(config.max_position_embeddings, config.hidden_size)
        self.segment = nn.Embedding(config.type_vocab_size, config.hidden_size)
        self.norm = norm(config.hidden_size)

    def forward(
        self, ids: Int[Tensor, "*batch tokens"], segments: Int[Tensor, "*batch tokens"]
    ) -> Float[Tensor, "*batch tokens n_embed"]:
        """Return one row a token; positions are counted from the first column."""
        positions = torch.arange(ids.shape[-1], device=ids.device)
        x: Tensor = self.norm(self.token(ids) + self.position(positions) + self.segment(segments))
        return x


class Bert(EncoderOnly):
    """encoder(embedding(ids)): every token looks at every token, both ways.

    Args:
        config: the sizes.
        tokenizer: cuts text into tokens; without it the model takes ids only.
        pooling: makes one row of a text.
        dropout: probability that a weight, or a value that a part adds, is dropped in training.
    """

    embedding: Embedding

    def __init__(
        self,
        config: BertConfig,
        tokenizer: Tokenizer | None = None,
        pooling: Pooling | None = None,
        *,
        dropout: float = 0.0,
    ) -> None:
        """Draw the weights."""
        norm = partial(nn.LayerNorm, eps=config.layer_norm_eps)
        sizes = (
            config.num_hidden_layers, config.hidden_size, config.num_attention_heads,
            config.intermediate_size,
        )  # fmt: skip
        encoder = Encoder(*sizes, norm=norm, dropout=dropout)
        super().__init__(config, Embedding(config, norm), encoder)
        self.pooling = pooling or Pooling()
        self._tokenizer = tokenizer

    @property
    def tokenizer(self) -> Tokenizer:
        """What cuts text into this model's tokens; ModelError where its folder had none."""
        if self._tokenizer is None:
            raise ModelError("the model's folder has no tokenizer.json: give it ids, not text")
        return self._tokenizer

    def forward(
        self,
        ids: Int[Tensor, "*batch tokens"],
        lengths: Sequence[int] | Int[Tensor, "*batch"] | None = None,
        *,
        mask: Mask | None = None,
        segments: Int[Tensor, "*batch tokens"] | None = None,
    ) -> Float[Tensor, "*batch tokens n_embed"]:
        """Return the last hidden state; the arguments are those of `hidden_states`."""
        x, mask = self._enter(ids, lengths, mask, segments)
        last: Tensor = self.encoder(x, mask)
        return last

    def hidden_states(
        self,
        ids: Int[Tensor, "*batch tokens"],
        lengths: Sequence[int] | Int[Tensor, "*batch"] | None = None,
        *,
        mask: Mask | None = None,
        segments: Int[Tensor, "*batch tokens"] | None = None,
    ) -> list[Float[Tensor, "*batch tokens n_embed"]]:
        """Return what goes into each layer, and last what the last one gives.

        Args:
            ids: numbers of the tokens, padded on the right to one length.
            lengths: real tokens of each text; all of them by default.
            mask: says the same, or more, as a `Mask`: `Mask.padding(lengths, side="left")`.
            segments: 0 for a first text, 1 for a second; 0 by default.

        Raises:
            ArgumentError: no ids, more than the model has positions for, or ids that are not in
                its tables. MaskError: a mask that does not fit.
        """
        x, mask = self._enter(ids, lengths, mask, segments)
        return list(self.encoder.states(x, mask))

    @torch.no_grad()
    def embed(
        self, texts: Sequence[str], *, batch_size: int = 32
    ) -> Float[Tensor, "texts n_embed"]:
        """Return one row a text: its tokens pooled as the model's folder says.

        Args:
            texts: the texts; none is cut off, and all their tokens are pooled.
            batch_size: texts that are run together.

        Raises:
            ArgumentError: no texts, an empty one, or one that is too long for the model.
            ModelError: the folder asks for another pooling than the mean.
        """
        if isinstance(texts, str) or not texts:
            raise ArgumentError(f"texts is {texts!r}; wanted a list of texts, one or more")
        positive("batch_size", batch_size)
        self.pooling.check()
        rows = [torch.tensor(self.tokenizer(text).ids) for text in texts]
        for row in rows:
            self._check_length(len(row))
        parts = (rows[i : i + batch_size] for i in range(0, len(rows), batch_size))
        return torch.cat([self._pooled(part) for part in parts])

    def _pooled(self, rows: list[Tensor]) -> Tensor:
        device = self.embedding.token.weight.device
        ids = pad_sequence(rows, batch_first=True).to(device)
        lengths = torch.tensor([len(row) for row in rows], device=device)
        real = torch.arange(ids.shape[-1], device=device) < lengths[:, None]
        return self.pooling(self(ids, lengths), real)

    def _enter(
        self,
        ids: Tensor,
        lengths: Sequence[int] | Tensor | None,
        mask: Mask | None,
        segments: Tensor | None,
    ) -> tuple[Tensor, Mask | None]:
        """Check what came in; return the embeddings and who may look at whom."""
        self._check_length(ids.shape[-1])
        segments = torch.zeros_like(ids) if segments is None else segments
        check_ids("ids", ids, self.config.vocab_size)
        check_ids("segments", segments, self.config.type_vocab_size)
        if lengths is not None:
            padding = Mask.padding(lengths)
            mask = padding if mask is None else padding & mask
        return self.embedding(ids, segments), mask

    def _check_length(self, tokens: int) -> None:
        most = self.config.max_position_embeddings
        if not 1 <= tokens <= most:
            raise ArgumentError(
                f"the text has {tokens} tokens, the model takes 1 to {most}: choose fewer tokens"
            )


def _build(config: BertConfig, files: Files) -> Bert:
    return Bert(config, files.tokenizer(), Pooling.read(files.path))


BERT = Family(
    name="bert",
    config=BertConfig,
    assumes={"hidden_act": "gelu", "position_embedding_type": "absolute", "is_decoder": False},
    build=_build,
    tensors={
        "embeddings.word_embeddings": "embedding.token",
        "embeddings.position_embeddings": "embedding.position",
        "embeddings.token_type_embeddings": "embedding.segment",
        "embeddings.LayerNorm": "embedding.norm",
        "encoder.layer.*.attention.self.query": "encoder.layers.*.attention.WQ",
        "encoder.layer.*.attention.self.key": "encoder.layers.*.attention.WK",
        "encoder.layer.*.attention.self.value": "encoder.layers.*.attention.WV",
        "encoder.layer.*.attention.output.dense": "encoder.layers.*.attention.WO",
        "encoder.layer.*.attention.output.LayerNorm": "encoder.layers.*.attention_norm",
        "encoder.layer.*.intermediate.dense": "encoder.layers.*.feed_forward.W1",
        "encoder.layer.*.output.dense": "encoder.layers.*.feed_forward.W2",
        "encoder.layer.*.output.LayerNorm": "encoder.layers.*.feed_forward_norm",
    },
    # `bert.` where a head for some task stands beside the encoder; γ and β as TensorFlow names them
    spelling={r"^bert\.": "", r"\.gamma$": ".weight", r"\.beta$": ".bias"},
    # heads for tasks, and numbers 0, 1, 2, … that some versions stored
    unused=("pooler.", "cls.", "classifier.", "qa_outputs.", "embeddings.position_ids"),
)
