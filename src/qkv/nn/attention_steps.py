"""The steps of an attention layer: every head, rotary positions, and what joins the heads."""

from dataclasses import dataclass

from qkv.core.operations import Operation
from qkv.core.steps import Projection, Recipe, attend, project
from qkv.core.working import Working


@dataclass(frozen=True)
class Turn:
    """Rotary positions: names of the given cosines and sines, and how a row is turned.

    Attributes:
        cosines, sines: one row a token; fewer columns than a head has turn only its first values.
        operation: ROTATE_HALVES or ROTATE_PAIRS.
    """

    cosines: str
    sines: str
    operation: Operation


def rotate(w: Working, x: str, turn: Turn, name: str, symbol: str, section: str) -> str:
    """x cos + rotate(x) sin        Su et al. 2021, equation 34."""
    width, part = w.tensor(x).shape[-1], w.tensor(turn.cosines).shape[-1]
    rest, whole = [], f"{section}rotated {name}"
    if part < width:
        rest = [w.step(
            Operation.COLUMNS, f"{section}{name} left alone", x, symbol=f"{symbol}ₛ",
            selection=range(part, width), says="these values know nothing of the position",
        )]  # fmt: skip
        whole, symbol = f"{section}rotated part of the {name}", f"{symbol}ₜ"
        x = w.step(
            Operation.COLUMNS, f"{section}{name} that turn", x, symbol=symbol,
            selection=range(part), says="only these values turn with the position",
        )  # fmt: skip
    cos = w.step(
        Operation.MULTIPLY, f"{section}{name} × cosines", x, turn.cosines, symbol=f"{symbol} × cos",
        says="each pair (a, b) is a point in a plane; to turn it, take its cosine part …",
    )  # fmt: skip
    turned = w.step(
        turn.operation, f"{section}turned {name}", x, symbol=f"R({symbol})",
        says="the same points, turned by a right angle",
    )  # fmt: skip
    sin = w.step(
        Operation.MULTIPLY, f"{section}turned {name} × sines", turned, turn.sines,
        symbol=f"R({symbol}) × sin", says="… and the sine part of the turned one",
    )  # fmt: skip
    rotated = w.step(
        Operation.ADD, whole, cos, sin, symbol=f"{symbol}′",
        says="turned by an angle that grows with the position: a dot product of two such rows "
        "depends only on how far apart they stand",
    )  # fmt: skip
    if not rest:
        return rotated
    return w.step(
        Operation.CONCATENATE, f"{section}rotated {name}", rotated, *rest,
        symbol=f"{symbol.removesuffix('ₜ')}′", says="what turned, and what was left alone",
    )  # fmt: skip


def attention(
    w: Working,
    recipe: Recipe,
    x_q: str,
    x_k: str,
    x_v: str,
    masks: list[str | None],
    turn: Turn | None = None,
) -> dict[str, str]:
    """Write down every head of a layer and what joins them.

    Heads that share keys and values use those of the first head of their group.

    Args:
        w: where it is written; holds the encodings already.
        recipe: the layer.
        x_q, x_k, x_v: names of the encodings that queries, keys and values are made of.
        masks: names of M, one a head.
        turn: rotary positions of queries and keys.

    Returns:
        Name of each head's output by "head N", and of the layer's own by "output".
    """
    outputs: dict[str, str] = {}
    shared: dict[int, tuple[int, str, str]] = {}
    for head, mask in zip(recipe.heads, masks, strict=True):
        section, group = recipe.section(head), (head.number - 1) // recipe.group
        q = project(w, x_q, head.WQ, "queries", "Q", "WQ", section)
        q = q if turn is None else rotate(w, q, turn, "queries", "Q", section)
        if group not in shared:
            k = project(w, x_k, head.WK, "keys", "K", "WK", section)
            k = k if turn is None else rotate(w, k, turn, "keys", "K", section)
            v = project(w, x_v, head.WV, "values", "V", "WV", section)
            shared[group] = head.number, k, v
        owner, k, v = shared[group]
        outputs[f"head {head.number}"] = attend(
            w, q, k, v, mask, scale=recipe.scale, softcap=recipe.softcap, section=section,
            symbol="Q Kᵀ" if turn is None else "Q′ K′ᵀ",
            note="" if owner == head.number else f", which head {owner} made for all its group",
        )  # fmt: skip
    outputs["output"] = outputs[f"head {recipe.heads[-1].number}"]
    if recipe.joins:
        joined = list(outputs.values())[:-1]
        outputs["output"] = _joined(w, joined, recipe.output, recipe.within)
    return outputs


def _joined(w: Working, outputs: list[str], projection: Projection | None, within: str) -> str:
    if projection is None:
        return w.step(
            Operation.CONCATENATE, f"{within}concatenation/output", *outputs, symbol="concat",
            says="the heads' outputs side by side",
        )  # fmt: skip
    joined = w.step(
        Operation.CONCATENATE, f"{within}projection/concatenated", *outputs, symbol="H",
        says="the heads' outputs side by side",
    )  # fmt: skip
    return project(w, joined, projection, "output", "O", "WO", f"{within}projection/")
