"""The first transformer, base: all its sizes, and no weights, as none were published.

Vaswani et al. 2017, table 3.
"""

from jaxtyping import Float, Int
from torch import Tensor

from qkv.models.encoder_decoder import EncoderDecoderModel
from qkv.nn.embedding import PositionalEncoding, WordEmbedding
from qkv.nn.layers import LayerOptions
from qkv.nn.transformer import Decoder, Encoder

VOCABULARY = 37_000
"""Tokens that English and German share (section 5.1)."""

N_EMBED = 512


class Original(EncoderDecoderModel):
    """Text in, text out: six layers of eight heads over 512 values on each side."""

    def __init__(self) -> None:
        """Draw the weights; one table serves both sides and the logits (section 3.4)."""
        options = LayerOptions(activation="relu")
        super().__init__(
            None, Encoder(**options), Decoder(**options),
            WordEmbedding(VOCABULARY, N_EMBED, scaled=True), PositionalEncoding(N_EMBED),
        )  # fmt: skip

    def embed_source(
        self, source: Int[Tensor, "batch keys"]
    ) -> Float[Tensor, "batch keys n_embed"]:
        """Return words and positions of the text that is to be translated."""
        x: Tensor = self.positions(self.words(source))
        return x
