"""The families of models by name: which transformer each is, and what it is for."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Kin:
    """A family that a folder or a file may hold.

    Attributes:
        pattern: which of the three transformers it is, if it is one.
        about: what goes in and what comes out, and who else is built so.
    """

    pattern: str
    about: str


FAMILIES = {
    "bert": Kin("encoder only", "text in, embeddings out; sentence encoders such as MiniLM"),
    "gpt2": Kin("decoder only", "text in, text on; GPT-2 in all its sizes"),
    "llama": Kin("decoder only", "text in, text on; Llama, SmolLM2"),
    "marian": Kin("encoder and decoder", "text in, its translation out; OPUS-MT"),
    "vit": Kin("encoder only", "a picture in, what it shows out; proved on random weights only"),
    "whisper": Kin("encoder and decoder", "sound in, text out; Whisper"),
    "qkv_captioner": Kin(
        "encoder and decoder", "a small picture in, a sentence out; by qkv train caption"
    ),
    "qkv_classifier": Kin("encoder only", "text in, its label out; by qkv train classify"),
    "qkv_recurrent": Kin(
        "no transformer", "text in, its translation out, word by word; by qkv train translate"
    ),
    "qkv_words": Kin("no transformer", "words in, the next one out; by qkv train words"),
}
"""The families by the `model_type` of their config.json."""
