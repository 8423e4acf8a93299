"""Maps written by hand, of unequal prime sizes: no model had a hand in them."""

from qkv.show.architecture import Architecture, CacheSize, Kind, Part, Tower


def norm(count: int, kind: Kind = Kind.ADD_NORM) -> Part:
    return Part(kind, kind.value, ("LayerNorm",), {"norm": "LayerNorm", "eps": 1e-5}, count)


def attention(kind: Kind, count: int) -> Part:
    sizes = {"n_embed": 23, "num_heads": 7, "kv_heads": 7, "d_k": 3, "d_v": 3, "bias": ""}
    return Part(kind, kind.value, ("7 heads, d_k 3",), sizes, count)


def translator(name: str = "A translator") -> Architecture:
    """Post-norm, two towers; each count of parameters stands once, but for those of norms."""
    through = Part(
        Kind.FEED_FORWARD, "feed-forward", ("23 → 89 → 23", "SiLU, gated"),
        {"n_embed": 23, "n_hidden": 89, "activation": "silu", "gated": True, "bias": False}, 6_141,
    )  # fmt: skip
    encoder = Tower(
        "encoder",
        (
            Part(Kind.INPUT, "text", ("61 tokens at most",), {"most": 61}),
            Part(
                Kind.EMBEDDING, "word embedding", ("10,007 tokens × 23", "times √23"),
                {"vocabulary": 10_007, "n_embed": 23, "scaled": True, "shared": False}, 230_161,
            ),
            Part(Kind.POSITIONS, "+ positions", ("sinusoidal, computed",), {"n_embed": 23}),
        ),
        (attention(Kind.SELF, 1_931), norm(46), through, norm(46)),
        5,
        (),
    )  # fmt: skip
    decoder = Tower(
        "decoder",
        encoder.below[:1],
        (
            attention(Kind.MASKED, 1_933), norm(46),
            attention(Kind.CROSS, 1_949), norm(46), through, norm(46),
        ),
        3,
        (
            norm(47, Kind.NORM),
            Part(
                Kind.OUTPUT, "logits", ("23 → 10,007 tokens", "a table of its own"),
                {"n_embed": 23, "vocabulary": 10_007, "tied": False, "bias": True}, 240_168,
            ),
        ),
    )  # fmt: skip
    return Architecture(name, "marian", (encoder, decoder), CacheSize(126, 127, 61))


def writer(name: str = "A writer", layers: int = 1) -> Architecture:
    """One tower, pre-norm."""
    layer = (norm(41, Kind.NORM), attention(Kind.MASKED, 1_933), Part(Kind.ADD, "add"))
    tower = Tower("decoder", translator().towers[0].below[:2], layer, layers, ())
    return Architecture(name, "llama", (tower,), CacheSize(42))


def numbers(architecture: Architecture) -> set[int]:
    """Return every whole number that a map has to show."""
    found = {architecture.parameters}
    for tower in architecture.towers:
        found |= {tower.layers, tower.layer_parameters, tower.parameters}
        for part in (*tower.below, *tower.layer, *tower.above):
            found |= {part.parameters}
            found |= {n for n in part.sizes.values() if type(n) is int}
    cache = architecture.cache
    if cache is not None:
        found |= {cache.values, cache.memory_values, cache.most or 0}
    return found - {0}
