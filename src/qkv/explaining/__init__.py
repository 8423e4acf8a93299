"""`qkv.explain`: a module, tensors, a sentence or a teacher's file becomes a Calculation."""

from typing import Any

from torch import Tensor, nn

from qkv.core.calculation import Calculation
from qkv.errors import ArgumentError
from qkv.explaining.tensors import explain_tensors


def explain(what: nn.Module | Tensor, *inputs: Any, **options: Any) -> Calculation:
    """Write every step of an attention calculation down.

        explain(module, x, tokens=["draw", "a", "map"])     the same as module.explain(x, …)
        explain(DecoderLayer(12, 2, 16), y, memory)         a whole layer
        explain(q, k, v, mask=Mask.causal())                queries, keys and values as they are

    Args:
        what: one of qkv's attention modules or of its layers, or q with the axes
            (batch…, heads, queries, d_k).
        inputs: what the module's `forward` takes, or k and v.
        options: `tokens` label the rows and `batch` picks one example, always. `mask` and
            `key_tokens` go with tensors, `Attention` and `MultiHeadAttention`, `head` with the
            last, `scale` and `softcap` with tensors, `memory_mask` and `memory_tokens` with
            layers that look at a memory, `angles` with what is rotary.

    Raises:
        ArgumentError: `what` is neither, or holds NaN or infinite numbers.
        ShapeError, MaskError: inputs that do not fit.
    """
    if isinstance(what, Tensor):
        if len(inputs) != 2:
            raise ArgumentError(
                f"explain got 1 + {len(inputs)} tensors; wanted q, k and v, or a module and its x"
            )
        return explain_tensors(what, *inputs, **options)
    method = getattr(what, "explain", None)
    if method is None:
        raise ArgumentError(
            f"explain got {type(what).__name__}, which cannot explain itself; wanted one of qkv's "
            f"modules (SelfAttention, MultiHeadAttention, …), or the tensors q, k, v"
        )
    calculation: Calculation = method(*inputs, **options)
    return calculation
