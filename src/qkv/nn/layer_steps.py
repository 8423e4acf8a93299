"""The steps of a transformer layer around its attention: norms, residuals, feed-forward."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import pi, sqrt

from jaxtyping import Float
from torch import Tensor

from qkv.core.operations import Operation
from qkv.core.steps import Projection, project
from qkv.core.working import Working


@dataclass(frozen=True, eq=False)
class Norm:
    """A normalisation of every token by itself.

    Attributes:
        eps: what keeps the root away from 0.
        gain, shift: γ and β, or None.
        centred: whether the mean is taken away first; LayerNorm does, RMSNorm does not.
    """

    eps: float
    gain: Float[Tensor, "n_embed"] | None
    shift: Float[Tensor, "n_embed"] | None
    centred: bool


@dataclass(frozen=True, eq=False)
class FeedForward:
    """W2 f(W1 x); gated: W2 (f(W1 x) · W3 x).

    Attributes:
        W1, W2, W3: the projections; W3 only where it is gated.
        activation: f, by its name in `ACTIVATIONS`.
    """

    W1: Projection
    W2: Projection
    W3: Projection | None
    activation: str


def residual(w: Working, x: str, change: str, symbol: str, section: str) -> str:
    """x + change."""
    says = "what came in is kept, and only changed by so much"
    return w.step(Operation.ADD, f"{section}residual", x, change, symbol=symbol, says=says)


def normalise(w: Working, x: str, norm: Norm, symbol: str, section: str) -> str:
    """Write a norm down.

    (x − mean) / √(variance + ε) · γ + β        Ba et al. 2016, equation 4
    x / √(mean of x² + ε) · γ                   Zhang and Sennrich 2019, equation 4
    """
    s = _Section(w, section)
    letter = "σ" if norm.centred else "RMS"
    if norm.centred:
        mean = s(Operation.ROW_MEAN, "mean", x, "μ", "the mean of each token's values")
        x = s(Operation.SUBTRACT, "centred", x, mean, "C", "every token's values now sum to 0")
    squares = s(Operation.SQUARE, "squares", x, "D", "far from 0 counts, above or below")
    name = "variance" if norm.centred else "mean square"
    spread = s(Operation.ROW_MEAN, name, squares, f"{letter}²", "how far the values are from 0")
    why = f"{norm.eps:g}, so that nothing is divided by 0"
    eps = w.constant(f"{section}ε", norm.eps, symbol="ε", like=x, says=why)
    safe = s(Operation.ADD, f"{name} + ε", spread, eps, f"{letter}² + ε", "above 0")
    root = w.step(
        Operation.SQUARE_ROOT, f"{section}root", safe, symbol=letter, columns=[letter],
        says="back to the scale of the values",
    )  # fmt: skip
    unit = "the mean of each token's squares is now 1"
    if norm.gain is None:
        return s(Operation.DIVIDE, "output", x, root, symbol, unit)
    x = s(Operation.DIVIDE, "normalised", x, root, "Z", unit)
    gain = s.row("γ", norm.gain, "changes in training")
    if norm.shift is None:
        return s(Operation.MULTIPLY, "output", x, gain, symbol, "every column has its own size")
    x = s(Operation.MULTIPLY, "times γ", x, gain, "Z × γ", "every column has its own size …")
    shift = s.row("β", norm.shift, "changes in training")
    return s(Operation.ADD, "output", x, shift, symbol, "… and its own middle")


def feed_forward(w: Working, x: str, recipe: FeedForward, section: str) -> str:
    """W2 f(W1 x + b1) + b2        Vaswani et al. 2017, equation 2; gated as in Shazeer 2020."""
    s = _Section(w, section)
    first, symbol = ("hidden values", "A") if recipe.W3 is None else ("gates", "G")
    inner = project(w, x, recipe.W1, first, symbol, "W1", section)
    hidden = ACTIVATIONS[recipe.activation](s, inner, symbol)
    if recipe.W3 is not None:
        raised = project(w, x, recipe.W3, "hidden values", "A", "W3", section)
        says = "each gate lets so much of its value through"
        hidden = s(Operation.MULTIPLY, "gated", hidden, raised, "f(G) × A", says)
    return project(w, hidden, recipe.W2, "output", "F", "W2", section)


class _Section:
    """Writes steps under one path, briefly."""

    def __init__(self, w: Working, path: str) -> None:
        self.w, self.path = w, path

    def __call__(self, operation: Operation, name: str, *told: str) -> str:
        """Write a step: operands, then its symbol and its sentence."""
        *operands, symbol, says = told
        return self.w.step(operation, self.path + name, *operands, symbol=symbol, says=says)

    def row(self, name: str, value: Tensor, says: str) -> str:
        """Write a given row down."""
        return self.w.given(self.path + name, value[None], symbol=name, rows=[name], says=says)

    def number(self, name: str, number: float, like: str) -> str:
        """Write a constant down."""
        return self.w.constant(self.path + name, number, symbol=name, like=like)


def _gelu(s: _Section, x: str, symbol: str) -> str:
    """x Φ(x), Φ(x) = (1 + erf(x / √2)) / 2        Hendrycks and Gimpel 2016, section 2."""
    root = s.number("√2", sqrt(2), x)
    z = s(Operation.DIVIDE, "over √2", x, root, f"{symbol} / √2", "as the error function counts")
    curve = s(Operation.ERF, "erf", z, "E", "from -1 to 1, steep around 0")
    return _half(s, x, curve, symbol, "how much of a bell curve lies below the value")


def _gelu_tanh(s: _Section, x: str, symbol: str) -> str:
    """x (1 + tanh(√(2 / π) (x + 0.044715 x³))) / 2        the same, approximated."""
    square = s(Operation.SQUARE, "squares", x, f"({symbol})²", "")
    cube = s(Operation.MULTIPLY, "cubes", square, x, f"{symbol}³", "")
    part = s.number("0.044715", 0.044715, x)
    bend = s(Operation.MULTIPLY, "bend", cube, part, f"0.044715 {symbol}³", "a little of the cube")
    bent = s(
        Operation.ADD, "bent", x, bend, "B", "with it tanh comes close to the bell curve's sum"
    )
    factor = s.number("√(2 / π)", sqrt(2 / pi), x)
    z = s(Operation.MULTIPLY, "stretched", bent, factor, "√(2 / π) B", "so is it as steep at 0")
    curve = s(Operation.TANH, "tanh", z, "E", "from -1 to 1, steep around 0")
    return _half(s, x, curve, symbol, "about how much of a bell curve lies below the value")


def _half(s: _Section, x: str, curve: str, symbol: str, says: str) -> str:
    """x (1 + curve) / 2."""
    above = s(Operation.ADD, "curve + 1", curve, s.number("1", 1, x), "E + 1", "from 0 to 2")
    share = s(Operation.DIVIDE, "share below", above, s.number("2", 2, x), "Φ", says)
    return _through(s, x, share, symbol)


def _silu(s: _Section, x: str, symbol: str) -> str:
    """x sigmoid(x)        Hendrycks and Gimpel 2016, section 2."""
    share = s(Operation.SIGMOID, "sigmoid", x, f"σ({symbol})", "from 0 to 1, steep around 0")
    return _through(s, x, share, symbol)


def _through(s: _Section, x: str, share: str, symbol: str) -> str:
    says = "large values pass, values far below 0 become 0"
    return s(Operation.MULTIPLY, "activated", x, share, f"f({symbol})", says)


def _relu(s: _Section, x: str, symbol: str) -> str:
    """max(0, x)."""
    return s(Operation.RELU, "activated", x, f"f({symbol})", "values below 0 become 0")


ACTIVATIONS: Mapping[str, Callable[[_Section, str, str], str]] = {
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
    "relu": _relu,
    "silu": _silu,
}
"""How each activation is written down, by its name."""
