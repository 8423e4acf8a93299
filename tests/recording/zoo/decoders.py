"""Decoders of text: every word looks at itself and those before it."""

from tests.recording.zoo.architectures import Architecture
from tests.recording.zoo.inputs import prompts
from tests.recording.zoo.settings import CAUSAL, GROUPED, MOE, SCALED, SHORT, TEXT

_WINDOW = ("causal window padding",) * 2
_HALF = ("causal window padding", "causal padding")
_ALIBI = ("bias causal padding",) * 2
_OLD = {"vocab_size": 101, "n_embd": 48, "n_layer": 2, "n_head": 4, "n_positions": 64}
_D12 = GROUPED | {"head_dim": 12}

DECODERS = (
    Architecture("GPT", "OpenAIGPTModel", "OpenAIGPTConfig", _OLD, prompts, CAUSAL, sdpa=False),
    Architecture("GPT-2", "GPT2Model", "GPT2Config", _OLD, prompts, CAUSAL),
    Architecture(
        "GPT-Neo",
        "GPTNeoModel",
        "GPTNeoConfig",
        {
            "vocab_size": 101,
            "hidden_size": 48,
            "num_layers": 2,
            "num_heads": 4,
            "attention_types": [[["global", "local"], 1]],
            "window_size": 4,
            "max_position_embeddings": 64,
        },
        prompts,
        ("causal padding", "causal window padding"),
        scale=1.0,
        sdpa=False,
    ),
    Architecture("GPT-J", "GPTJModel", "GPTJConfig", _OLD | {"rotary_dim": 8}, prompts, CAUSAL),
    Architecture("GPT-NeoX", "GPTNeoXModel", "GPTNeoXConfig", SHORT, prompts, CAUSAL),
    Architecture(
        "GPT-BigCode", "GPTBigCodeModel", "GPTBigCodeConfig", _OLD, prompts, CAUSAL, kv_heads=1
    ),
    Architecture(
        "CodeGen",
        "CodeGenModel",
        "CodeGenConfig",
        _OLD | {"rotary_dim": 8, "n_ctx": 64},
        prompts,
        CAUSAL,
        sdpa=False,
    ),
    Architecture(
        "CTRL", "CTRLModel", "CTRLConfig", _OLD | {"dff": 80}, prompts, CAUSAL, sdpa=False
    ),
    Architecture(
        "XGLM",
        "XGLMModel",
        "XGLMConfig",
        {"vocab_size": 101, "d_model": 48, "num_layers": 2, "attention_heads": 4, "ffn_dim": 80},
        prompts,
        CAUSAL,
        sdpa=False,
        scale=1.0,
        note=SCALED,
    ),
    Architecture("BioGPT", "BioGptModel", "BioGptConfig", SHORT, prompts, CAUSAL),
    Architecture(
        "OPT",
        "OPTModel",
        "OPTConfig",
        SHORT | {"ffn_dim": 80, "word_embed_proj_dim": 48},
        prompts,
        CAUSAL,
        scale=1.0,
        note=SCALED,
    ),
    Architecture(
        "BLOOM",
        "BloomModel",
        "BloomConfig",
        {"vocab_size": 101, "hidden_size": 48, "n_layer": 2, "n_head": 4},
        prompts,
        _ALIBI,
        sdpa=False,
        note="ALiBi",
    ),
    Architecture(
        "MPT",
        "MptModel",
        "MptConfig",
        {"vocab_size": 101, "d_model": 48, "n_layers": 2, "n_heads": 4, "max_seq_len": 64},
        prompts,
        _ALIBI,
        sdpa=False,
        note="ALiBi",
    ),
    Architecture("Falcon", "FalconModel", "FalconConfig", TEXT, prompts, CAUSAL, kv_heads=1),
    Architecture(
        "Falcon, ALiBi",
        "FalconModel",
        "FalconConfig",
        TEXT | {"alibi": True, "new_decoder_architecture": False},
        prompts,
        _ALIBI,
        kv_heads=1,
        agree=False,
        note="its eager path adds the bias twice: its two paths differ by 0.06, ours follows each",
    ),
    Architecture("Llama", "LlamaModel", "LlamaConfig", GROUPED, prompts, CAUSAL, kv_heads=2),
    Architecture(
        "Mistral",
        "MistralModel",
        "MistralConfig",
        GROUPED | {"sliding_window": 4},
        prompts,
        _WINDOW,
        kv_heads=2,
    ),
    Architecture(
        "Mixtral", "MixtralModel", "MixtralConfig", GROUPED | MOE, prompts, CAUSAL, kv_heads=2
    ),
    Architecture("Qwen2", "Qwen2Model", "Qwen2Config", GROUPED, prompts, CAUSAL, kv_heads=2),
    Architecture("Qwen3", "Qwen3Model", "Qwen3Config", _D12, prompts, CAUSAL, kv_heads=2),
    Architecture(
        "Qwen3 MoE",
        "Qwen3MoeModel",
        "Qwen3MoeConfig",
        _D12 | MOE | {"moe_intermediate_size": 16},
        prompts,
        CAUSAL,
        kv_heads=2,
    ),
    Architecture("Gemma", "GemmaModel", "GemmaConfig", _D12, prompts, CAUSAL, kv_heads=2),
    Architecture(
        "Gemma 2",
        "Gemma2Model",
        "Gemma2Config",
        _D12 | {"sliding_window": 4, "attn_logit_softcapping": 5.0, "query_pre_attn_scalar": 7},
        prompts,
        _HALF,
        kv_heads=2,
        scale=7**-0.5,
        softcap=5.0,
        sdpa=False,
    ),
    Architecture(
        "Gemma 3",
        "Gemma3TextModel",
        "Gemma3TextConfig",
        _D12 | {"sliding_window": 4, "query_pre_attn_scalar": 12},
        prompts,
        _WINDOW,
        kv_heads=2,
    ),
    Architecture("Phi", "PhiModel", "PhiConfig", SHORT, prompts, CAUSAL),
    Architecture(
        "Phi-3",
        "Phi3Model",
        "Phi3Config",
        GROUPED | {"pad_token_id": 0},
        prompts,
        CAUSAL,
        kv_heads=2,
    ),
    Architecture(
        "StableLM",
        "StableLmModel",
        "StableLmConfig",
        GROUPED
        | {
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 1e4,
                "partial_rotary_factor": 0.5,
            }
        },
        prompts,
        CAUSAL,
        kv_heads=2,
    ),
    Architecture(
        "StarCoder2", "Starcoder2Model", "Starcoder2Config", GROUPED, prompts, CAUSAL, kv_heads=2
    ),
    Architecture("Cohere", "CohereModel", "CohereConfig", GROUPED, prompts, CAUSAL, kv_heads=2),
    Architecture("OLMo 2", "Olmo2Model", "Olmo2Config", GROUPED, prompts, CAUSAL, kv_heads=2),
    Architecture(
        "Granite",
        "GraniteModel",
        "GraniteConfig",
        GROUPED | {"attention_multiplier": 0.2},
        prompts,
        CAUSAL,
        kv_heads=2,
        scale=0.2,
    ),
    Architecture(
        "Nemotron", "NemotronModel", "NemotronConfig", GROUPED, prompts, CAUSAL, kv_heads=2
    ),
    Architecture(
        "GLM", "GlmModel", "GlmConfig", _D12 | {"pad_token_id": 0}, prompts, CAUSAL, kv_heads=2
    ),
    Architecture("Persimmon", "PersimmonModel", "PersimmonConfig", SHORT, prompts, CAUSAL),
    Architecture(
        "SmolLM3",
        "SmolLM3Model",
        "SmolLM3Config",
        GROUPED | {"pad_token_id": 0},
        prompts,
        CAUSAL,
        kv_heads=2,
    ),
    Architecture(
        "gpt-oss",
        "GptOssModel",
        "GptOssConfig",
        _D12 | MOE | {"sliding_window": 4},
        prompts,
        _HALF,
        kv_heads=2,
        sdpa=False,
        note="a learned sink in every head",
    ),
    Architecture(
        "DeepSeek V3",
        "DeepseekV3Model",
        "DeepseekV3Config",
        SHORT
        | {
            "num_key_value_heads": 4,
            "q_lora_rank": 24,
            "kv_lora_rank": 16,
            "qk_rope_head_dim": 8,
            "qk_nope_head_dim": 8,
            "v_head_dim": 12,
            "n_routed_experts": 4,
            "num_experts_per_tok": 2,
            "n_group": 1,
            "topk_group": 1,
            "moe_intermediate_size": 16,
            "first_k_dense_replace": 1,
        },
        prompts,
        CAUSAL,
        width=16,
        note="latent attention: values are narrower than keys",
    ),
    Architecture(
        "DiffLlama",
        "DiffLlamaModel",
        "DiffLlamaConfig",
        GROUPED,
        prompts,
        CAUSAL * 2,
        returned=(0, 2),
        kv_heads=2,
    ),
)
