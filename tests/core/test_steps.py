"""The steps of attention, and a whole transformer layer written in the same operations."""

import numpy as np
import pytest
import torch
from hypothesis import given
from torch import Tensor

from qkv.core.calculation import Calculation
from qkv.core.operations import Operation
from qkv.core.steps import attend, softmax
from qkv.core.working import Working
from tests import reference
from tests.problems import problem, problems
from tests.reference import agree, array

INF = float("inf")


@given(problems(dtypes=(torch.float64,)))
def test_the_steps_equal_the_reference(drawn: dict[str, object]) -> None:
    case = problem(**drawn)
    added = np.broadcast_to(case.added, (*case.q.shape[:-1], case.k.shape[-2]))[0, 0]
    w = Working("steps")
    names = [
        w.given(n, t[0, 0], symbol=n) for n, t in zip("qkv", (case.q, case.k, case.v), strict=True)
    ]
    attend(
        w,
        *names,
        w.given("mask", torch.tensor(added), symbol="M", blocks=True),
        softcap=2.0,
        scale=0.7,
    )
    c = w.finish()
    one = [array(t[:1, :1]) for t in (case.q, case.k, case.v)]
    agree(c["weights"], reference.weights(*one[:2], added, 0.7, 2.0)[0, 0], 1e-12)
    agree(c["output"], reference.attention(*one, added, 0.7, 2.0)[0, 0], 1e-12)
    c.verify(tolerance=1e-12)


def test_the_steps_bear_the_fields_names_in_their_order() -> None:
    w = Working("names")
    q, k, v = (w.given(n, torch.randn(3, 2), symbol=n) for n in "qkv")
    attend(w, q, k, v, w.given("mask", torch.zeros(3, 3), symbol="M", blocks=True))
    assert [s.name for s in w.finish()][4:] == [
        "similarities", "√d_k", "scaled", "masked", "maximum", "exponentials", "sums", "weights",
        "output",
    ]  # fmt: skip
    capped = Working("capped")
    q, k, v = (capped.given(n, torch.randn(3, 2), symbol=n) for n in "qkv")
    attend(capped, q, k, v, scale=2.0, softcap=3.0, section="head 1/")
    assert [s.name for s in capped.finish()["head 1"]][3:9] == [
        "similarities", "scale", "scaled", "cap", "share of cap", "bent",
    ]  # fmt: skip


def test_softmax_of_the_judges_marks_is_the_articles() -> None:
    w = Working("desserts")
    softmax(w, w.given("x", torch.tensor([[2.0, 1.0, -1.0]]), symbol="X"))
    powers = np.exp([[2.0, 1.0, -1.0]])
    agree(powers, [[7.389, 2.718, 0.368]], 5e-4)
    agree(w.finish()["weights"], powers / powers.sum(), 1e-7)
    agree(w.finish()["weights"], [[0.705, 0.260, 0.035]], 6e-4)  # 25.95 %, rounded twice there


def test_a_row_of_minus_infinity_has_shares_of_zero() -> None:
    w = Working("nothing")
    softmax(w, w.given("x", torch.tensor([[-INF, -INF], [-INF, 3.0]]), symbol="X", blocks=True))
    agree(w.finish()["weights"], [[0, 0], [0, 1]], 0)
    w.finish().verify()


class LlamaLayer:
    """Pre-norm, rotary positions, grouped heads, SwiGLU and residuals: the numbers of one layer."""

    tokens, width, heads, kv_heads, d, hidden, eps = 5, 12, 4, 2, 6, 14, 1e-5

    def __init__(self, *, pairs: bool) -> None:
        normal = torch.randn
        self.pairs = pairs
        self.x = normal(self.tokens, self.width)
        self.g1, self.g2 = 1 + 0.1 * normal(self.width), 1 + 0.1 * normal(self.width)
        self.WQ = normal(self.heads * self.d, self.width) / self.width**0.5
        self.WK = normal(self.kv_heads * self.d, self.width) / self.width**0.5
        self.WV = normal(self.kv_heads * self.d, self.width) / self.width**0.5
        self.WO = normal(self.width, self.heads * self.d) / (self.heads * self.d) ** 0.5
        self.gate = normal(self.hidden, self.width) / self.width**0.5
        self.up = normal(self.hidden, self.width) / self.width**0.5
        self.down = normal(self.width, self.hidden) / self.hidden**0.5
        angle = torch.arange(self.tokens)[:, None] / 1e4 ** (torch.arange(0, self.d, 2) / self.d)
        wide = angle.repeat_interleave(2, 1) if pairs else angle.repeat(1, 2)
        self.cos, self.sin = wide.cos(), wide.sin()
        self.mask = torch.full((self.tokens, self.tokens), -INF).triu(1)

    def directly(self) -> Tensor:
        """PyTorch's own functions; rotation by complex numbers."""
        functional = torch.nn.functional
        h = functional.rms_norm(self.x, (self.width,), self.g1, self.eps)
        q, k, v = (
            (h @ w.mT).unflatten(-1, (-1, self.d)).transpose(0, 1)
            for w in (self.WQ, self.WK, self.WV)
        )
        q, k = self._turned(q), self._turned(k)
        out = functional.scaled_dot_product_attention(
            q[None], k[None], v[None], is_causal=True, enable_gqa=True
        )
        x = self.x + out[0].transpose(0, 1).flatten(1) @ self.WO.mT
        h = functional.rms_norm(x, (self.width,), self.g2, self.eps)
        return x + (functional.silu(h @ self.gate.mT) * (h @ self.up.mT)) @ self.down.mT

    def _turned(self, x: Tensor) -> Tensor:
        half = self.d // 2
        a, b = (x[..., 0::2], x[..., 1::2]) if self.pairs else (x[..., :half], x[..., half:])
        angle = torch.arange(self.tokens)[:, None] / 1e4 ** (torch.arange(half) * 2 / self.d)
        turned = torch.complex(a, b) * torch.polar(torch.ones_like(angle), angle)
        if self.pairs:
            return torch.view_as_real(turned).flatten(-2)
        return torch.cat((turned.real, turned.imag), -1)

    def written(self) -> Calculation:
        """The same in steps of the closed set."""
        w = Working("Llama layer")
        x = w.given("x", self.x, symbol="X")
        for name in ("cos", "sin", "mask"):
            w.given(name, getattr(self, name), symbol=name, blocks=name == "mask")
        h = self._norm(w, x, "norm 1/", self.g1)
        outputs = []
        keys = {g: self._turn(w, self._part(w, h, "WK", self.WK, g), f"kv {g}/") for g in (0, 1)}
        values = {g: self._part(w, h, "WV", self.WV, g) for g in (0, 1)}
        for head in range(self.heads):
            q = self._turn(w, self._part(w, h, "WQ", self.WQ, head), f"head {head}/")
            g = head // (self.heads // self.kv_heads)
            outputs.append(attend(w, q, keys[g], values[g], "mask", section=f"head {head}/"))
        joined = w.step(Operation.CONCATENATE, "joined", *outputs, symbol="H")
        o = self._linear(w, joined, "WO", self.WO)
        x = w.step(Operation.ADD, "residual 1", x, o, symbol="X₁")
        h = self._norm(w, x, "norm 2/", self.g2)
        gate = self._linear(w, h, "gate", self.gate)
        bent = w.step(Operation.SIGMOID, "sigmoid", gate, symbol="σ")
        silu = w.step(Operation.MULTIPLY, "silu", gate, bent, symbol="G")
        up = self._linear(w, h, "up", self.up)
        both = w.step(Operation.MULTIPLY, "gated", silu, up, symbol="U")
        down = self._linear(w, both, "down", self.down)
        out = w.step(Operation.ADD, "residual 2", x, down, symbol="X₂")
        return w.finish({out: self.directly()})

    def _linear(self, w: Working, x: str, name: str, weight: Tensor) -> str:
        given = w.given(f"{name}/weight", weight, symbol="W")
        return w.step(Operation.PRODUCT_TRANSPOSED, f"{name}/result", x, given, symbol="Y")

    def _part(self, w: Working, x: str, name: str, weight: Tensor, head: int) -> str:
        return self._linear(w, x, f"{name} {head}", weight[head * self.d : (head + 1) * self.d])

    def _norm(self, w: Working, x: str, section: str, gain: Tensor) -> str:
        square = w.step(Operation.SQUARE, f"{section}square", x, symbol="X²")
        mean = w.step(Operation.ROW_MEAN, f"{section}mean", square, symbol="μ")
        eps = w.constant(f"{section}eps", self.eps, symbol="ε", like=x)
        shifted = w.step(Operation.ADD, f"{section}shifted", mean, eps, symbol="μ + ε")
        root = w.step(Operation.SQUARE_ROOT, f"{section}root", shifted, symbol="r")
        normed = w.step(Operation.DIVIDE, f"{section}normed", x, root, symbol="N")
        g = w.given(f"{section}gain", gain[None], symbol="g")
        return w.step(Operation.MULTIPLY, f"{section}scaled", normed, g, symbol="N g")

    def _turn(self, w: Working, x: str, section: str) -> str:
        rotate = Operation.ROTATE_PAIRS if self.pairs else Operation.ROTATE_HALVES
        a = w.step(Operation.MULTIPLY, f"{section}times cos", x, "cos", symbol="X cos")
        r = w.step(rotate, f"{section}rotated", x, symbol="R")
        b = w.step(Operation.MULTIPLY, f"{section}times sin", r, "sin", symbol="R sin")
        return w.step(Operation.ADD, f"{section}turned", a, b, symbol="X'")


@pytest.mark.parametrize("pairs", [False, True], ids=["halves", "pairs"])
def test_a_whole_llama_layer_is_written_in_the_closed_set_and_verifies(pairs: bool) -> None:
    llama = LlamaLayer(pairs=pairs)
    c = llama.written()
    agree(c.result, array(llama.directly()), 1e-5)
    proof = c.verify()
    assert proof.fused < 1e-5
    assert c["head 3"].verify().difference < 1e-5
    wrong = LlamaLayer(pairs=not pairs)
    assert np.abs(wrong.written().result - c.result).max() > 1e-3
