"""The encoder: layers one after the other."""

from collections.abc import Iterable, Iterator

from jaxtyping import Float
from torch import Tensor, nn

from qkv.nn.attending import MaskLike
from qkv.nn.layers import EncoderLayer


class Encoder(nn.Module):
    """x₀ = x, xᵢ = layerᵢ(xᵢ₋₁); gives the last

    Args:
        layers: the layers, the first one first.
    """

    def __init__(self, layers: Iterable[EncoderLayer]) -> None:
        """Take the layers as they are."""
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(
        self, x: Float[Tensor, "*batch tokens n_embed"], mask: MaskLike = False
    ) -> Float[Tensor, "*batch tokens n_embed"]:
        """Return what the last layer gives. The mask reaches every layer."""
        for state in self.states(x, mask):
            x = state
        return x

    def states(
        self, x: Float[Tensor, "*batch tokens n_embed"], mask: MaskLike = False
    ) -> Iterator[Float[Tensor, "*batch tokens n_embed"]]:
        """Go through x₀, x₁, …: what goes into the first layer, then what each layer gives."""
        yield x
        for layer in self.layers:
            x = layer(x, mask)
            yield x
