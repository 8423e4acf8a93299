"""What an entry of the table says, and how its model is built."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import transformers
from torch import nn

from tests.recording.zoo.inputs import Inputs

HEADS, WIDTH = 4, 12
EAGER, SDPA = "eager", "sdpa"


@dataclass(frozen=True, eq=False)
class Architecture:
    """One architecture of Hugging Face's, and what must be seen in it.

    Attributes:
        name: as it was published.
        model: the class in transformers.
        config: the class of its settings.
        settings: small sizes, in this model's names.
        inputs: gives what the model is called with.
        masks: of each attention in the order of its calls, what it blocks or adds, in words; its
            length is how many attentions there must be.
        heads: of each attention, or of all.
        kv_heads: heads of keys and values; as many as heads without it.
        width: of a head, d_k, of each attention, or of all.
        scale: what Q Kᵀ is multiplied by; 1/√d_k without it, and "learned" where it is a parameter.
        softcap: c of c·tanh(similarities / c).
        sdpa: whether the model has a fused path.
        returned: the calls whose weights the model returns in eager mode, in the order in which it
            returns them, None for what is no weights; without it all, in the order of the calls.
        averaged: whether it returns the average of the heads.
        gain: how large its parameters are drawn.
        agree: whether the model's two paths calculate the same.
        note: what a reader of the table should know.
    """

    name: str
    model: str
    config: str
    settings: Mapping[str, Any]
    inputs: Callable[[], Inputs]
    masks: tuple[str, ...]
    heads: int | tuple[int, ...] = HEADS
    kv_heads: int | None = None
    width: int | tuple[int, ...] = WIDTH
    scale: float | str | None = None
    softcap: float | None = None
    sdpa: bool = True
    returned: tuple[int | None, ...] | None = None
    averaged: bool = False
    gain: float = 2.0
    agree: bool = True
    note: str = ""
    implementations: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "implementations", (EAGER, SDPA) if self.sdpa else (EAGER,))

    def of(self, what: str, call: int) -> Any:
        """Return a property of one attention."""
        value = getattr(self, what)
        return value[call] if isinstance(value, tuple) else value


@dataclass(frozen=True, eq=False)
class NotPlain:
    """An architecture without attention in the plain sense, or with some of it in parts.

    Attributes:
        recorded: how many attentions are in it that are plain: a product of queries and keys, a
            softmax, a product with values.
        said: what the error of an empty recording must name.
        note: what the model does instead.
    """

    name: str
    model: str
    config: str
    settings: Mapping[str, Any]
    inputs: Callable[[], Inputs]
    recorded: int
    said: tuple[str, ...]
    note: str


def build(entry: Architecture | NotPlain, implementation: str) -> nn.Module:
    """Return the model, with weights drawn so that its attention is peaked."""
    torch.manual_seed(0)
    config = getattr(transformers, entry.config)(**entry.settings)
    config._attn_implementation = implementation
    for part in ("text_config", "vision_config"):
        if hasattr(config, part):
            getattr(config, part)._attn_implementation = implementation
    model = getattr(transformers, entry.model)(config)
    return peaked(model, getattr(entry, "gain", 2.0)).eval()


@torch.no_grad()
def peaked(model: nn.Module, gain: float = 2.0, seed: int = 3) -> nn.Module:
    """Draw all parameters anew: the usual small ones give attention that is nearly flat.

    Then weights hardly depend on what attends to what, and a wrong head or key goes unnoticed.
    Vectors (biases, the gains of norms) keep their place and get noise, so that none is 0 or 1.
    """
    random = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        noise = torch.randn(parameter.shape, generator=random)
        if parameter.dim() > 1:
            parameter.copy_(noise * gain / parameter[0].numel() ** 0.5)
        else:
            parameter.add_(noise / 10)
    return model
