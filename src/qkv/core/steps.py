"""The steps of attention, written down one by one; proved equal to the fused path by test."""

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from qkv.core.operations import Operation
from qkv.core.working import Working


@dataclass(frozen=True, eq=False)
class Projection:
    """X Wᵀ + b, the weight as PyTorch stores it: out × in."""

    weight: Float[Tensor, "outputs inputs"]
    bias: Float[Tensor, "outputs"] | None = None


@dataclass(frozen=True, eq=False)
class Head:
    """The projections of one head, and its number in a person's count (from 1)."""

    number: int
    WQ: Projection
    WK: Projection
    WV: Projection


@dataclass(frozen=True, eq=False)
class Recipe:
    """All that an attention layer does to its encodings.

    Attributes:
        heads: one or more.
        output: the fully connected layer over the concatenated heads, if there is one.
        joins: whether the heads' outputs are joined; False shows single heads as they are.
        scale: what the similarities are multiplied by; None divides by √d_k.
        softcap: c of c · tanh(scaled / c), or None.
        group: heads in a row that share keys and values.
        within: prefix of the sections, where a layer has several attentions: "cross-attention/".
    """

    heads: tuple[Head, ...]
    output: Projection | None = None
    joins: bool = False
    scale: float | None = None
    softcap: float | None = None
    group: int = 1
    within: str = ""

    @property
    def inputs(self) -> str:
        """Prefix of the names of what is given: a section of its own beside several heads."""
        return "inputs/" if self.joins else ""

    def section(self, head: Head) -> str:
        """Prefix of the names of a head's steps."""
        return f"{self.within}head {head.number}/" if self.joins else ""


def attend(
    w: Working,
    q: str,
    k: str,
    v: str,
    mask: str | None = None,
    *,
    scale: float | None = None,
    softcap: float | None = None,
    section: str = "",
    symbol: str = "Q Kᵀ",
    note: str = "",
) -> str:
    """softmax(Q Kᵀ / √d_k + M) V        Vaswani et al. 2017, equation 1.

    `note` follows the sentences on keys and values: whose they are, where heads share them.
    """
    x = logits(
        w, q, k, mask, scale=scale, softcap=softcap, section=section, symbol=symbol, note=note
    )
    weights = softmax(w, x, section=section)
    return w.step(
        Operation.PRODUCT, f"{section}output", weights, v, symbol="P V",
        says=f"each row mixes the values by its weights{note}",
    )  # fmt: skip


def logits(
    w: Working,
    q: str,
    k: str,
    mask: str | None = None,
    *,
    scale: float | None = None,
    softcap: float | None = None,
    section: str = "",
    symbol: str = "Q Kᵀ",
    note: str = "",
) -> str:
    """cap(Q Kᵀ / √d_k) + M: what the softmax is taken of."""
    similarities = w.step(
        Operation.PRODUCT_TRANSPOSED, f"{section}similarities", q, k, symbol=symbol,
        says=f"how alike each query and each key are: their dot product{note}",
    )  # fmt: skip
    x = _scaled(w, similarities, w.tensor(q).shape[-1], scale, section)
    if softcap is not None:
        x = _capped(w, x, softcap, section)
    if mask is not None:
        x = w.step(
            Operation.ADD, f"{section}masked", x, mask, symbol="S + M",
            says="−∞ where a token may not look",
        )  # fmt: skip
    return x


def softmax(w: Working, x: str, *, section: str = "", symbol: str = "P") -> str:
    """exp(x − max) / Σ exp(x − max), row by row; a row of −∞ gives 0."""
    maximum = w.step(
        Operation.ROW_MAXIMUM, f"{section}maximum", x, symbol="m",
        says="the largest of each row; taking it away changes no share and keeps e^x small",
    )  # fmt: skip
    exponentials = w.step(
        Operation.EXPONENTIAL, f"{section}exponentials", x, maximum, symbol="U",
        says="e^x is always positive, and 0 where a token may not look",
    )  # fmt: skip
    total = w.step(
        Operation.ROW_SUM, f"{section}sums", exponentials, symbol="z", says="the sum of each row"
    )
    return w.step(
        Operation.DIVIDE, f"{section}weights", exponentials, total, symbol=symbol,
        says="how much of each value goes in; every row sums to 1",
    )  # fmt: skip


def project(
    w: Working, x: str, projection: Projection, name: str, symbol: str, weight: str, section: str
) -> str:
    """X Wᵀ + b, the weight printed the way the sum runs on paper: as Wᵀ."""
    features = [str(i + 1) for i in range(projection.weight.shape[0])]
    given = w.given(
        f"{section}{weight}", projection.weight, symbol=weight, rows=features,
        says=f"changes in training; makes the {name}",
    )  # fmt: skip
    bare = name if projection.bias is None else f"{name} before bias"
    product = w.step(
        Operation.PRODUCT_TRANSPOSED, f"{section}{bare}", x, given,
        symbol=symbol if projection.bias is None else f"{symbol}₀",
        says=f"row by row, times the weights of the {name}",
    )  # fmt: skip
    if projection.bias is None:
        return product
    letter = f"b{weight.removeprefix('W')}"
    bias = w.given(
        f"{section}{letter}", projection.bias[None], symbol=letter, rows=["bias"], columns=features
    )
    return w.step(
        Operation.ADD, f"{section}{name}", product, bias, symbol=symbol,
        says="the bias is added to every row",
    )  # fmt: skip


def _scaled(w: Working, x: str, d_k: int, scale: float | None, section: str) -> str:
    if scale is None:
        root = w.constant(
            f"{section}√d_k", d_k**0.5, symbol="√d_k", like=x,
            says=f"the root of the {d_k} values of a key",
        )  # fmt: skip
        return w.step(
            Operation.DIVIDE, f"{section}scaled", x, root, symbol="S",
            says="brings the spread of the dot products back to 1",
        )  # fmt: skip
    factor = w.constant(f"{section}scale", scale, symbol="scale", like=x)
    return w.step(
        Operation.MULTIPLY, f"{section}scaled", x, factor, symbol="S", says="times the scale"
    )


def _capped(w: Working, x: str, softcap: float, section: str) -> str:
    cap = w.constant(f"{section}cap", softcap, symbol="c", like=x)
    share = w.step(Operation.DIVIDE, f"{section}share of cap", x, cap, symbol="S / c")
    bent = w.step(Operation.TANH, f"{section}bent", share, symbol="tanh(S / c)")
    return w.step(
        Operation.MULTIPLY, f"{section}capped", bent, cap, symbol="S",
        says="never beyond the cap",
    )  # fmt: skip
