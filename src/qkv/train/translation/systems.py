"""The systems that learn to translate: their sizes, and how a new one is made."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from torch import nn

from qkv.models.family import Family
from qkv.models.formats.files import Unwritten
from qkv.models.marian import MARIAN, MarianConfig
from qkv.models.recurrent import RECURRENT, RecurrentConfig
from qkv.models.text.tokenizer import Tokenizer
from qkv.train.translation.spelling import END, PAD

TOKENS: Mapping[str, Any] = {
    "decoder_start_token_id": PAD, "pad_token_id": PAD, "eos_token_id": END,
    "bad_words_ids": [[PAD]],
}  # fmt: skip


@dataclass(frozen=True)
class Sizes:
    """How large a system is.

    Attributes:
        vocabulary: tokens of both languages at most.
        width: values a token; of a recurrent system also of a state.
        layers: of the transformer, on each side.
        heads, hidden: of its attention, and of its feed-forward network.
        dropout: probability that a value is dropped in training.
        longest: tokens of a text at most.
    """

    vocabulary: int = 4000
    width: int = 128
    layers: int = 3
    heads: int = 4
    hidden: int = 256
    dropout: float = 0.1
    longest: int = 128


@dataclass(frozen=True)
class System:
    """What learns to translate.

    Attributes:
        name: what the command calls it.
        says: what it is, in a few words.
        family: of its models.
        config: makes the configuration from sizes, and the number of tokens that there are.
        attends: whether it looks at the source word by word.
    """

    name: str
    says: str
    family: Family[Any, Any]
    config: Callable[[Sizes, int], Any]
    attends: bool = True

    def model(self, sizes: Sizes, tokenizer: Tokenizer) -> nn.Module:
        """Return a new model."""
        made: nn.Module = self.family.build(
            self.config(sizes, tokenizer.size), Unwritten(tokenizer)
        )
        return made

    def describe(self, sizes: Sizes) -> Mapping[str, Any]:
        """Return the configuration as JSON; without the vocabulary, which is known later."""
        told = asdict(self.config(sizes, sizes.vocabulary))
        return {name: value for name, value in told.items() if name not in TOKENS}


def _transformer(sizes: Sizes, tokens: int) -> MarianConfig:
    return MarianConfig(
        vocab_size=tokens, d_model=sizes.width,
        encoder_layers=sizes.layers, decoder_layers=sizes.layers,
        encoder_attention_heads=sizes.heads, decoder_attention_heads=sizes.heads,
        encoder_ffn_dim=sizes.hidden, decoder_ffn_dim=sizes.hidden,
        max_position_embeddings=sizes.longest, activation_function="relu", scale_embedding=True,
        dropout=sizes.dropout, **TOKENS,
    )  # fmt: skip


def _recurrent(attention: str | None) -> Callable[[Sizes, int], RecurrentConfig]:
    return lambda sizes, tokens: RecurrentConfig(
        vocab_size=tokens, d_embed=sizes.width, d_hidden=_state(sizes), layers=1,
        attention=attention, dropout=sizes.dropout, **TOKENS,
    )  # fmt: skip


def _state(sizes: Sizes) -> int:
    """Values of a state, such that a recurrent system has about as many parameters."""
    return 2 * sizes.width


SYSTEMS: Mapping[str, System] = {
    one.name: one
    for one in (
        System("single", "recurrent, a single vector", RECURRENT, _recurrent(None), attends=False),
        System("additive", "recurrent, additive attention", RECURRENT, _recurrent("additive")),
        System("dot", "recurrent, dot-product attention", RECURRENT, _recurrent("dot")),
        System("transformer", "transformer", MARIAN, _transformer),
    )
}
"""The systems by their names, in the order of history."""
