"""`attention` equals an independent float64 reference, in every entry and every gradient."""

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from qkv.core.fused import attention
from qkv.core.mask import Mask
from qkv.core.steps import attend
from qkv.core.working import Working
from qkv.errors import ArgumentError, MaskError, ShapeError
from tests import reference
from tests.problems import MASKS, problem, problems
from tests.reference import agree, array

UNEQUAL = {"batch": 2, "heads": 6, "kv_heads": 3, "queries": 5, "keys": 7, "d_k": 11, "d_v": 13}
EQUAL = {"batch": 4, "heads": 4, "kv_heads": 4, "queries": 4, "keys": 4, "d_k": 4, "d_v": 4}
SIZES = pytest.mark.parametrize("sizes", [UNEQUAL, EQUAL], ids=["unequal sizes", "equal sizes"])
KINDS = pytest.mark.parametrize("kind", MASKS)


@given(problems())
def test_fused_equals_the_reference_for_any_shapes_masks_and_dtypes(drawn: dict[str, Any]) -> None:
    case = problem(**drawn)
    out = attention(case.q, case.k, case.v, case.mask)
    assert out.dtype == case.q.dtype
    agree(out, reference.attention(*case.arrays, case.added), case.tolerance)


@given(problems(), st.sampled_from([0.3, 1.0, 7.5]), st.sampled_from([0.5, 4.0]))
def test_scale_and_soft_cap_stand_before_the_mask(
    drawn: dict[str, Any], scale: float, cap: float
) -> None:
    case = problem(**drawn)
    out = attention(case.q, case.k, case.v, case.mask, scale=scale, softcap=cap)
    wanted = reference.attention(*case.arrays, case.added, scale, cap)
    agree(out, wanted, 2 * case.tolerance)
    plain = attention(case.q, case.k, case.v, case.mask, scale=scale)
    agree(plain, reference.attention(*case.arrays, case.added, scale), 2 * case.tolerance)


@pytest.mark.parametrize("scale", [0.0, -0.7])
@pytest.mark.parametrize("kind", ["causal", "causal and padding", "causal and alibi"])
def test_a_scale_of_zero_or_below_turns_no_mask_around(kind: str, scale: float) -> None:
    case = problem(kind, **EQUAL)
    out = attention(case.q, case.k, case.v, case.mask, scale=scale)
    agree(out, reference.attention(*case.arrays, case.added, scale), 1e-12)


@KINDS
@SIZES
def test_every_element_and_gradient_equals_the_reference(
    kind: str, sizes: dict[str, int], device: torch.device
) -> None:
    case = problem(kind, **sizes, device=device)
    q, k, v = (tensor.requires_grad_() for tensor in (case.q, case.k, case.v))
    out = attention(q, k, v, case.mask)
    wished = torch.randn_like(out)
    out.backward(wished)
    agree(out, reference.attention(*case.arrays, case.added), 1e-12)
    wanted = reference.gradients(*case.arrays, case.added, array(wished))
    for tensor, gradient in zip((q, k, v), wanted, strict=True):
        agree(tensor.grad, gradient, 1e-11)


@given(problems(dtypes=(torch.float64, torch.float32)))
def test_fused_equals_the_explicit_steps(drawn: dict[str, Any]) -> None:
    case = problem(**drawn)
    out = attention(case.q, case.k, case.v, case.mask)
    added = np.broadcast_to(case.added, (*case.q.shape[:-1], case.k.shape[-2]))
    batch, heads = case.q.shape[:2]
    for b, h in itertools.product(range(batch), range(heads)):
        served = reference.serves(h, heads, case.k.shape[1])
        w = Working("steps")
        q = w.given("q", case.q[b, h], symbol="Q")
        k = w.given("k", case.k[b, served], symbol="K")
        v = w.given("v", case.v[b, served], symbol="V")
        mask = w.given("mask", torch.tensor(added[b, h]).to(case.q), symbol="M", blocks=True)
        attend(w, q, k, v, mask)
        c = w.finish({"output": out[b, h]})
        agree(out[b, h], c["output"], case.tolerance)
        c.verify()


@given(problems())
def test_weights_sum_to_one_or_are_all_zero(drawn: dict[str, Any]) -> None:
    case = problem(**drawn)
    ones = torch.ones_like(case.v)
    sums = attention(case.q, case.k, ones, case.mask)
    wanted = np.where(case.empty, 0.0, 1.0)[..., None]
    agree(sums, np.broadcast_to(wanted, sums.shape), 1e-2 if case.q.dtype.itemsize == 2 else 1e-6)


@pytest.mark.parametrize("softcap", [None, 3.0])
@pytest.mark.parametrize("trained", [False, True], ids=["plain", "trained bias"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_a_row_that_may_look_at_nothing_gives_zero_and_finite_gradients(
    softcap: float | None, trained: bool, dtype: torch.dtype, device: torch.device
) -> None:
    case = problem("none", dtype=dtype, device=device)
    may_look = torch.ones(1, 4, 5, 7, dtype=torch.bool, device=device)
    may_look[0, 1, 2] = False
    may_look[0, 3] = False
    mask = Mask.allow(may_look)
    bias = torch.randn(1, 4, 5, 7, dtype=dtype, device=device, requires_grad=True)
    tensors = [t.requires_grad_() for t in (case.q, case.k, case.v)]
    if trained:
        mask, tensors = mask & Mask.bias(bias), [*tensors, bias]
    out = attention(case.q, case.k, case.v, mask, softcap=softcap)
    out.sum().backward()
    assert (out[:, 1, 2] == 0).all()
    assert (out[:, 3] == 0).all()
    assert (out[:, 0].abs().amax(-1) > 0).all()
    for tensor in tensors:
        assert tensor.grad is not None
        assert tensor.grad.isfinite().all()
    assert (case.q.grad[:, 3] == 0).all()


NOTHING = {
    "padding": Mask.padding([0, 0]),
    "causal and padding": Mask.causal() & Mask.padding([0, 0]),
    "allow": Mask.allow(torch.zeros(5, 5, dtype=torch.bool)),
    "bias": Mask.bias(torch.full((5, 5), -torch.inf)),
}


@pytest.mark.parametrize("mask", NOTHING.values(), ids=NOTHING)
@pytest.mark.parametrize("kv_heads", [4, 2])
def test_a_mask_that_closes_everything_gives_zero(mask: Mask, kv_heads: int) -> None:
    case = problem("none", keys=5, kv_heads=kv_heads)
    q, k, v = (tensor.requires_grad_() for tensor in (case.q, case.k, case.v))
    out = attention(q, k, v, mask)
    out.sum().backward()
    assert (out == 0).all()
    for tensor in (q, k, v):
        assert (tensor.grad == 0).all()


@pytest.mark.parametrize("softcap", [None, 3.0])
@pytest.mark.parametrize("kind", ["padding", "left padding", "causal and padding", "keys"])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_nothing_leaks_from_behind_padding(kind: str, bad: float, softcap: float | None) -> None:
    case = problem(kind, keys=5, seed=3)
    hidden = torch.tensor(np.isneginf(np.broadcast_to(case.added, (2, 1, 5, 5))).all(2)[:, 0])
    assert hidden.any()
    k, v = (t.clone().masked_fill(hidden[:, None, :, None], bad) for t in (case.k, case.v))
    q, k, v = (tensor.requires_grad_() for tensor in (case.q, k, v))
    out = attention(q, k, v, case.mask, softcap=softcap)
    agree(out, reference.attention(*case.arrays, case.added, cap=softcap), 1e-12)
    out.sum().backward()
    for tensor in (q, k, v):
        assert tensor.grad.isfinite().all()
    for tensor in (k, v):
        assert (tensor.grad[hidden[:, None].expand(2, 2, 5)] == 0).all()


def test_heads_are_independent() -> None:
    case = problem("allow by head", heads=6, kv_heads=3)
    before = attention(case.q, case.k, case.v, case.mask)
    q, k, v = case.q.clone(), case.k.clone(), case.v.clone()
    q[:, 4], k[:, 2], v[:, 2] = 5.0, 7.0, 11.0
    after = attention(q, k, v, case.mask)
    assert torch.equal(after[:, :4], before[:, :4])
    assert (after[:, 4:] != before[:, 4:]).any()


def test_examples_of_a_batch_are_independent() -> None:
    case = problem("padding", batch=3)
    alone = attention(
        case.q[1:2], case.k[1:2], case.v[1:2], Mask.bias(torch.tensor(case.added[1:2]))
    )
    agree(attention(case.q, case.k, case.v, case.mask)[1:2], alone, 1e-14)


def test_grouped_heads_repeat_0_0_1_1() -> None:
    case = problem("none", heads=4, kv_heads=2)
    repeated = [t[:, [0, 0, 1, 1]] for t in (case.k, case.v)]
    out = attention(case.q, case.k, case.v)
    agree(out, array(attention(case.q, *repeated)), 1e-14)
    tiled = [t[:, [0, 1, 0, 1]] for t in (case.k, case.v)]
    wrong = attention(case.q, *tiled)
    assert not torch.allclose(out[:, 1:3], wrong[:, 1:3])


@pytest.mark.parametrize("softcap", [None, 2.0])
@pytest.mark.parametrize("trained", [False, True], ids=["plain", "trained bias"])
@pytest.mark.parametrize("kind", ["none", "causal", "causal and padding", "window", "keys"])
def test_gradients_equal_finite_differences(
    kind: str, trained: bool, softcap: float | None
) -> None:
    case = problem(kind, heads=2, kv_heads=1, queries=3, keys=4, d_k=2, d_v=3, seed=1)
    bias = torch.randn(1, 2, 3, 4, dtype=torch.float64, requires_grad=True)

    def run(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        mask = case.mask
        if trained:
            mask = Mask.bias(b) if mask is None else mask & Mask.bias(b)
        return attention(q, k, v, mask, softcap=softcap)

    inputs = [tensor.requires_grad_() for tensor in (case.q, case.k, case.v)]
    assert torch.autograd.gradcheck(run, (*inputs, bias))
    if trained:
        grad = torch.autograd.grad(run(*inputs, bias).square().sum(), bias)[0]
        assert grad.abs().max() > 0


@pytest.mark.parametrize("axes", [(), (2,), (2, 3), (1, 2, 3)], ids=str)
@pytest.mark.parametrize("softcap", [None, 2.0])
def test_any_number_of_batch_axes(axes: tuple[int, ...], softcap: float | None) -> None:
    q, k = torch.randn(*axes, 4, 5, 3).double(), torch.randn(*axes, 2, 7, 3).double()
    v, may_look = torch.randn(*axes, 2, 7, 2).double(), torch.rand(*axes, 1, 5, 7) < 0.7
    mask = Mask.allow(may_look if axes else may_look[None])
    out = attention(q, k, v, mask, softcap=softcap)
    flat = [array(t.reshape(-1, *t.shape[-3:])) for t in (q, k, v)]
    added = reference.blocked(may_look.reshape(-1, 1, 5, 7))
    wanted = reference.attention(*flat, added, cap=softcap)
    agree(out, wanted.reshape(*axes, 4, 5, 2), 1e-12)


def test_heads_may_be_missing_down_to_one_matrix() -> None:
    q, k, v = (torch.randn(n, 3).double() for n in (5, 7, 7))
    arrays = [array(t)[None, None] for t in (q, k, v)]
    wanted = reference.attention(*arrays)
    agree(attention(q, k, v), wanted[0, 0], 1e-12)
    agree(attention(q[None], k[None], v[None]), wanted[0], 1e-12)
    masked = reference.attention(*arrays, reference.causal(5, 7))
    agree(attention(q, k, v, Mask.causal()), masked[0, 0], 1e-12)


@pytest.mark.parametrize("axes", [(3, 1), (1, 3), (2, 1, 1), (3, 4), (2, 3, 4), (4,), ()], ids=str)
def test_a_mask_is_broadcast_over_the_axes_that_it_lacks(axes: tuple[int, ...]) -> None:
    q, k, v = (torch.randn(2, 3, 4, 5, 6).double() for _ in range(3))
    bias = torch.randn(*axes, 5, 5).double()
    if bias.dim() == 3:
        bias = bias[None]
    if axes == (1, 3):
        bias = torch.randn(1, 3, 1, 5, 5).double()
    out = attention(q, k, v, Mask.bias(bias))
    added = np.broadcast_to(array(bias), (2, 3, 4, 5, 5)).reshape(6, 4, 5, 5)
    flat = [array(t.flatten(0, 1)) for t in (q, k, v)]
    agree(out, reference.attention(*flat, added).reshape(2, 3, 4, 5, 6), 1e-12)


@pytest.mark.parametrize("batch", [(), (2,), (2, 3)], ids=str)
def test_leading_axes_of_one_in_a_mask_mean_nothing(batch: tuple[int, ...]) -> None:
    q = torch.randn(*batch, 4, 5, 3).double()
    bias = torch.randn(5, 5).double()
    deep = bias.view(1, 1, 1, 1, 5, 5)
    agree(attention(q, q, q, Mask.bias(deep)), array(attention(q, q, q, Mask.bias(bias))), 1e-14)


@pytest.mark.parametrize("softcap", [None, 2.0])
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize(("batch", "queries", "keys"), [(2, 0, 3), (2, 3, 0), (0, 3, 3)])
def test_sizes_of_zero_give_zeros_of_the_right_shape(
    batch: int, queries: int, keys: int, grad: bool, softcap: float | None
) -> None:
    q = torch.randn(batch, 2, queries, 3, requires_grad=grad)
    k, v = torch.randn(batch, 2, keys, 3), torch.randn(batch, 2, keys, 5)
    out = attention(q, k, v, softcap=softcap)
    assert out.shape == (batch, 2, queries, 5)
    assert (out == 0).all()


@pytest.mark.parametrize("softcap", [None, 2.0])
@pytest.mark.parametrize("kind", ["none", "causal", "padding", "causal and padding"])
def test_dropout_keeps_the_mean_and_drops_only_weights(kind: str, softcap: float | None) -> None:
    case = problem(kind, batch=2, queries=3, keys=3)
    copies = 2000
    q, k, v = (tensor.repeat(copies, 1, 1, 1) for tensor in (case.q, case.k, case.v))
    mask = (
        None if case.mask is None else Mask.bias(torch.tensor(case.added).repeat(copies, 1, 1, 1))
    )
    if kind == "causal":
        mask = case.mask
    dropped = attention(q, k, v, mask, dropout=0.5, softcap=softcap).unflatten(0, (copies, 2))
    assert not torch.equal(dropped[0], dropped[1])
    wanted = reference.attention(*case.arrays, case.added, cap=softcap)
    agree(dropped.mean(0), wanted, 0.2)


def test_shapes_are_known_without_numbers(shape_device: torch.device) -> None:
    q = torch.empty(2, 4, 5, 8, device=shape_device)
    k, v = (torch.empty(2, 2, 7, d, device=shape_device) for d in (8, 6))
    for mask in (None, Mask.causal(), Mask.padding([7, 3]), Mask.causal() & Mask.padding([7, 3])):
        out = attention(q, k, v, mask)
        assert out.shape == (2, 4, 5, 6)
        assert out.device.type == shape_device.type


BAD_SHAPES = [
    ((2, 3, 5, 4), (2, 3, 7, 6), (2, 3, 7, 4), "d_k of queries and keys differ, 4 ≠ 6"),
    ((2, 3, 5, 4), (2, 3, 7, 4), (2, 3, 6, 4), "keys and values differ in number, 7 ≠ 6"),
    ((2, 3, 5, 4), (2, 2, 7, 4), (2, 2, 7, 4), "3 heads cannot share 2 key/value heads"),
    ((2, 3, 5, 4), (1, 3, 7, 4), (1, 3, 7, 4), "batch axes"),
    ((2, 3, 5, 4), (3, 7, 4), (3, 7, 4), "as many axes for each"),
    ((4,), (4,), (4,), "as many axes for each"),
]


@pytest.mark.usefixtures("as_shipped")
@pytest.mark.parametrize(("q", "k", "v", "why"), BAD_SHAPES)
def test_shapes_that_do_not_fit_are_named(
    q: tuple[int, ...], k: tuple[int, ...], v: tuple[int, ...], why: str
) -> None:
    with pytest.raises(ShapeError, match=why) as caught:
        attention(torch.zeros(q), torch.zeros(k), torch.zeros(v))
    assert str(caught.value).startswith(f"q is {q}, k is {k}, v is {v}: ")


@pytest.mark.usefixtures("as_shipped")
def test_numbers_out_of_range_are_named() -> None:
    x = torch.zeros(2, 5, 4)
    with pytest.raises(ArgumentError, match="softcap is 0; wanted a number above 0, or None"):
        attention(x, x, x, softcap=0)
    with pytest.raises(
        ArgumentError, match=r"dropout is 1\.0; wanted a probability from 0 to below"
    ):
        attention(x, x, x, dropout=1.0)
    with pytest.raises(ArgumentError, match=r"q is torch.float32 and k is torch.float64 and v is"):
        attention(x, x.double(), x)
    with pytest.raises(ArgumentError, match="wanted one floating dtype"):
        attention(x.int(), x.int(), x.int())


@pytest.mark.usefixtures("as_shipped")
def test_masks_that_do_not_fit_are_named() -> None:
    x = torch.zeros(2, 3, 5, 4)
    with pytest.raises(MaskError, match=r"Mask\.allow\(tensor\) or Mask\.forbid\(tensor\)"):
        attention(x, x, x, torch.ones(5, 5, dtype=torch.bool))
    with pytest.raises(MaskError, match=r"mask got str; wanted a Mask, such as Mask\.causal"):
        attention(x, x, x, "causal")
    with pytest.raises(MaskError, match="keys differ, 7 ≠ 5"):
        attention(x, x, x, Mask.allow(torch.ones(5, 7, dtype=torch.bool)))
    with pytest.raises(MaskError, match="queries differ, 7 ≠ 5"):
        attention(x, x, x, Mask.allow(torch.ones(7, 5, dtype=torch.bool)))
    with pytest.raises(MaskError, match=r"mask has the axes \(3, 1\) before queries and keys"):
        attention(x, x, x, Mask.padding([1, 2, 3]))
    with pytest.raises(MaskError, match=r"similarities have \(2, 3\): batch or heads differ"):
        attention(x, x, x, Mask.bias(torch.zeros(2, 2, 5, 5)))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("heads", "kv_heads"), [(6, 2), (4, 4), (3, 1)])
@pytest.mark.parametrize("kind", MASKS)
def test_one_query_of_grouped_heads_equals_the_reference(
    kind: str, heads: int, kv_heads: int, dtype: torch.dtype
) -> None:
    sizes = {"queries": 1, "keys": 7, "d_k": 3, "d_v": 5}
    case = problem(kind, heads=heads, kv_heads=kv_heads, dtype=dtype, **sizes)
    out = attention(case.q, case.k, case.v, case.mask)
    agree(out, reference.attention(*case.arrays, case.added), case.tolerance)
