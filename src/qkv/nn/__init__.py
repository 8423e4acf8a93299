"""Modules: attention, and the transformers that are built of it.

    from qkv.nn import EncoderDecoder, PositionalEncoding, WordEmbedding

One body each, observed or not. They import `core` and nothing above. Names are imported when they
are first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from qkv.nn.alignment import AdditiveAttention as AdditiveAttention
    from qkv.nn.alignment import DotAttention as DotAttention
    from qkv.nn.attention import Attention as Attention
    from qkv.nn.attention import MaskedSelfAttention as MaskedSelfAttention
    from qkv.nn.attention import MultiHeadAttention as MultiHeadAttention
    from qkv.nn.attention import SelfAttention as SelfAttention
    from qkv.nn.bias import RelativeBias as RelativeBias
    from qkv.nn.cache import KeyValueCache as KeyValueCache
    from qkv.nn.embedding import PositionalEncoding as PositionalEncoding
    from qkv.nn.embedding import WordEmbedding as WordEmbedding
    from qkv.nn.feed_forward import FeedForward as FeedForward
    from qkv.nn.layers import DecoderLayer as DecoderLayer
    from qkv.nn.layers import EncoderLayer as EncoderLayer
    from qkv.nn.norm import RMSNorm as RMSNorm
    from qkv.nn.recurrent import RecurrentDecoder as RecurrentDecoder
    from qkv.nn.recurrent import RecurrentEncoder as RecurrentEncoder
    from qkv.nn.transformer import Decoder as Decoder
    from qkv.nn.transformer import Encoder as Encoder
    from qkv.nn.transformer import EncoderDecoder as EncoderDecoder

_HOMES = {
    "AdditiveAttention": "alignment",
    "Attention": "attention",
    "Decoder": "transformer",
    "DecoderLayer": "layers",
    "DotAttention": "alignment",
    "Encoder": "transformer",
    "EncoderDecoder": "transformer",
    "EncoderLayer": "layers",
    "FeedForward": "feed_forward",
    "KeyValueCache": "cache",
    "MaskedSelfAttention": "attention",
    "MultiHeadAttention": "attention",
    "PositionalEncoding": "embedding",
    "RMSNorm": "norm",
    "RecurrentDecoder": "recurrent",
    "RecurrentEncoder": "recurrent",
    "RelativeBias": "bias",
    "SelfAttention": "attention",
    "WordEmbedding": "embedding",
}

__all__ = sorted(_HOMES)  # noqa: PLE0605 (the names above, once)


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'qkv.nn' has no attribute {name!r}")
    return getattr(import_module(f"qkv.nn.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return list(__all__)
