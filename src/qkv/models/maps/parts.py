"""The parts of a map, each read from its module: attention, feed-forward network, norm, tables."""

from collections.abc import Iterator

from torch import Tensor, nn

from qkv.nn.attention import MultiHeadAttention
from qkv.nn.embedding import PositionalEncoding, WordEmbedding
from qkv.nn.feed_forward import FeedForward
from qkv.nn.layers import DecoderLayer, EncoderLayer
from qkv.show.architecture import Kind, Part, Size, counted

ACTIVATIONS = {"gelu": "GELU", "gelu_tanh": "GELU by tanh", "relu": "ReLU", "silu": "SiLU"}


def parameters(*parts: nn.Module | nn.Parameter | None) -> int:
    """Count the parameters of modules, and single ones."""
    count = 0
    for part in parts:
        inner = part.parameters() if isinstance(part, nn.Module) else (part,)
        count += sum(0 if parameter is None else parameter.numel() for parameter in inner)
    return count


def layer_parts(layer: EncoderLayer, masked: bool) -> Iterator[Part]:
    """Go through one layer from the bottom upwards, its norms where they stand."""
    cross = layer.cross if isinstance(layer, DecoderLayer) else None
    cross_norm = layer.cross_norm if isinstance(layer, DecoderLayer) else None
    own = Kind.MASKED if masked else Kind.SELF
    yield from _around(layer, layer.attention_norm, attention(layer.attention, own))
    if cross is not None and cross_norm is not None:
        yield from _around(layer, cross_norm, attention(cross, Kind.CROSS))
    yield from _around(layer, layer.feed_forward_norm, feed_forward(layer.feed_forward))


def _around(layer: EncoderLayer, norm: nn.Module, part: Part) -> Iterator[Part]:
    """norm(x + part(x)), or x + part(norm(x)) where the norm comes first"""
    if layer.norm_first:
        yield normalised(norm)
    yield part
    yield Part(Kind.ADD, "add") if layer.norm_first else normalised(norm, Kind.ADD_NORM)


def normalised(norm: nn.Module, kind: Kind = Kind.NORM) -> Part:
    """Return the part of a norm, or of an addition with a norm."""
    name = type(norm).__name__
    sizes: dict[str, Size] = {"norm": name, "eps": float(getattr(norm, "eps", None) or 0.0)}
    return Part(kind, kind.value, (name,), sizes, parameters(norm))


def attention(module: MultiHeadAttention, kind: Kind) -> Part:
    """Return the part of an attention."""
    wide = (
        f"d_k {module.d_k}" if module.d_k == module.d_v else f"d_k {module.d_k}, d_v {module.d_v}"
    )
    says = [f"{_several(module.num_heads, 'head')}, {wide}"]
    sizes: dict[str, Size] = {
        "n_embed": module.n_embed, "num_heads": module.num_heads, "kv_heads": module.kv_heads,
        "d_k": module.d_k, "d_v": module.d_v,
    }  # fmt: skip
    if module.kv_heads != module.num_heads:
        says.append(_several(module.kv_heads, "key-value head"))
    if module.rotary is not None:
        says.append(f"rotary positions, base {module.rotary.base:,.0f}")
        if module.rotary.turned < module.d_k:
            says.append(f"of the first {module.rotary.turned} values")
        sizes |= {"rotary_base": module.rotary.base, "rotary_values": module.rotary.turned}
    for name in ("scale", "softcap"):
        number = getattr(module, name)
        if number is not None:
            says.append(f"{name} {number:g}")
            sizes[name] = float(number)
    sizes["bias"] = " ".join(name for name in ("WQ", "WK", "WV", "WO") if name in module.biased)
    return Part(kind, kind.value, tuple(says), sizes, parameters(module))


def feed_forward(module: FeedForward) -> Part:
    """Return the part of a feed-forward network."""
    n_hidden, n_embed = module.W1.weight.shape
    bend = ACTIVATIONS.get(module.activation, module.activation)
    through = f"{counted(n_embed)} → {counted(n_hidden)} → {counted(n_embed)}"
    sizes: dict[str, Size] = {
        "n_embed": n_embed, "n_hidden": n_hidden, "activation": module.activation,
        "gated": module.gated, "bias": module.W1.bias is not None,
    }  # fmt: skip
    says = (through, f"{bend}, gated" if module.gated else bend)
    return Part(Kind.FEED_FORWARD, Kind.FEED_FORWARD.value, says, sizes, parameters(module))


def words(module: WordEmbedding | nn.Embedding, *, again: str | None = None) -> Part:
    """Return the part of a table of words; `again` says where it was counted before."""
    rows, width = module.weight.shape
    says = [f"{counted(rows)} tokens × {counted(width)}"]
    scaled = isinstance(module, WordEmbedding) and module.scale != 1.0
    if scaled:
        says.append(f"times √{width}")
    if again is not None:
        says.append(f"the {again}'s table, shared")
    sizes: dict[str, Size] = {
        "vocabulary": rows, "n_embed": width, "scaled": scaled, "shared": again is not None
    }  # fmt: skip
    count = 0 if again is not None else parameters(module)
    return Part(Kind.EMBEDDING, "word embedding", tuple(says), sizes, count)


def positions(
    module: PositionalEncoding, *, says: str = "learned", again: str | None = None
) -> Part:
    """Return the part of positions that are added.

    Args:
        module: what adds them.
        says: how its table came to be, where it has one.
        again: where the table was counted before.
    """
    learned = module.weight is not None
    sizes: dict[str, Size] = {"learned": learned, "n_embed": module.n_embed}
    lines = ["sinusoidal, computed"]
    if module.weight is not None:
        rows = module.weight.shape[0]
        lines = [says, f"{counted(rows)} positions × {counted(module.n_embed)}"]
        lines += [] if again is None else [f"the {again}'s table, shared"]
        sizes["rows"] = rows
    if module.most is not None:
        sizes["most"] = module.most
    count = 0 if again is not None else parameters(module)
    return Part(Kind.POSITIONS, "+ positions", tuple(lines), sizes, count)


def table(name: str, weight: Tensor, what: str, kind: Kind = Kind.POSITIONS) -> Part:
    """Return the part of a learned table that is added."""
    rows, width = weight.shape[-2:]
    says = ("learned", f"{counted(rows)} {what} × {counted(width)}")
    sizes: dict[str, Size] = {"learned": True, "rows": rows, "n_embed": width}
    return Part(kind, name, says, sizes, weight.numel())


def _several(count: int, what: str) -> str:
    return f"{counted(count)} {what}" if count == 1 else f"{counted(count)} {what}s"
