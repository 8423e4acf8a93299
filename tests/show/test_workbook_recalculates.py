"""LibreOffice computes every cell of our workbooks and lands on NumPy's numbers."""

import numpy as np
import pytest
import torch
from openpyxl import load_workbook
from torch import nn

from qkv.core.calculation import Calculation
from qkv.core.mask import Mask
from qkv.core.operations import Operation
from qkv.core.recompute import rounded
from qkv.core.steps import attend
from qkv.core.working import Working
from qkv.nn.attention import Attention, MaskedSelfAttention, MultiHeadAttention, SelfAttention
from qkv.show import workbook
from qkv.show.sheets import LEFT, addresses, lay_out
from tests.show import libreoffice

WORDS = ["draw", "a", "map"]
ENCODINGS = torch.tensor([[1.16, 0.23], [0.57, 1.36], [4.41, -2.16]])


def drawn(make: type[nn.Module], *args: object, **options: object) -> nn.Module:
    torch.manual_seed(42)
    return make(*args, **options)


def everything_else() -> Calculation:
    """The operations that neither attention nor a Llama layer uses."""
    torch.manual_seed(5)
    w = Working("The rest of the operations")
    x = w.given("x", torch.randn(3, 4, dtype=torch.float64) * 3, symbol="X")
    y = w.given("y", torch.randn(4, 5, dtype=torch.float64), symbol="Y")
    flipped = w.step(Operation.TRANSPOSE, "flipped", y, symbol="Yᵀ")
    w.step(Operation.PRODUCT_TRANSPOSED, "wide", x, flipped, symbol="X Y")
    long = w.step(Operation.TRANSPOSE, "long", flipped, symbol="Y")
    w.step(Operation.PRODUCT, "long product", flipped, long, symbol="Yᵀ Y")
    for operation in (
        Operation.TANH, Operation.SIGMOID, Operation.RELU, Operation.ERF,
        Operation.ROTATE_PAIRS, Operation.SQUARE,
    ):  # fmt: skip
        w.step(operation, operation.value, x, symbol=operation.value)
    far = w.given("far", torch.tensor([[-800.0, 800.0, -1.5, 0.0]]).double(), symbol="F")
    w.step(Operation.SIGMOID, "sigmoid of far", far, symbol="σ(F)")
    w.step(Operation.ROWS, "rows", x, symbol="X₂₀", selection=(2, 0))
    w.step(Operation.COLUMNS, "columns", x, symbol="X·₃₁", selection=(3, 1))
    total = w.step(Operation.ROW_SUM, "sum", x, symbol="s")
    w.step(Operation.SUBTRACT, "centred", x, total, symbol="X - s")
    nothing = w.step(Operation.SUBTRACT, "nothing", x, x, symbol="0")
    w.step(Operation.DIVIDE, "nothing by nothing", nothing, nothing, symbol="0 / 0")
    return w.finish()


def rms_norm(w: Working, x: str, section: str, gain: torch.Tensor) -> str:
    square = w.step(Operation.SQUARE, f"{section}/square", x, symbol="X²")
    mean = w.step(Operation.ROW_MEAN, f"{section}/mean", square, symbol="μ")
    eps = w.constant(f"{section}/eps", 1e-5, symbol="ε", like=x)
    safe = w.step(Operation.ADD, f"{section}/safe", mean, eps, symbol="μ + ε")
    root = w.step(Operation.SQUARE_ROOT, f"{section}/root", safe, symbol="r")
    unit = w.step(Operation.DIVIDE, f"{section}/unit", x, root, symbol="X / r")
    row = w.given(f"{section}/gain", gain[None], symbol="g")
    return w.step(Operation.MULTIPLY, f"{section}/normed", unit, row, symbol="N")


def rotary(w: Working, x: str, name: str, cos: str, sin: str) -> str:
    turned = w.step(Operation.ROTATE_HALVES, f"{name} turned", x, symbol="rot")
    a = w.step(Operation.MULTIPLY, f"{name} cos", x, cos, symbol="x cos")
    b = w.step(Operation.MULTIPLY, f"{name} sin", turned, sin, symbol="rot sin")
    return w.step(Operation.ADD, f"{name} rotated", a, b, symbol=name)


def linear(w: Working, x: str, name: str, weight: torch.Tensor) -> str:
    given = w.given(f"{name} weight", weight, symbol="W")
    return w.step(Operation.PRODUCT_TRANSPOSED, name, x, given, symbol="X Wᵀ")


def llama(tokens: int = 5, width: int = 8, d: int = 4, hidden: int = 6) -> Calculation:
    """A whole layer: RMSNorm, rotary positions, two heads that share keys, SwiGLU, residuals."""
    torch.manual_seed(11)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, dtype=torch.float64) * 0.6

    w = Working("A Llama layer")
    x = w.given("inputs/x", draw(tokens, width), symbol="X", rows=list("abcde")[:tokens])
    angle = torch.arange(tokens).double()[:, None] * torch.tensor([1.0, 0.1, 1.0, 0.1])
    cos = w.given("inputs/cos", angle.cos(), symbol="cos")
    sin = w.given("inputs/sin", angle.sin(), symbol="sin")
    mask = w.given(
        "inputs/mask", Mask.causal().matrix(tokens, tokens).double(), symbol="M", blocks=True
    )
    normed = rms_norm(w, x, "norm 1", 1 + draw(width))
    q = linear(w, normed, "attention/queries", draw(2 * d, width))
    k = rotary(w, linear(w, normed, "attention/keys", draw(d, width)), "attention/K", cos, sin)
    v = linear(w, normed, "attention/values", draw(d, width))
    heads = []
    for h in range(2):
        picked = w.step(
            Operation.COLUMNS, f"head {h + 1}/queries", q, symbol="Q",
            selection=range(h * d, h * d + d),
        )  # fmt: skip
        turned = rotary(w, picked, f"head {h + 1}/Q", cos, sin)
        heads.append(attend(w, turned, k, v, mask, section=f"head {h + 1}/"))
    joined = w.step(Operation.CONCATENATE, "join/heads", *heads, symbol="H")
    out = linear(w, joined, "join/out", draw(width, 2 * d))
    first = w.step(Operation.ADD, "join/residual", x, out, symbol="X + O")
    normed = rms_norm(w, first, "norm 2", 1 + draw(width))
    gate = linear(w, normed, "feed forward/gate", draw(hidden, width))
    opened = w.step(Operation.SIGMOID, "feed forward/sigmoid", gate, symbol="σ(G)")
    silu = w.step(Operation.MULTIPLY, "feed forward/silu", gate, opened, symbol="G σ(G)")
    up = linear(w, normed, "feed forward/up", draw(hidden, width))
    both = w.step(Operation.MULTIPLY, "feed forward/gated", silu, up, symbol="G U")
    down = linear(w, both, "feed forward/down", draw(width, hidden))
    w.step(Operation.ADD, "feed forward/result", first, down, symbol="Y")
    return w.finish()


def attentions() -> dict[str, Calculation]:
    torch.manual_seed(7)
    english, spanish = torch.randn(4, 3), torch.randn(5, 3)
    blind = Mask.allow(torch.tensor([[True, False, True], [False] * 3, [True, True, False]]))
    words = torch.randn(12, 384)
    big = drawn(MultiHeadAttention, 384, num_heads=12, d_k=32, d_v=32, bias=True)
    two = drawn(MultiHeadAttention, 2, num_heads=2)
    down = drawn(MultiHeadAttention, 2, num_heads=2, n_out=2)
    capped = drawn(SelfAttention, 2, softcap=5.0, scale=0.3)
    causal = drawn(MaskedSelfAttention, 2, mask=True)
    return {
        "self": drawn(SelfAttention, 2).explain(ENCODINGS, tokens=WORDS),
        "masked": causal.explain(ENCODINGS, tokens=WORDS),
        "blind": drawn(MaskedSelfAttention, 2, mask=blind).explain(ENCODINGS, tokens=WORDS),
        "cross": drawn(Attention, 3).explain(spanish, english, english),
        "capped": capped.explain(ENCODINGS),
        "two heads": two.explain(ENCODINGS, mask=True, tokens=WORDS),
        "projected": down.explain(ENCODINGS, mask=True, tokens=WORDS),
        "one head of twelve": big.explain(words, mask=True, head=3),
    }


def test_every_cell_of_attention_is_recalculated(tmp_path):
    libreoffice.assert_all_recalculate(attentions(), tmp_path)


def test_every_operation_of_the_closed_set_is_recalculated(tmp_path):
    calculations = {"llama": llama(), "rest": everything_else()}
    covered = {step.operation for c in calculations.values() for step in c}
    assert covered == set(Operation)
    calculations["llama"].verify()
    libreoffice.assert_all_recalculate(calculations, tmp_path)


@pytest.mark.parametrize("minus_infinity", [-1e23, -1e300])
def test_any_number_that_stands_for_minus_infinity_gives_the_same(tmp_path, minus_infinity):
    libreoffice.soffice()
    path, c = tmp_path / "masked.xlsx", attentions()["masked"]
    c.to_excel(path, minus_infinity=minus_infinity)
    libreoffice.poison(path)
    (saved,) = libreoffice.recalculated(path)
    libreoffice.assert_equals_numpy(saved, c)
    libreoffice.assert_agrees(saved, c)


def test_a_changed_input_changes_what_follows_as_pytorch_says(tmp_path):
    libreoffice.soffice()
    layer = drawn(MaskedSelfAttention, 2, mask=True)
    c = layer.explain(ENCODINGS, tokens=WORDS)
    at = addresses(lay_out(c))
    paths = {name: tmp_path / f"{name}.xlsx" for name in ("encodings", "WK", "mask")}
    for name, path in paths.items():
        c.to_excel(path)
        book = load_workbook(path)
        place = at[name]
        row, column = {"encodings": (1, 0), "WK": (1, 0), "mask": (0, 2)}[name]
        row, column = (column, row) if place.transposed else (row, column)
        cell = book[place.sheet].cell(place.top + row + 1, LEFT + column + 1)
        assert cell.value == pytest.approx(max(c[name][row, column], -1e30)) or name == "WK"
        cell.value = 0.0 if name == "mask" else 0.75
        book.save(path)
    saved = dict(zip(paths, libreoffice.recalculated(*paths.values()), strict=True))

    changed = ENCODINGS.clone()
    changed[1, 0] = 0.75
    _assert_output(saved["encodings"], c, layer(changed))
    other = drawn(MaskedSelfAttention, 2, mask=True)
    with torch.no_grad():
        other.WK.weight[1, 0] = 0.75
    _assert_output(saved["WK"], c, other(ENCODINGS))
    opened = torch.tensor([[True, False, True], [True, True, False], [True] * 3])
    free = drawn(MaskedSelfAttention, 2, mask=Mask.allow(opened))
    _assert_output(saved["mask"], c, free(ENCODINGS))

    red = {name: libreoffice.red(path, c) for name, path in saved.items()}
    assert red["mask"]["queries"] == red["mask"]["scaled"] == []
    assert red["mask"]["masked"] == red["mask"]["weights"] == red["mask"]["output"] == [0]
    assert red["WK"]["similarities"] == [0, 1, 2]  # the last row is counted too
    for name, path in saved.items():
        assert libreoffice.verdict(path)[0] == sum(map(len, red[name].values())), name


def test_a_worksheet_to_fill_in_turns_green_when_it_is_right(tmp_path):
    libreoffice.soffice()
    c = attentions()["projected"]
    at = addresses(lay_out(c))
    names = ["empty", "right", "wrong", "weights"]
    paths = {name: tmp_path / f"{name}.xlsx" for name in names}
    for name, path in paths.items():
        c.to_excel(path, blank="weights" if name == "weights" else "similarities")
        book = load_workbook(path)
        assert book["PyTorch head 1"].sheet_state == "hidden"
        if name != "empty":
            _fill(book, c, at, "weights" if name == "weights" else "similarities")
        if name == "wrong":
            place = at["head 2/similarities"]
            book[place.sheet].cell(place.top + 2, LEFT + 1).value += 0.01
        book.save(path)
    saved = dict(zip(paths, libreoffice.recalculated(*paths.values()), strict=True))

    assert libreoffice.verdict(saved["empty"])[1] == "fill in the violet cells"
    shown = libreoffice.row_checks(saved["empty"], c)
    assert shown["head 1/similarities"] == shown["head 2/similarities"] == ["fill in"] * 3
    for name in ("right", "weights"):
        assert libreoffice.verdict(saved[name]) == (0, "every row agrees with PyTorch"), name
    red = libreoffice.red(saved["wrong"], c)
    assert red["head 1/similarities"] == []
    assert red["head 2/similarities"] == [1]


def test_a_check_knows_minus_infinity_from_a_number_and_in_every_spelling(tmp_path):
    libreoffice.soffice()
    c = attentions()["masked"]
    at = addresses(lay_out(c))
    edits = {"spelling": ("mask", -1e23), "number": ("masked", 0.0)}
    paths = [tmp_path / f"{name}.xlsx" for name in edits]
    for path, (name, value) in zip(paths, edits.values(), strict=True):
        c.to_excel(path)
        book = load_workbook(path)
        book["calculation"].cell(at[name].top + 1, LEFT + 3).value = value
        book.save(path)
    spelled, number = libreoffice.recalculated(*paths)
    libreoffice.assert_agrees(spelled, c)
    assert libreoffice.row_checks(number, c)["masked"][0] >= 1


def test_a_check_cannot_pass_a_cell_that_is_an_error(tmp_path):
    libreoffice.soffice()
    c = attentions()["self"]
    c.to_excel(tmp_path / "self.xlsx")
    book = load_workbook(tmp_path / "self.xlsx")
    place = addresses(lay_out(c))["similarities"]
    book[place.sheet].cell(place.top + 1, LEFT + 1).value = "=1/0"
    book.save(tmp_path / "self.xlsx")
    (saved,) = libreoffice.recalculated(tmp_path / "self.xlsx")
    rows = libreoffice.row_checks(saved, c)
    assert rows["similarities"][0] == rows["output"][0] == "#DIV/0!"
    assert libreoffice.verdict(saved)[0] == 7  # similarities to output, one row each


def _assert_output(path, calculation, wanted):
    got = libreoffice.matrices(path, calculation)["output"]
    np.testing.assert_allclose(got, wanted.detach().double().numpy(), rtol=0, atol=2e-6)
    assert np.abs(got - calculation["output"]).max() > 1e-3


def _fill(book, calculation, at, ending):
    for step in calculation:
        if step.short == ending:
            place = at[step.name]
            for i, row in enumerate(rounded(step.value, 4).tolist(), place.top + 1):
                for j, number in enumerate(row, LEFT + 1):
                    cell = book[place.sheet].cell(i, j)
                    assert cell.value is None
                    cell.value = number


def test_poison_reaches_the_cells(tmp_path):
    """The proof itself can fail: unrecalculated, the poisoned file shows 999 everywhere."""
    c = attentions()["self"]
    workbook.write(c, tmp_path / "self.xlsx")
    libreoffice.poison(tmp_path / "self.xlsx")
    shown = libreoffice.matrices(tmp_path / "self.xlsx", c)
    for step in c:
        assert (shown[step.name] == 999).all() == (not step.is_input)
