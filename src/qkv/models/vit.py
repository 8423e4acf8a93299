"""ViT (Dosovitskiy et al. 2020): an encoder over the patches of a picture."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor, nn

from qkv.errors import ModelError, ShapeError
from qkv.models.encoder_only import EncoderOnly
from qkv.models.family import Family
from qkv.models.formats.files import Files
from qkv.nn.linear import Linear
from qkv.nn.transformer import Encoder


@dataclass(frozen=True)
class VitConfig:
    """The sizes, by their names in config.json."""

    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    intermediate_size: int
    image_size: int
    patch_size: int
    num_channels: int = 3
    layer_norm_eps: float = 1e-12
    qkv_bias: bool = True
    architectures: Sequence[str] | None = None
    id2label: Mapping[str, str] | None = None
    num_labels: int | None = None

    @property
    def classes(self) -> int:
        """What the classifier tells apart; 0 where the file holds none.

        Hugging Face writes no names of two classes that have none of their own.
        """
        if not any("ForImageClassification" in name for name in self.architectures or ()):
            return 0
        return (self.num_labels or 2) if self.id2label is None else len(self.id2label)

    @property
    def side(self) -> int:
        """Patches along one side of the picture."""
        return self.image_size // self.patch_size


class Patches(nn.Module):
    """[class] + W patch, then + position        Dosovitskiy et al. 2020, equation 1"""

    def __init__(self, config: VitConfig) -> None:
        """Draw the projection of patches, the class token and the positions."""
        super().__init__()
        n, size = config.hidden_size, config.patch_size
        self.config = config
        self.patch = nn.Conv2d(config.num_channels, n, size, stride=size)
        self.first = nn.Parameter(torch.zeros(1, 1, n))
        self.position = nn.Parameter(torch.empty(1, config.side**2 + 1, n).normal_(std=0.02))

    def forward(
        self, pictures: Float[Tensor, "batch channels height width"]
    ) -> Float[Tensor, "batch tokens n_embed"]:
        """Return the class token's row, then one row a patch, line by line."""
        c = self.config
        wanted = (c.num_channels, c.image_size, c.image_size)
        if tuple(pictures.shape[1:]) != wanted:
            raise ShapeError(f"pictures are {tuple(pictures.shape)}; wanted (batch, *{wanted})")
        rows = self.patch(pictures).flatten(2).mT
        x = torch.cat((self.first.expand(len(rows), -1, -1), rows), dim=1)
        return x + self.position


class Vit(EncoderOnly):
    """norm(encoder(patches(picture))); the class token's row says what the picture shows.

    Args:
        config: the sizes.
    """

    embedding: Patches

    def __init__(self, config: VitConfig, files: Files | None = None) -> None:
        """Draw the weights."""
        encoder = Encoder(
            config.num_hidden_layers, config.hidden_size, config.num_attention_heads,
            config.intermediate_size, norm_first=True,
            norm=partial(nn.LayerNorm, eps=config.layer_norm_eps),
            bias=True if config.qkv_bias else ("WO",),
        )  # fmt: skip
        super().__init__(config, Patches(config), encoder)
        classes = config.classes
        self.classifier = Linear(config.hidden_size, classes) if classes else None

    def forward(
        self, pictures: Float[Tensor, "batch channels height width"]
    ) -> Float[Tensor, "batch tokens n_embed"]:
        """Return the last hidden state: the class token's row, then one a patch."""
        x: Tensor = self.encoder(self.embedding(pictures))
        return x

    def hidden_states(
        self, pictures: Float[Tensor, "batch channels height width"]
    ) -> list[Float[Tensor, "batch tokens n_embed"]]:
        """Return what goes into each layer, and last what the encoder gives."""
        return list(self.encoder.states(self.embedding(pictures)))

    def logits(
        self, pictures: Float[Tensor, "batch channels height width"]
    ) -> Float[Tensor, "batch classes"]:
        """How well each class fits a picture.

        Raises:
            ModelError: the model has no classifier.
        """
        if self.classifier is None:
            raise ModelError("the model has no classifier; wanted one with classifier.weight")
        y: Tensor = self.classifier(self(pictures)[:, 0])
        return y


VIT = Family(
    name="vit",
    config=VitConfig,
    assumes={"hidden_act": "gelu"},
    build=Vit,
    tensors={
        "embeddings.cls_token": "embedding.first",
        "embeddings.position_embeddings": "embedding.position",
        "embeddings.patch_embeddings.projection": "embedding.patch",
        "encoder.layer.*.layernorm_before": "encoder.layers.*.attention_norm",
        "encoder.layer.*.attention.attention.query": "encoder.layers.*.attention.WQ",
        "encoder.layer.*.attention.attention.key": "encoder.layers.*.attention.WK",
        "encoder.layer.*.attention.attention.value": "encoder.layers.*.attention.WV",
        "encoder.layer.*.attention.output.dense": "encoder.layers.*.attention.WO",
        "encoder.layer.*.layernorm_after": "encoder.layers.*.feed_forward_norm",
        "encoder.layer.*.intermediate.dense": "encoder.layers.*.feed_forward.W1",
        "encoder.layer.*.output.dense": "encoder.layers.*.feed_forward.W2",
        "layernorm": "encoder.norm",
        "classifier": "classifier",
    },
    # a classifier stands beside the encoder; a later release names the same parts anew
    spelling={
        r"^vit\.": "",
        r"^layers\.": "encoder.layer.",
        r"attention\.q_proj": "attention.attention.query",
        r"attention\.k_proj": "attention.attention.key",
        r"attention\.v_proj": "attention.attention.value",
        r"attention\.o_proj": "attention.output.dense",
        r"mlp\.fc1": "intermediate.dense",
        r"mlp\.fc2": "output.dense",
    },
    unused=("pooler.", "embeddings.mask_token", "decoder."),
)
