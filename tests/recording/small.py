"""Small random models, with weights large enough for peaked attention."""

from typing import TypeVar

import torch
import transformers
from torch import Tensor, nn

Model = TypeVar("Model", bound=nn.Module)

SIZES = {
    "vocab_size": 90,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
}


class TwoLayers(nn.Module):
    """The smallest model there is: two layers of two heads, in PyTorch's own modules."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.ModuleList(nn.MultiheadAttention(8, 2, batch_first=True) for _ in range(2))

    def forward(self, x: Tensor, hidden: Tensor | None = None) -> Tensor:
        for layer in self.layer:
            x = x + layer(x, x, x, key_padding_mask=hidden, need_weights=False)[0]
        return x


class Shared(nn.Module):
    """One attention that is called three times in a run."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(3):
            x = self.attention(x, x, x, need_weights=False)[0]
        return x


def peaked(model: Model) -> Model:
    """Draw weights that make attention peaked, the same for the same shapes."""
    drawn = torch.Generator().manual_seed(3)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            scale = 2 / parameter.shape[-1] ** 0.5
            parameter.data.copy_(torch.randn(parameter.shape, generator=drawn) * scale)
    return model.eval()


def bert(implementation: str = "sdpa") -> transformers.BertModel:
    config = transformers.BertConfig(**SIZES)
    config._attn_implementation = implementation
    return peaked(transformers.BertModel(config))


def llama(implementation: str = "sdpa") -> transformers.LlamaForCausalLM:
    config = transformers.LlamaConfig(**SIZES, num_key_value_heads=2, eos_token_id=None)
    config._attn_implementation = implementation
    return peaked(transformers.LlamaForCausalLM(config))


def mistral(implementation: str = "sdpa") -> transformers.MistralForCausalLM:
    config = transformers.MistralConfig(
        **SIZES, num_key_value_heads=2, eos_token_id=None, sliding_window=4
    )
    config._attn_implementation = implementation
    return peaked(transformers.MistralForCausalLM(config))


def bart(implementation: str = "sdpa") -> transformers.BartForConditionalGeneration:
    config = transformers.BartConfig(
        vocab_size=90, d_model=32, encoder_layers=1, decoder_layers=2, encoder_ffn_dim=48,
        decoder_ffn_dim=48, encoder_attention_heads=4, decoder_attention_heads=4,
        max_position_embeddings=64, forced_eos_token_id=None, eos_token_id=None, pad_token_id=1,
    )  # fmt: skip
    config._attn_implementation = implementation
    return peaked(transformers.BartForConditionalGeneration(config))


def written(model: transformers.GenerationMixin, ids: Tensor, steps: int, **how: object) -> Tensor:
    """Let a model write, always the likeliest token; the ids of prompt and text."""
    return model.generate(
        ids, min_new_tokens=steps, max_new_tokens=steps, do_sample=False, pad_token_id=0, **how
    )
