"""`Weights` answers what the dense matrix answers, in float64 by NumPy, for every mask.

Tolerances: 1e-5 + 4 · eps · max|logit|, as the issue of a float32 softmax is the rounding of its
logits; sums over queries or of values grow with what is summed.
"""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from qkv.core.mask import Mask
from qkv.errors import ArgumentError, MaskError, ShapeError
from qkv.weights.matrix import Weights
from tests.problems import MASKS, Problem, problem, problems
from tests.reference import Array, agree, array
from tests.weights import dense

SIZES = {"batch": 2, "heads": 6, "kv_heads": 3, "queries": 29, "keys": 37, "d_k": 5, "d_v": 5}
KINDS = pytest.mark.parametrize("kind", MASKS)


def within(case: Problem, x: Array) -> float:
    """1e-5 + 4 · eps · max|logit|, for float64 as much smaller as its eps is."""
    finite = np.abs(x[np.isfinite(x)]).max(initial=1.0)
    wide = torch.promote_types(case.q.dtype, torch.float32)
    if wide == torch.float64:
        return 1e-11 + 4 * torch.finfo(wide).eps * float(finite)
    return 1e-5 + 4 * torch.finfo(wide).eps * float(finite)


def asked(
    case: Problem,
    w: Weights,
    scale: float | None = None,
    cap: float | None = None,
    sinks: Array | None = None,
) -> None:
    """Ask everything and compare every number."""
    q, k, v = case.arrays
    x = dense.logits(q, k, case.added, scale, cap)
    p, near = dense.weights(x, sinks), within(case, x)
    queries, keys = p.shape[-2:]
    agree(w.dense(), p, near)
    agree(w.logsumexp, dense.logsumexp(x, sinks), near)
    agree(w.entropy(), dense.entropy(p), near * (1 + np.log(keys)))
    agree(w.received(), p.sum(-2), near * queries)
    values = np.repeat(v, q.shape[1] // v.shape[1], axis=1)
    agree(w @ case.v, p @ values, near * (1 + np.abs(v).max()))
    y = torch.randn(*p.shape[:2], queries, 3, dtype=torch.float64)
    agree(w.mT @ y, p.swapaxes(-1, -2) @ array(y), near * queries * (1 + float(y.abs().max())))
    for offset in (-queries, -2, 0, keys - queries, keys):
        agree(w.diagonal(offset), np.diagonal(p, offset, -2, -1), near)
    agree(w.rows(queries // 2), p[..., queries // 2, :], near)
    agree(w.tile(range(1, queries), slice(1, None)), p[..., 1:, 1:], near)
    agree(w.map(3, 4), dense.regions(p, 3, 4), near)
    strongest(w, p, min(4, keys), near)


def strongest(w: Weights, p: Array, count: int, near: float) -> None:
    """The k largest numbers, at keys that hold them, no key twice."""
    top = w.top(count)
    agree(top.weights, -np.sort(-p, -1)[..., :count], near)
    agree(top.weights, np.take_along_axis(p, array(top.keys).astype(int), -1), near)
    assert all(len(set(row)) == count for row in top.keys.flatten(0, 2).tolist())


@given(problems(), st.sampled_from([None, 0.3, 7.5]), st.sampled_from([None, 2.0]))
def test_every_answer_is_that_of_the_dense_matrix(
    drawn: dict[str, Any], scale: float | None, cap: float | None
) -> None:
    case = problem(**drawn)
    w = Weights(case.q, case.k, mask=case.mask, scale=scale, softcap=cap)
    asked(case, w, scale, cap)


@KINDS
def test_blocks_and_groups_at_larger_sizes(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qkv.core.blocks.ROWS", 8)  # closed columns are skipped 8 at a time
    monkeypatch.setattr("qkv.weights.blocks.block_size", lambda queries, keys, groups: (7, 2))
    case = problem(kind, **SIZES, dtype=torch.float32)
    asked(case, Weights(case.q, case.k, mask=case.mask))


@KINDS
def test_sinks_take_weight_and_give_nothing(kind: str) -> None:
    case = problem(kind, dtype=torch.float64)
    one_a_head = torch.tensor([0.5, -3.0, 4.0, -torch.inf], dtype=torch.float64)
    shape = (*case.q.shape[:-1], 1)
    sinks = array(one_a_head[:, None, None].expand(shape))
    asked(case, Weights(case.q, case.k, mask=case.mask, sinks=one_a_head), sinks=sinks)
    many = torch.randn(*case.q.shape[:-1], 3, dtype=torch.float64)
    asked(case, Weights(case.q, case.k, mask=case.mask, sinks=many), sinks=array(many))


@pytest.mark.parametrize("size", [1.0, 100.0, 1e4])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_extreme_logits_neither_overflow_nor_drift(size: float, dtype: torch.dtype) -> None:
    case = problem("causal", queries=9, keys=9, d_k=1, dtype=dtype)
    asked(case, Weights(case.q, case.k, mask=case.mask, scale=size), scale=size)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_halves_are_answered_in_float32(dtype: torch.dtype) -> None:
    case = problem("window", dtype=dtype)
    w = Weights(case.q, case.k, mask=case.mask)
    answers = (w @ case.v, w.entropy(), w.received(), w.logsumexp, w.top(2).weights, w.map(2, 2))
    assert {w.dtype, *(answer.dtype for answer in answers)} == {torch.float32}


def test_a_query_that_may_look_at_nothing_has_weights_of_zero() -> None:
    may_look = torch.ones(5, 7, dtype=torch.bool)
    may_look[2] = False
    case = problem("none")
    w = Weights(case.q, case.k, mask=Mask.allow(may_look))
    assert (w.logsumexp[..., 2] == -torch.inf).all()
    assert not w.entropy()[..., 2].any()
    assert not w.rows(2).any()
    assert not (w @ case.v)[..., 2, :].any()


def test_a_sink_of_nothing_beside_a_query_that_may_look_at_nothing() -> None:
    may_look = torch.ones(5, 7, dtype=torch.bool)
    may_look[2] = False
    case = problem("none", heads=2, kv_heads=2, dtype=torch.float64)
    sinks = torch.tensor([-torch.inf, 0.0]).double()
    w = Weights(case.q, case.k, mask=Mask.allow(may_look), sinks=sinks)
    plain = Weights(case.q, case.k, mask=Mask.allow(may_look))
    agree(w.dense()[:, 0], array(plain.dense()[:, 0]), 1e-12)
    agree(w.entropy()[:, 0], array(plain.entropy()[:, 0]), 1e-12)
    assert not w.received().isnan().any()
    assert w.logsumexp[:, :, 2].tolist() == [[-torch.inf, 0.0]] * 2


def test_what_was_kept_without_gradients_is_not_given_where_they_are_wanted() -> None:
    q, k = torch.randn(1, 2, 3, 4, requires_grad=True), torch.randn(1, 2, 5, 4)
    w = Weights(q, k)
    with torch.no_grad():
        assert not w.logsumexp.requires_grad
    assert w.logsumexp.requires_grad


@pytest.mark.parametrize("trained", [False, True])
def test_answers_are_in_full_precision_under_an_autocast(trained: bool) -> None:
    q, k, x = (torch.randn(1, 2, 5, 4, requires_grad=trained) for _ in range(3))
    w = Weights(q, k)
    asked_for = (lambda: w @ x, lambda: w.mT @ x, w.entropy, w.received, lambda: w.map(2, 2))
    for ask in asked_for:
        wanted = ask()
        with torch.autocast("cpu", torch.bfloat16):
            agree(Weights(q, k) @ x, array(w @ x), 1e-6)
            got = ask()
        assert got.dtype == torch.float32
        agree(got, array(wanted), 1e-6)


def test_the_largest_of_long_rows_are_found_in_groups() -> None:
    q, k = torch.randn(1, 2, 3, 4), torch.randn(1, 2, 1003, 4)
    k[:, :, 500:510] = k[:, :, :10]  # equal numbers
    for dtype in (torch.float32, torch.float64):
        w = Weights(q.to(dtype), k.to(dtype), scale=2.0)
        for count in (1, 8, 40):
            strongest(w, array(w.dense()), count, 1e-7)


def test_no_keys_give_empty_answers() -> None:
    w = Weights(torch.randn(1, 2, 3, 4), torch.randn(1, 2, 0, 4))
    assert w.map(2, 2).shape == (1, 2, 2, 0)
    assert not w.entropy().any()
    assert (w.logsumexp == -torch.inf).all()


def test_what_padding_hides_has_no_influence_even_nan() -> None:
    case = problem("none", dtype=torch.float32)
    mask = Mask.padding([5, 3])
    spoiled_k, spoiled_v = case.k.clone(), case.v.clone()
    for example, length in enumerate((5, 3)):
        spoiled_k[example, :, length:] = torch.nan
        spoiled_v[example, :, length:] = torch.nan
    clean, spoiled = Weights(case.q, case.k, mask=mask), Weights(case.q, spoiled_k, mask=mask)
    agree(spoiled.dense(), array(clean.dense()), 0.0)
    agree(spoiled @ spoiled_v, array(clean @ case.v), 1e-7)
    sinks = torch.zeros(4)
    sunk = Weights(case.q, spoiled_k, mask=mask, sinks=sinks) @ spoiled_v
    agree(sunk, array(Weights(case.q, case.k, mask=mask, sinks=sinks) @ case.v), 1e-6)


QUESTIONS = {
    "product": lambda w, x, y: w @ x,
    "product from the left": lambda w, x, y: w.mT @ y,
    "logsumexp": lambda w, x, y: w.logsumexp.masked_fill(w.logsumexp == -torch.inf, 0.0),
    "entropy": lambda w, x, y: w.entropy(),
    "received": lambda w, x, y: w.received(),
    "diagonal": lambda w, x, y: w.diagonal(1),
    "map": lambda w, x, y: w.map(2, 3),
    "top": lambda w, x, y: w.top(2).weights,
    "rows": lambda w, x, y: w.rows(slice(1, 3)),
}


@pytest.mark.parametrize("question", QUESTIONS)
@pytest.mark.parametrize("kind", ["none", "causal and padding", "causal and bias"])
@pytest.mark.parametrize("with_sinks", [False, True])
def test_every_answer_has_the_gradients_of_the_dense_matrix(
    question: str, kind: str, with_sinks: bool
) -> None:
    case = problem(kind, batch=2, heads=2, kv_heads=1, queries=3, keys=4, d_k=2)
    bias = torch.randn(2, 3, 4, dtype=torch.float64)[None]
    tensors: list[Tensor] = [case.q, case.k, bias, torch.randn(2, 1, 4, 2).double()]
    tensors += [torch.randn(2, 2, 3, 2).double(), torch.randn(2).double()]
    for tensor in tensors:
        tensor.requires_grad_()

    def answer(q: Tensor, k: Tensor, bias: Tensor, x: Tensor, y: Tensor, sinks: Tensor) -> Tensor:
        trained = Mask.bias(bias)
        mask = trained if case.mask is None else case.mask & trained
        w = Weights(q, k, mask=mask, sinks=sinks if with_sinks else None)
        return QUESTIONS[question](w, x, y)

    assert torch.autograd.gradcheck(answer, tensors, fast_mode=True)
    with_gradients = answer(*tensors)
    with torch.no_grad():
        agree(answer(*tensors), array(with_gradients), 1e-12)


class Program:
    """Logits of our own: what `Weights.of` has to be given, no more."""

    def __init__(self, numbers: Tensor) -> None:
        self.numbers, self.shape = numbers, numbers.shape
        self.dtype, self.device = numbers.dtype, numbers.device

    def reach(self, rows: range) -> range:
        return range(self.shape[-1])

    def tile(self, rows: range, columns: range) -> Tensor:
        part = self.numbers[:, :, rows.start : rows.stop, columns.start : columns.stop]
        return part.clone()


@KINDS
def test_any_other_calculation_of_logits_is_asked_alike(kind: str) -> None:
    case = problem(kind)
    x = dense.logits(*case.arrays[:2], case.added, None, None)
    numbers = torch.tensor(x)
    case = Problem(case.q, case.k, case.v.repeat_interleave(2, 1), case.mask, case.added, kind)
    w = Weights.of(Program(numbers))
    p = dense.weights(x)
    agree(w.dense(), p, 1e-12)
    agree(w @ case.v, p @ array(case.v), 1e-12)
    agree(w.head(1, 1).received(), p[1:, 1:2].sum(-2), 1e-12)
    numbers.requires_grad_()
    assert w.entropy().requires_grad


@KINDS
def test_a_head_is_the_part_of_the_matrix(kind: str) -> None:
    case = problem(kind)
    sinks = torch.randn(4, dtype=torch.float64)
    for w in (
        Weights(case.q, case.k, mask=case.mask),
        Weights(case.q, case.k, mask=case.mask, sinks=sinks),
    ):
        for batch, h in ((0, 0), (1, 3), (-1, -1)):
            one = w.head(h, batch)
            wanted = array(w.dense()[batch][None, h][None])
            agree(one.dense(), wanted, 1e-14)
            x = torch.randn(7, 2, dtype=torch.float64)
            agree(one @ x, wanted @ array(x), 1e-12)


@pytest.mark.parametrize("leading", [(), (3,), (2, 3), (2, 5, 3)])
def test_any_number_of_batch_axes(leading: tuple[int, ...]) -> None:
    q, k = torch.randn(*leading, 5, 4), torch.randn(*leading, 7, 4)
    x, y = torch.randn(*leading, 7, 6), torch.randn(*leading, 5, 6)
    lengths = torch.randint(1, 8, leading[:-1])
    mask = Mask.causal() & Mask.padding(lengths) if len(leading) > 1 else Mask.causal()
    w = Weights(q, k, mask=mask)
    triangle = torch.ones(5, 7, dtype=torch.bool).tril(2)
    if len(leading) > 1:
        triangle = triangle & (torch.arange(7) < lengths[..., None])[..., None, None, :]
    p = torch.softmax((q @ k.mT / 2).double().masked_fill(~triangle, -torch.inf), -1).nan_to_num()
    assert w.shape == p.shape
    agree(w.dense(), array(p), 1e-6)
    agree(w @ x, array(p @ x.double()), 1e-5)
    agree(w.mT @ y, array(p.mT @ y.double()), 1e-5)
    agree(
        w.mT @ y[..., :1, :].expand(y.shape),
        array(p.mT @ y[..., :1, :].expand(y.shape).double()),
        1e-5,
    )
    if leading:
        last = w.head(1, leading[:-1].count(0) - 1 if len(leading) > 1 else 0)
        agree(last.dense()[0, 0], array(p.reshape(-1, *p.shape[-3:])[-1][1]), 1e-6)


def test_a_trained_vector_of_values_serves_all_heads_and_examples() -> None:
    case = problem("causal")
    w, x = Weights(case.q, case.k, mask=case.mask), torch.randn(7, 2, dtype=torch.float64)
    agree(w @ x, array(w.dense()) @ array(x), 1e-12)


def test_the_matrix_is_refused_when_it_is_large() -> None:
    w = Weights(torch.randn(1, 2, 64, 4), torch.randn(1, 2, 64, 4))
    with pytest.raises(
        ArgumentError, match=r"\(1, 2, 64, 64\), 8,192 numbers in 0.0 GB; wanted at"
    ):
        w.dense(limit=8191)


def test_what_does_not_fit_is_named(as_shipped: None) -> None:
    q, k = torch.randn(2, 4, 5, 3), torch.randn(2, 2, 7, 3)
    w = Weights(q, k)
    with pytest.raises(ShapeError, match=r"x is \(2, 3, 7, 1\), the weights are \(2, 4, 5, 7\)"):
        w @ torch.randn(2, 3, 7, 1)
    with pytest.raises(ShapeError, match="one row for each of the queries"):
        w.mT @ torch.randn(7, 1)
    with pytest.raises(ShapeError, match=r"sinks are \(3,\); wanted one number a head, \(4,\)"):
        Weights(q, k, sinks=torch.zeros(3))
    with pytest.raises(ShapeError, match="d_k of queries and keys differ, 3 ≠ 2"):
        Weights(q, k[..., :2])
    with pytest.raises(MaskError, match="bare tensor"):
        Weights(q, k, mask=torch.ones(5, 7))  # type: ignore[arg-type]
    for wrong, message in (
        (lambda: w.top(8), "top got k=8; there are 7 keys"),
        (lambda: w.rows(5), "rows got 5; there are 5"),
        (lambda: w.tile(range(4, 9), 0), r"rows got range\(4, 9\)"),
        (lambda: w.map(0, 3), "height is 0; wanted a whole number from 1"),
        (lambda: w.diagonal("a"), "offset is 'a'"),  # type: ignore[arg-type]
        (lambda: w.dense("all"), "limit is 'all'"),  # type: ignore[arg-type]
        (lambda: w[0, 2], r"weights\[\(0, 2\)\] would form the matrix; wanted .head"),
        (lambda: w @ torch.ones(7, 1, dtype=torch.complex64), "x is torch.complex64"),
        (lambda: w @ [[1.0]] * 7, "x is list; wanted a torch.Tensor"),  # type: ignore[operator]
        (lambda: Weights(q.numpy(), k), "q is ndarray"),  # type: ignore[arg-type]
        (lambda: Weights(q, k.double()), "q is torch.float32 and k is torch.float64; wanted one"),
        (lambda: Weights(q[:0], k[:0]), "wanted one example, one head and one value"),
        (lambda: Weights(q, k, scale=float("nan")), "scale is nan; wanted a finite number"),
        (lambda: Weights(q, k, sinks=[1.0]), "sinks is list"),  # type: ignore[arg-type]
        (lambda: Weights.of(q), "for q and k say Weights"),  # type: ignore[arg-type]
        (lambda: w.head(4), "head got h=4; wanted 0 to 3"),
        (lambda: Weights(q, k, softcap=0.0), "softcap is 0.0"),
    ):
        with pytest.raises(ArgumentError, match=message):
            wrong()
