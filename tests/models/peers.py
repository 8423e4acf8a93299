"""Hugging Face's models with random weights, saved as folders that ours are loaded from."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

SIZES = {
    "gpt2": {
        "vocab_size": 101, "n_positions": 61, "n_embd": 21, "n_layer": 3, "n_head": 3,
        "n_inner": 37, "bos_token_id": 1, "eos_token_id": 2,
    },
    "llama": {
        "vocab_size": 101, "hidden_size": 42, "num_hidden_layers": 3, "num_attention_heads": 6,
        "num_key_value_heads": 2, "head_dim": 14, "intermediate_size": 37,
        "max_position_embeddings": 61, "rope_theta": 500.0, "bos_token_id": 1, "eos_token_id": 2,
    },
    "marian": {
        "vocab_size": 101, "d_model": 21, "encoder_layers": 3, "decoder_layers": 2,
        "encoder_attention_heads": 3, "decoder_attention_heads": 7, "encoder_ffn_dim": 37,
        "decoder_ffn_dim": 29, "max_position_embeddings": 61, "pad_token_id": 100,
        "decoder_start_token_id": 100, "eos_token_id": 2, "forced_eos_token_id": 2,
        "scale_embedding": True, "activation_function": "swish",
    },
    "vit": {
        "hidden_size": 21, "num_hidden_layers": 3, "num_attention_heads": 3,
        "intermediate_size": 37, "image_size": 20, "patch_size": 5, "num_channels": 2,
        "num_labels": 11,
    },
}  # fmt: skip
CLASSES = {
    "gpt2": ("GPT2Config", "GPT2LMHeadModel"),
    "llama": ("LlamaConfig", "LlamaForCausalLM"),
    "marian": ("MarianConfig", "MarianMTModel"),
    "vit": ("ViTConfig", "ViTForImageClassification"),
}


def peer(family: str, folder: Path, **sizes: Any) -> Any:
    """Save a random model of Hugging Face's and return it, in float64."""
    import transformers

    config_class, model_class = (getattr(transformers, name) for name in CLASSES[family])
    model = getattr(transformers, model_class.__name__)(config_class(**(SIZES[family] | sizes)))
    model = model.double().eval()
    with torch.no_grad():  # also what starts as 0 or 1, which would hide its misuse
        for name, parameter in model.named_parameters():
            if "embed_positions" not in name:
                parameter.normal_(std=0.35)
    if hasattr(model, "final_logits_bias"):
        model.final_logits_bias.normal_()
    _normalise_in_float64(model)
    if model.can_generate():
        model.generation_config.eos_token_id = None  # a text goes on to its length
        model.generation_config.forced_eos_token_id = None
    model.save_pretrained(folder)
    return model


def close(ours: Tensor, theirs: Tensor, within: float) -> None:
    """Compare in float64; `within` counts in units of the largest number, where that is over 1."""
    scale = max(1.0, float(theirs.abs().max()))
    torch.testing.assert_close(ours.double(), theirs.double(), rtol=0, atol=within * scale)


def _normalise_in_float64(model: torch.nn.Module) -> None:
    """Hugging Face's RMSNorm rounds to float32 even in float64: a reference has to be exact."""
    for module in model.modules():
        if type(module).__name__ == "LlamaRMSNorm":
            eps, weight = module.variance_epsilon, module.weight
            module.forward = lambda x, w=weight, e=eps: (
                x / (x.square().mean(-1, keepdim=True) + e).sqrt() * w
            )
