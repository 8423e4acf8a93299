"""Encoder and decoder: from sentences, or from speech, to sentences."""

from tests.recording.zoo.architectures import Architecture
from tests.recording.zoo.inputs import spectrograms, spoken_frames, translations
from tests.recording.zoo.settings import LISTENING, SCALED, SENTENCES, SPECIAL, T5, TRANSLATING

_RELATIVE = ("bias padding", "bias padding", *("bias causal", "padding") * 2)

TRANSLATORS = (
    Architecture("T5", "T5Model", "T5Config", T5, translations, _RELATIVE, scale=1.0, gain=1.0),
    Architecture("mT5", "MT5Model", "MT5Config", T5, translations, _RELATIVE, scale=1.0, gain=1.0),
    Architecture(
        "UMT5", "UMT5Model", "UMT5Config", T5, translations, _RELATIVE, scale=1.0, gain=1.0
    ),
    Architecture(
        "Switch",
        "SwitchTransformersModel",
        "SwitchTransformersConfig",
        T5 | {"num_decoder_layers": 2, "num_experts": 2},
        translations,
        _RELATIVE,
        scale=1.0,
        sdpa=False,
        gain=1.0,
    ),
    Architecture("BART", "BartModel", "BartConfig", SENTENCES, translations, TRANSLATING, gain=1.5),
    Architecture("mBART", "MBartModel", "MBartConfig", SENTENCES, translations, TRANSLATING),
    Architecture("Pegasus", "PegasusModel", "PegasusConfig", SENTENCES, translations, TRANSLATING),
    Architecture(
        "Blenderbot", "BlenderbotModel", "BlenderbotConfig", SENTENCES, translations, TRANSLATING
    ),
    Architecture("M2M100", "M2M100Model", "M2M100Config", SENTENCES, translations, TRANSLATING),
    Architecture(
        "Marian", "MarianModel", "MarianConfig", SENTENCES | SPECIAL, translations, TRANSLATING
    ),
    Architecture(
        "ProphetNet",
        "ProphetNetModel",
        "ProphetNetConfig",
        {
            "vocab_size": 101,
            "hidden_size": 48,
            "num_encoder_layers": 2,
            "num_decoder_layers": 2,
            "num_encoder_attention_heads": 4,
            "num_decoder_attention_heads": 4,
            "encoder_ffn_dim": 80,
            "decoder_ffn_dim": 80,
            "max_position_embeddings": 64,
        },
        translations,
        ("padding", "padding", *("bias causal", "bias other", "padding") * 2),
        returned=(3, 6, None, None, 2, None, 5, None),
        scale=1.0,
        note=f"{SCALED}; of the encoder and of cross-attention it returns similarities",
        sdpa=False,
    ),
    Architecture(
        "Whisper",
        "WhisperModel",
        "WhisperConfig",
        SENTENCES
        | SPECIAL
        | {"max_source_positions": 20, "max_target_positions": 16, "num_mel_bins": 8},
        spectrograms,
        LISTENING,
        scale=1.0,
        note=SCALED,
    ),
    Architecture(
        "Speech2Text",
        "Speech2TextModel",
        "Speech2TextConfig",
        SENTENCES
        | SPECIAL
        | {
            "max_source_positions": 64,
            "max_target_positions": 16,
            "input_feat_per_channel": 8,
            "conv_channels": 16,
        },
        spoken_frames,
        LISTENING,
        sdpa=False,
    ),
)
