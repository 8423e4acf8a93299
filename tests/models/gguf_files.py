"""Small GGUF files, written by the package `gguf`, and Hugging Face's model of the same weights."""

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Kind

TINY = {
    "vocab_size": 97, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 96, "max_position_embeddings": 53,
    "rms_norm_eps": 1e-3, "rope_theta": 7_000.0,
}  # fmt: skip


def llama(**sizes: Any) -> Any:
    """Make Hugging Face's model of random weights."""
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = TINY | {"tie_word_embeddings": True} | sizes
    theta = sizes.pop("rope_theta")
    rope = {"rope_theta": theta, "rope_type": "default"}
    model = LlamaForCausalLM(LlamaConfig(**sizes, rope_parameters=rope)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.5)
    return model


def turned(weight: np.ndarray, heads: int) -> np.ndarray:
    """Rows of queries or keys as GGUF has them: the two of a turned pair side by side."""
    rows = [weight[h] for h in range(len(weight))]
    size = len(rows) // heads
    order = [
        head * size + half * (size // 2) + j
        for head in range(heads)
        for j in range(size // 2)
        for half in range(2)
    ]
    return np.stack([rows[i] for i in order])


NAMES = {
    "input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down", "model.embed_tokens": "token_embd", "model.norm": "output_norm",
    "lm_head": "output",
}  # fmt: skip


def write_llama(path: Path, model: Any, kind: Kind = Kind.F32, **settings: Any) -> dict[str, Any]:
    """Write a model as GGUF; return what its tensors are after having been quantised."""
    c = model.config
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(c.num_hidden_layers)
    writer.add_context_length(c.max_position_embeddings)
    writer.add_embedding_length(c.hidden_size)
    writer.add_feed_forward_length(c.intermediate_size)
    writer.add_head_count(c.num_attention_heads)
    writer.add_head_count_kv(c.num_key_value_heads)
    writer.add_layer_norm_rms_eps(c.rms_norm_eps)
    writer.add_rope_freq_base(c.rope_parameters["rope_theta"])
    writer.add_vocab_size(c.vocab_size)
    for key, value in settings.items():
        writer.add_key_value(key.replace("__", "."), value, gguf.GGUFValueType.get_type(value))
    heads = {"attn_q": c.num_attention_heads, "attn_k": c.num_key_value_heads}
    expected = {}
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and c.tie_word_embeddings:
            continue
        module, _, ending = name.rpartition(".")
        if module.startswith("model.layers."):
            _, _, number, inner = module.split(".", 3)
            theirs, at = NAMES[inner], f"blk.{number}."
        else:
            theirs, at = NAMES[module], ""
        values = tensor.float().numpy()
        if theirs in heads:
            values = turned(values, heads[theirs])
        stored = kind if values.ndim == 2 else Kind.F32
        data = gguf.quants.quantize(values, stored)
        raw = stored if stored not in {Kind.F32, Kind.F16} else None
        writer.add_tensor(f"{at}{theirs}.{ending}", data, raw_dtype=raw)
        back = gguf.quants.dequantize(data, stored)
        expected[name] = torch.from_numpy(np.array(back))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return expected
