"""An encoder by itself: BERT reads text with it, ViT pictures."""

from typing import Any, NoReturn, cast

from torch import nn

from qkv.errors import ModelError
from qkv.nn.layers import EncoderLayer
from qkv.nn.transformer import Encoder


class EncoderOnly(nn.Module):
    """encoder(embedding(input)): everything looks at everything, both ways.

    Args:
        config: the sizes, by their names in config.json.
        embedding: what makes rows of numbers of the input.
        encoder: the tower.
    """

    def __init__(self, config: Any, embedding: nn.Module, encoder: Encoder) -> None:
        """Take the parts as they are."""
        super().__init__()
        self.config, self.embedding, self.encoder = config, embedding, encoder

    @property
    def layers(self) -> tuple[EncoderLayer, ...]:
        """The layers: `layers[0].attention` is the first layer's `MultiHeadAttention`."""
        return cast(tuple[EncoderLayer, ...], tuple(self.encoder.layers))

    @property
    def towers(self) -> dict[str, nn.Module]:
        """The one tower."""
        return {"encoder": self.encoder}

    def generate(self, *_: Any, **__: Any) -> NoReturn:
        """Raise ModelError: an encoder writes no text."""
        raise ModelError(
            f"{type(self).__name__} is an encoder: it embeds what it reads and writes no text; "
            f"wanted a decoder such as smollm2"
        )

    stream = generate
