"""Attention you can build, see and prove.

    from qkv import SelfAttention
    attention = SelfAttention(n_embed=2)
    print(attention.explain(x, tokens=["draw", "a", "map"]))

Names are imported when they are first used, so `import qkv` costs next to nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from qkv.core.calculation import Calculation as Calculation
    from qkv.core.fused import attention as attention
    from qkv.core.mask import Mask as Mask
    from qkv.explaining import explain as explain
    from qkv.models import load as load
    from qkv.nn.attention import Attention as Attention
    from qkv.nn.attention import MaskedSelfAttention as MaskedSelfAttention
    from qkv.nn.attention import MultiHeadAttention as MultiHeadAttention
    from qkv.nn.attention import SelfAttention as SelfAttention
    from qkv.recording.recording import Recording as Recording
    from qkv.recording.watching import watch as watch
    from qkv.weights.matrix import Weights as Weights

_HOMES = {
    "Attention": "qkv.nn.attention",
    "Calculation": "qkv.core.calculation",
    "Mask": "qkv.core.mask",
    "MaskedSelfAttention": "qkv.nn.attention",
    "MultiHeadAttention": "qkv.nn.attention",
    "Recording": "qkv.recording.recording",
    "SelfAttention": "qkv.nn.attention",
    "Weights": "qkv.weights.matrix",
    "attention": "qkv.core.fused",
    "explain": "qkv.explaining",
    "load": "qkv.models",
    "watch": "qkv.recording.watching",
}

__all__ = sorted(_HOMES)  # noqa: PLE0605 (the names above, once)
__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'qkv' has no attribute {name!r}; it has {', '.join(_HOMES)}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
