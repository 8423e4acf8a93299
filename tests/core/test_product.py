"""X Wᵀ + b against `torch.nn.functional.linear` and NumPy, by every way that it takes."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad

from qkv.core import product
from qkv.core.product import linear
from tests.dispatch import watched
from tests.reference import agree, array

INNER = "_linear_pointwise"
WITHIN = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 0.15}
ROWS = [(0,), (1,), (2,), (33,), (101,), (1, 1), (2, 3), (5, 7, 2), ()]
SIZES = [(7, 11), (5, 5), (1, 3), (3, 1)]  # inputs, outputs


def drawn(
    rows: tuple[int, ...], inputs: int, outputs: int, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor, Tensor]:
    x, W, b = torch.randn(*rows, inputs), torch.randn(outputs, inputs), torch.randn(outputs)
    return x.to(dtype), W.to(dtype), b.to(dtype)


def formula(x: Tensor, W: Tensor, b: Tensor | None = None) -> Tensor:
    wide = (x.double()[..., None, :] * W.double()).sum(-1)
    return wide if b is None else wide + b.double()


def ways(function: object) -> list[str]:
    return [name.removeprefix("mkldnn::") for name in watched(function).names]


@pytest.mark.parametrize("rows", ROWS, ids=str)
@pytest.mark.parametrize(("inputs", "outputs"), SIZES)
@pytest.mark.parametrize("dtype", WITHIN, ids=str)
@pytest.mark.parametrize("own", [False, True], ids=["widened", "products of bfloat16"])
@pytest.mark.parametrize("grad", [False, True])
def test_it_is_the_sum_of_products_and_the_bias(
    rows: tuple[int, ...], inputs: int, outputs: int, dtype: torch.dtype, own: bool, grad: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(product, "BFLOAT16", own)
    x, W, b = drawn(rows, inputs, outputs, dtype)
    with torch.set_grad_enabled(grad):
        for bias in (None, b):
            y = linear(x, W, bias)
            assert y.dtype == dtype
            agree(y, array(formula(x, W, bias)), WITHIN[dtype])


@pytest.mark.parametrize("rows", [1, 4, 40])
@pytest.mark.parametrize("bias", [False, True])
def test_however_weights_and_rows_lie_in_memory(rows: int, bias: bool) -> None:
    x, W, b = drawn((rows,), 6, 9)
    columns = W.t().contiguous().t()
    assert columns.stride() == (1, 9)
    spread, halves = torch.randn(rows, 12), torch.randn(18)
    spread[:, ::2], halves[::2] = x, b
    with torch.no_grad():
        for weight in (W, columns, columns[2:7], W[2:7], W[:1].expand(5, 6)):
            for left in (x, spread[:, ::2], x.t().contiguous().t(), x[:1].expand(rows, 6)):
                for right in (b, halves[::2], b[:1].expand(9)) if bias else (None,):
                    cut = None if right is None else right[: len(weight)]
                    agree(linear(left, weight, cut), array(formula(left, weight, cut)), 1e-5)


def test_much_work_and_many_weights_go_through_the_inner_product() -> None:
    many = [(1, 512, 512, True), (1, 511, 512, False), (9, 512, 512, False)]
    for rows, inputs, outputs, wanted in [*many, (1000, 64, 132, True), (1000, 64, 128, False)]:
        x, W, b = drawn((rows,), inputs, outputs)
        assert (INNER in ways(lambda: linear(x, W, b))) is wanted  # noqa: B023
    x, W, b = drawn((1,), 512, 512, torch.float64)
    assert INNER not in ways(lambda: linear(x, W, b))


@pytest.mark.parametrize("much", [0, 1 << 60])
def test_in_training_from_much_work_on(much: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(product, "MUCH", much)
    for learns in range(3):  # whichever of the three it is
        operands = drawn((2, 3), 5, 7)
        operands[learns].requires_grad_()
        ran = watched(lambda: linear(*operands), grad=True)  # noqa: B023
        names = [name.removeprefix("mkldnn::") for name in ran.names]
        assert names.count(INNER) == (0 if much else 2 if learns == 0 else 1)


def test_bfloat16_is_widened_only_where_the_processor_has_no_such_products(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x, W, b = drawn((9,), 5, 7, torch.bfloat16)
    for own in (False, True):
        monkeypatch.setattr(product, "BFLOAT16", own)
        assert ("_to_copy" in ways(lambda: linear(x, W, b))) is not own


@pytest.mark.parametrize("rows", [1, 4, 33, 70])
@pytest.mark.parametrize("block", [1, 700, 1 << 19])
def test_bfloat16_is_at_least_as_close_to_the_truth_as_pytorchs(
    rows: int, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(product, "BFLOAT16", False)
    monkeypatch.setattr(product, "BLOCK", block)
    x, W, b = drawn((rows,), 257, 31, torch.bfloat16)
    truth = formula(x, W, b)
    with torch.no_grad():
        ours, theirs = (f(x, W, b).double() - truth for f in (linear, F.linear))
    assert ours.square().mean() <= theirs.square().mean() * 1.0001
    if rows > 3:  # rounded once, at the end
        agree(linear(x, W, b), array(truth.bfloat16()), 0.13)


@pytest.mark.parametrize("rows", [(1,), (3,), (4, 10), ()], ids=str)
@pytest.mark.parametrize("much", [0, 1 << 60], ids=["a gradient of our own", "PyTorch's"])
@pytest.mark.parametrize("bias", [False, True])
def test_gradients_are_those_of_the_formula(
    rows: tuple[int, ...], much: int, bias: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(product, "MUCH", much)
    x, W, b = drawn(rows, 5, 7)
    given = [x, W, b] if bias else [x, W]
    change = torch.randn(*rows, 7)
    kinds = [(torch.float32, 1e-5), (torch.bfloat16, 0.3)]
    for dtype, within in kinds if much else kinds[:1]:  # ours is for float32 alone
        low = [t.to(dtype, copy=True).requires_grad_() for t in given]
        linear(*low).backward(change.to(dtype))
        wide = [t.detach().double().requires_grad_() for t in low]
        exact = F.linear(*wide)
        exact.backward(change.to(dtype).double())
        for ours, wanted in zip(low, wide, strict=True):
            agree(ours.grad, array(wanted.grad), within)


def test_gradients_have_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(product, "MUCH", 0)
    x, W, b = (t.requires_grad_() for t in drawn((2, 3), 5, 7))

    def twice(y: Tensor) -> list[Tensor]:
        once = torch.autograd.grad(F.gelu(y).square().sum(), (x, W, b), create_graph=True)
        return list(torch.autograd.grad(sum(d.square().sum() for d in once), (x, W, b)))

    wide = F.linear(x.double(), W.double(), b.double())
    for ours, wanted in zip(twice(linear(x, W, b)), twice(wide), strict=True):
        agree(ours / wanted.abs().max(), array(wanted / wanted.abs().max()), 1e-6)


def test_a_frozen_weight_gets_no_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(product, "MUCH", 0)
    x, W, b = drawn((2, 3), 5, 7)
    linear(x.requires_grad_(), W, b).sum().backward()
    agree(x.grad, array(W.sum(0).expand(2, 3, 5)), 1e-5)
    assert W.grad is None
    assert b.grad is None


def test_a_frozen_weight_keeps_no_input_and_no_input_is_held_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(product, "MUCH", 0)
    x, W, b = drawn((4,), 5, 7)
    hidden = F.gelu(x.requires_grad_())
    y = linear(hidden, W, b)
    hidden.add_(1)  # as with F.linear: the gradient of a frozen weight is not wanted
    y.sum().backward()


def test_layouts_of_their_own_go_to_pytorch() -> None:
    x, W, b = drawn((4,), 5, 7)
    nested = torch.nested.nested_tensor([x[:3], x], layout=torch.jagged).requires_grad_()
    agree(linear(nested, W, b).unbind()[1], array(formula(x, W, b)), 1e-5)
    agree(linear(x.to_sparse(), W), array(formula(x, W)), 1e-5)


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # PyTorch's own, of jvp
def test_transforms_see_what_they_know() -> None:
    x, W, b = drawn((4,), 5, 7)
    wanted = array(formula(x, W, b))
    layer = torch.nn.Linear(5, 7)
    with torch.no_grad():
        agree(torch.func.vmap(linear, (0, None, None))(x, W, b), wanted, 1e-5)
        agree(torch.func.vmap(linear, (None, 0, 0))(x, W[None], b[None])[0], wanted, 1e-5)
        called = torch.func.functional_call(layer, {"weight": W, "bias": b}, (x,))
        agree(called, wanted, 1e-5)
        _, tangent = torch.func.jvp(lambda x: linear(x, W, b), (x,), (torch.ones_like(x),))
        agree(tangent, array(W.sum(1).expand(4, 7)), 1e-5)
        with forward_ad.dual_level():
            dual = linear(forward_ad.make_dual(x, torch.ones_like(x)), W, b)
            agree(forward_ad.unpack_dual(dual).tangent, array(W.sum(1).expand(4, 7)), 1e-5)
        jacobian = torch.func.jacrev(lambda x: linear(x, W, b))(x[0])
        agree(jacobian, array(W), 1e-6)


def test_autocast_lowers_it_as_it_lowers_pytorchs() -> None:
    x, W, b = drawn((4,), 5, 7)
    for grad in (False, True):
        with torch.set_grad_enabled(grad), torch.autocast("cpu", torch.bfloat16):
            y = linear(x, W, b)
            assert y.dtype == torch.bfloat16
            agree(y, array(F.linear(x, W, b)), 0)


@pytest.mark.usefixtures("as_shipped")
def test_it_compiles_as_one_graph() -> None:
    x, W, b = drawn((4,), 5, 7)
    with torch.no_grad():
        fast = torch.compile(linear, fullgraph=True, backend="eager")
        agree(fast(x, W, b), array(formula(x, W, b)), 1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_tensors_without_numbers_have_the_shape(dtype: torch.dtype) -> None:
    with torch.no_grad():
        x, W, b = (t.to("meta") for t in drawn((2, 3), 5, 7, dtype))
        assert linear(x, W, b).shape == (2, 3, 7)
        with FakeTensorMode() as mode:
            x, W, b = (mode.from_tensor(t) for t in drawn((2, 3), 5, 7, dtype))
            assert linear(x, W, b).shape == (2, 3, 7)


@pytest.mark.usefixtures("as_shipped")
@pytest.mark.parametrize("rows", [1, 40])
def test_sizes_that_do_not_fit_get_pytorchs_own_message(rows: int) -> None:
    x, W, b = drawn((rows,), 5, 7)
    with torch.no_grad():
        with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
            linear(x[:, :4], W, b)
        with pytest.raises(RuntimeError, match=r"size of tensor|shape|expand"):
            linear(x, W, b[:6])
        with pytest.raises(RuntimeError, match="dtype"):
            linear(x, W, b.double())
