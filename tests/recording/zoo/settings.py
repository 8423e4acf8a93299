"""Small sizes, in the names of the configurations that share them, and masks in words."""

from typing import Any

import transformers

PADDED = ("padding",) * 2
CAUSAL = ("causal padding",) * 2
OPEN = ("",) * 2
BIASED = ("bias padding",) * 2
TRANSLATING = ("padding", "padding", *("causal", "padding") * 2)
"""Two layers of an encoder, then self- and cross-attention of the two layers of a decoder."""
LISTENING = ("", "", *("causal", "") * 2)

SCALED = "queries are scaled before heads are split"
"""What is then seen has a scale of 1."""

TEXT: dict[str, Any] = {
    "vocab_size": 101,
    "hidden_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 80,
}
GROUPED = TEXT | {"num_key_value_heads": 2, "max_position_embeddings": 64}
SHORT = TEXT | {"max_position_embeddings": 64}
MOE = {"num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2}
SENTENCES: dict[str, Any] = {
    "vocab_size": 101,
    "d_model": 48,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 80,
    "decoder_ffn_dim": 80,
    "max_position_embeddings": 64,
}
SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
T5 = {
    "vocab_size": 101,
    "d_model": 48,
    "d_kv": 12,
    "d_ff": 80,
    "num_layers": 2,
    "num_heads": 4,
    "decoder_start_token_id": 0,
}
PICTURE = TEXT | {"image_size": 32, "patch_size": 8}
PICTURE.pop("vocab_size")
SOUND = TEXT | {
    "vocab_size": 32,
    "conv_dim": (16, 16),
    "conv_stride": (5, 4),
    "conv_kernel": (10, 8),
    "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 4,
}
SWIN = {
    "image_size": 32,
    "patch_size": 4,
    "embed_dim": 16,
    "depths": [2, 1],
    "num_heads": [2, 4],
    "window_size": 4,
}
DETR = {
    "d_model": 48,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 80,
    "decoder_ffn_dim": 80,
    "num_queries": 5,
    "use_timm_backbone": False,
    "use_pretrained_backbone": False,
}


def resnet() -> transformers.ResNetConfig:
    return transformers.ResNetConfig(
        embedding_size=8,
        hidden_sizes=[8, 16],
        depths=[1, 1],
        out_features=["stage2"],
        layer_type="basic",
    )
