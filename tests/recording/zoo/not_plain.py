"""Architectures that mix tokens in other ways: what is not plain attention is not invented."""

from tests.recording.zoo.architectures import NotPlain
from tests.recording.zoo.inputs import (
    documents,
    large_pictures,
    pictures,
    prompts,
    sentences,
    whole_sentences,
)
from tests.recording.zoo.settings import TEXT

_LONG = TEXT | {"max_position_embeddings": 64}
_STATES = {"vocab_size": 101, "hidden_size": 48, "num_hidden_layers": 2}
_NONE = ("no softmax",)

NOT_PLAIN = (
    NotPlain(
        "Longformer",
        "LongformerModel",
        "LongformerConfig",
        TEXT | {"attention_window": 4, "pad_token_id": 1},
        sentences,
        0,
        ("softmax", "modeling_longformer.py"),
        "overlapping windows, cut out of the products and pasted together",
    ),
    NotPlain(
        "Reformer",
        "ReformerModel",
        "ReformerConfig",
        {
            "vocab_size": 101,
            "hidden_size": 48,
            "num_attention_heads": 4,
            "attention_head_size": 12,
            "attn_layers": ["local", "lsh"],
            "axial_pos_embds": False,
            "feed_forward_size": 80,
            "max_position_embeddings": 64,
            "local_attn_chunk_length": 4,
            "lsh_attn_chunk_length": 4,
            "num_hashes": 1,
            "num_buckets": 2,
            "is_decoder": False,
        },
        whole_sentences,
        2,
        (),
        "sorted by hashes and cut into chunks: each chunk is an attention",
    ),
    NotPlain(
        "BigBird, sparse",
        "BigBirdModel",
        "BigBirdConfig",
        TEXT | {"attention_type": "block_sparse", "block_size": 4, "num_random_blocks": 1},
        documents,
        8,
        (),
        "blocks put together by gathering: those at the ends are attentions",
    ),
    NotPlain(
        "Nyströmformer",
        "NystromformerModel",
        "NystromformerConfig",
        _LONG | {"num_landmarks": 4, "segment_means_seq_len": 8},
        whole_sentences,
        6,
        (),
        "a product of three softmaxes through landmarks",
    ),
    NotPlain(
        "YOSO",
        "YosoModel",
        "YosoConfig",
        _LONG,
        sentences,
        0,
        _NONE,
        "Bernoulli samples in the place of a softmax",
    ),
    NotPlain(
        "MRA",
        "MraModel",
        "MraConfig",
        _LONG,
        sentences,
        0,
        _NONE,
        "exponentials of blocks at two resolutions",
    ),
    NotPlain(
        "FNet", "FNetModel", "FNetConfig", TEXT, whole_sentences, 0, _NONE, "Fourier transforms"
    ),
    NotPlain(
        "Mamba",
        "MambaModel",
        "MambaConfig",
        _STATES | {"state_size": 8},
        prompts,
        0,
        _NONE,
        "a state-space model",
    ),
    NotPlain(
        "RWKV", "RwkvModel", "RwkvConfig", _STATES, whole_sentences, 0, _NONE, "a recurrent network"
    ),
    NotPlain(
        "PoolFormer",
        "PoolFormerModel",
        "PoolFormerConfig",
        {},
        pictures,
        0,
        _NONE,
        "averages of neighbours",
    ),
    NotPlain(
        "FocalNet",
        "FocalNetModel",
        "FocalNetConfig",
        {"embed_dim": 16, "depths": [1, 1, 1, 1]},
        large_pictures,
        0,
        _NONE,
        "convolutions and gates",
    ),
)
