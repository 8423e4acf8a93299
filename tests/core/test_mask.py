"""`Mask`: who may look at whom, for every kind, shape and region."""

import dataclasses
import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from qkv.core.fused import attention
from qkv.core.mask import Mask
from qkv.core.mask_parts import as_bias
from qkv.errors import MaskError
from tests import reference
from tests.problems import MASKS, problem
from tests.reference import agree, array

ALLOWED = torch.tensor([[True, False], [True, True]])
KINDS = [kind for kind in MASKS if kind != "none"]
BLOCKING = [kind for kind in KINDS if "bias" not in kind and "alibi" not in kind]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("queries", "keys"), [(5, 7), (7, 7), (1, 5)])
def test_matrix_is_zero_where_open_and_minus_infinity_where_not(
    kind: str, queries: int, keys: int
) -> None:
    case = problem(kind, queries=queries, keys=keys)
    matrix = case.mask.matrix(queries, keys)
    shape = np.broadcast_shapes(matrix.shape, case.added.shape)
    agree(matrix.expand(shape), np.broadcast_to(case.added, shape), 0.0)


@given(st.sampled_from(KINDS), st.data())
def test_every_tile_agrees_with_the_matrix(kind: str, data: st.DataObject) -> None:
    keys = data.draw(st.integers(1, 9), "keys")
    queries = data.draw(st.integers(1, keys), "queries")
    first_row = data.draw(st.integers(0, queries - 1), "first row")
    last_row = data.draw(st.integers(first_row + 1, queries), "last row")
    first_column = data.draw(st.integers(0, keys - 1), "first column")
    last_column = data.draw(st.integers(first_column + 1, keys), "last column")
    case = problem(kind, queries=queries, keys=keys, seed=data.draw(st.integers(0, 20), "seed"))
    wanted = np.broadcast_to(case.added, (2, 4, queries, keys))
    wanted = wanted[..., first_row:last_row, first_column:last_column]
    tile = case.mask.tile(
        range(first_row, last_row), range(first_column, last_column), queries=queries, keys=keys
    )
    if tile is True:
        assert (wanted == 0).all()
    elif tile is False:
        assert np.isneginf(wanted).all()
    else:
        agree(as_bias(tile, torch.float64).expand(wanted.shape), wanted, 0.0)


def test_tiles_far_from_the_diagonal_are_answered_without_a_tensor() -> None:
    sizes = {"queries": 1_000_000, "keys": 1_000_000}
    near, far, behind = range(1000, 1010), range(9000, 9010), range(0, 900)
    assert Mask.causal().tile(near, far, **sizes) is False
    assert Mask.causal().tile(near, behind, **sizes) is True
    assert Mask.window(50).tile(near, behind, **sizes) is False
    assert Mask.window(50).tile(near, far, **sizes) is False
    assert Mask.window(2000, 9000).tile(near, far, **sizes) is True
    documents = Mask.documents(torch.arange(1_000_000) // 5000)
    assert documents.tile(near, far, **sizes) is False
    assert documents.tile(near, behind, **sizes) is True
    assert (Mask.causal() & documents).tile(range(9000, 9010), behind, **sizes) is False
    assert (Mask.causal() | documents).tile(near, range(2000, 3000), **sizes) is True


def test_a_matrix_prints_as_in_the_article() -> None:
    assert str(Mask.causal().matrix(3)) == (
        "tensor([[0., -inf, -inf],\n        [0., 0., -inf],\n        [0., 0., 0.]])"
    )


def test_the_queries_are_the_last_ones() -> None:
    agree(Mask.causal().matrix(1, 3), [[0, 0, 0]], 0)
    agree(Mask.causal().matrix(2, 3), [[0, 0, -np.inf], [0, 0, 0]], 0)
    agree(Mask.causal(offset=0).matrix(2, 3), [[0, -np.inf, -np.inf], [0, 0, -np.inf]], 0)
    agree(Mask.window(1).matrix(2, 4), reference.band(2, 4, 1, 0), 0)
    ids = torch.tensor([1, 1, 2, 2])
    agree(Mask.documents(ids).matrix(1, 4), [[-np.inf, -np.inf, 0, 0]], 0)


@pytest.mark.parametrize("mask", [Mask.causal(), Mask.window(2, 1), Mask.causal() | Mask.window(1)])
def test_more_queries_than_keys_need_an_offset(mask: Mask) -> None:
    with pytest.raises(MaskError, match=r"5 queries look at 3 keys .* Say offset=0 to align them"):
        mask.check(5, 3)
    with pytest.raises(MaskError):
        mask.matrix(5, 3)
    Mask.causal(offset=0).check(5, 3)
    agree(Mask.causal(offset=0).matrix(5, 3), reference.causal(5, 3, 0), 0)
    agree(Mask.causal(offset=-1).matrix(3, 3), reference.causal(3, 3, -1), 0)


def test_and_looks_only_where_both_let_it_and_or_where_either_does() -> None:
    random = torch.rand(2, 2, 3, 5, 5) < 0.5
    a, b = Mask.allow(random[0]), Mask.allow(random[1])
    agree((a & b).matrix(5), reference.blocked(random[0] & random[1]), 0)
    agree((a | b).matrix(5), reference.blocked(random[0] | random[1]), 0)
    c = Mask.causal()
    triangle = reference.causal(5, 5) == 0
    agree(((a | b) & c).matrix(5), reference.blocked((random[0] | random[1]).numpy() & triangle), 0)
    agree(
        (a & c | b).matrix(5),
        reference.blocked(random[0].numpy() & triangle | random[1].numpy()),
        0,
    )


def test_a_prefix_language_model() -> None:
    mask = Mask.causal() | Mask.keys(torch.tensor([True, True, False, False]))
    o, x = 0.0, -np.inf
    agree(mask.matrix(4), [[o, o, x, x], [o, o, x, x], [o, o, o, x], [o, o, o, o]], 0)


def test_biases_are_added_and_refused_with_or() -> None:
    a, b = torch.randn(5, 5), torch.randn(3, 5, 5)[None]
    agree((Mask.bias(a) & Mask.bias(b)).matrix(5), array(a) + array(b), 1e-6)
    agree((Mask.bias(b) & Mask.causal()).matrix(5), array(b) + reference.causal(5, 5), 1e-6)
    for joined in (lambda: Mask.causal() | Mask.bias(a), lambda: Mask.bias(a) | Mask.causal()):
        with pytest.raises(MaskError, match=r"a bias cannot be joined with \|; add it afterwards"):
            joined()


def test_allow_and_forbid_are_opposites() -> None:
    agree(Mask.allow(ALLOWED).matrix(2), [[0, -np.inf], [0, 0]], 0)
    agree(Mask.forbid(ALLOWED).matrix(2), [[-np.inf, 0], [-np.inf, -np.inf]], 0)


def test_padding_stands_on_the_axis_of_the_keys_on_the_side_that_is_said() -> None:
    agree(Mask.padding([2, 3]).matrix(4, 3)[0, 0, 3], [0, 0, -np.inf], 0)
    agree(Mask.padding([2, 3], side="left").matrix(4, 3)[0, 0, 3], [-np.inf, 0, 0], 0)
    agree(
        Mask.padding(torch.tensor([[2, 3]])).matrix(1, 3), [[[[[0, 0, -np.inf]]], [[[0] * 3]]]], 0
    )


def test_axes_may_be_batch_and_heads() -> None:
    assert Mask.padding([3, 1]).leading_axes == ((2, 1),)
    assert Mask.keys(torch.ones(2, 3, 5, dtype=torch.bool)).leading_axes == ((2, 3, 1),)
    assert Mask.documents(torch.zeros(2, 5, dtype=torch.int64)).leading_axes == ((2, 1),)
    assert Mask.bias(torch.zeros(2, 3, 5, 5)).leading_axes == ((2, 3),)
    ids = torch.tensor([[0, 0, 1], [0, 1, 1]])
    for example, row in enumerate(ids):
        agree(Mask.documents(ids).matrix(3)[example, 0], reference.documents(row.tolist(), 3), 0)


def test_a_mask_is_immutable() -> None:
    mask = Mask.causal()
    with pytest.raises(dataclasses.FrozenInstanceError):
        mask.parts = ()
    with pytest.raises(dataclasses.FrozenInstanceError):
        mask.parts[0].after = 3
    before = mask.parts
    assert (mask & Mask.window(2)).parts[:1] == before
    assert mask.parts is before
    with pytest.raises(TypeError):
        mask.parts[0] = None


def test_a_trained_bias_is_known() -> None:
    bias = torch.zeros(5, 5, requires_grad=True)
    assert Mask.bias(bias).trainable
    assert (Mask.causal() & Mask.bias(bias)).trainable
    assert not (Mask.causal() & Mask.bias(bias.detach())).trainable


def test_split_tells_what_one_kernel_call_takes() -> None:
    hiding, triangle, rest = (Mask.causal() & Mask.padding([3, 5])).split(5, 5)
    assert hiding is not None
    assert triangle
    assert rest is None
    hiding, triangle, rest = (Mask.causal() & Mask.window(2)).split(5, 7)
    assert hiding is None
    assert not triangle, "aligned at the last key, which is no triangle that a kernel builds"
    assert rest is not None
    assert len(rest.parts) == 2
    assert Mask.causal().split(5, 5)[1]
    assert Mask.causal(offset=0).split(5, 7)[1]
    assert not Mask.causal(offset=1).split(5, 5)[1]


BARE = [
    (lambda: Mask.causal() & ALLOWED, r"& got a bare tensor; say what True means: Mask\.allow"),
    (lambda: Mask.causal() | ALLOWED, r"\| got a bare tensor; .* Mask\.forbid\(tensor\), or"),
    (lambda: Mask.causal() & True, "& got bool; wanted a Mask, such as Mask.causal"),
    (lambda: Mask.allow(torch.ones(2, 2)), "allow got torch.float32; wanted a tensor of bools"),
    (lambda: Mask.forbid(ALLOWED.int()), r"forbid got torch.int32; .* say `tensor == 1`"),
    (lambda: Mask.keys(torch.ones(3)), "keys got torch.float32; wanted a tensor of bools"),
    (lambda: Mask.keys(torch.tensor(True)), "keys got a single bool"),
    (lambda: Mask.keys([True]), "keys got list"),
    (lambda: Mask.bias(ALLOWED), "bias got torch.bool; wanted a tensor of floats, or allow/forbid"),
    (lambda: Mask.bias(0.5), "bias got float; wanted a tensor of floats"),
    (lambda: Mask.window(-1), r"window\(-1, 0\): wanted numbers of neighbours, 0 or more"),
    (lambda: Mask.window(1, -2), r"window\(1, -2\)"),
    (lambda: Mask.padding([1.5]), "lengths are torch.float32 with 1 axes; wanted one whole number"),
    (lambda: Mask.padding([True, False]), "lengths are torch.bool"),
    (lambda: Mask.padding(torch.tensor(3)), "with 0 axes; wanted one whole number an example"),
    (lambda: Mask.padding([3, -1]), r"lengths are \[3, -1\]; wanted 0 or more"),
    (lambda: Mask.padding([3], side="top"), "side is 'top'; wanted 'right' or 'left'"),
    (lambda: Mask.documents(torch.ones(3)), "documents got torch.float32 with 1 axes; wanted one"),
    (lambda: Mask.documents([True]), "documents got torch.bool with 1 axes; wanted one whole"),
    (lambda: Mask.documents(torch.tensor([0, 1])).check(2, 3), "keys differ, 2 ≠ 3"),
    (
        lambda: Mask.documents(torch.tensor([0, 1])).check(3, 2),
        "2 tokens, fewer than the 3 queries",
    ),
    (lambda: Mask.padding([3, 5]).check(4, 4), r"lengths \[3, 5\], but there are 4 keys"),
    (lambda: Mask.keys(ALLOWED).check(2, 3), "keys differ, 2 ≠ 3"),
]


@pytest.mark.usefixtures("as_shipped")
@pytest.mark.parametrize(("make", "why"), BARE)
def test_what_cannot_be_meant_is_refused_and_named(make: object, why: str) -> None:
    with pytest.raises(MaskError, match=why):
        make()


@pytest.mark.usefixtures("as_shipped")
@pytest.mark.parametrize("axes", [(), (3,), (2, 3, 3)], ids=len)
@pytest.mark.parametrize("make", [Mask.allow, Mask.forbid, Mask.bias])
def test_an_axis_that_could_be_batch_or_heads_is_refused(
    make: object, axes: tuple[int, ...]
) -> None:
    tensor = torch.zeros(axes) if make is Mask.bias else torch.zeros(axes, dtype=torch.bool)
    with pytest.raises(
        MaskError, match=rf"has {len(axes)} axes .* third axis could be the batch or"
    ):
        make(tensor)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_a_bias_keeps_its_dtype(dtype: torch.dtype) -> None:
    assert (Mask.bias(torch.zeros(3, 3, dtype=dtype)) & Mask.causal()).matrix(3).dtype == dtype


def test_kinds_joined_two_by_two_block_what_either_blocks() -> None:
    for a, b in itertools.combinations(BLOCKING, 2):
        one, two = problem(a, seed=1), problem(b, seed=2)
        shape = (2, 4, 5, 7)
        joined = (one.mask & two.mask).matrix(5, 7)
        agree(joined.expand(shape), np.broadcast_to(one.added + two.added, shape), 0)
        either = (one.mask | two.mask).matrix(5, 7)
        agree(either.expand(shape), np.broadcast_to(np.maximum(one.added, two.added), shape), 0)


def test_a_mask_does_not_change_with_the_tensors_it_was_made_of() -> None:
    lengths, ids = torch.tensor([2, 1]), torch.tensor([0, 0, 1])
    visible, pairs = torch.tensor([True, False, True]), torch.eye(3) > 0
    masks = [Mask.padding(lengths), Mask.documents(ids), Mask.keys(visible), Mask.allow(pairs)]
    before = [mask.matrix(3).clone() for mask in masks]
    lengths.zero_()
    ids.add_(torch.arange(3))
    visible.logical_not_()
    pairs.logical_not_()
    for mask, matrix in zip(masks, before, strict=True):
        assert torch.equal(mask.matrix(3), matrix)


def test_a_window_may_be_aligned_at_the_first_key() -> None:
    wanted = Mask.window(1, offset=0).matrix(4, 2)
    assert torch.isneginf(wanted).tolist() == [
        [False, True], [False, False], [True, False], [True, True],
    ]  # fmt: skip


def test_what_stands_for_minus_infinity_in_a_bias_blocks() -> None:
    least = torch.finfo(torch.float32).min
    bias = Mask.bias(torch.tensor([[0.0, least], [least, least], [0.0, -1e30]]))
    blocked = torch.isneginf(bias.matrix(3, 2))
    assert blocked.tolist() == [[False, True], [True, True], [False, True]]
    q, k, v = torch.randn(3, 4), torch.randn(2, 4), torch.randn(2, 4)
    assert torch.equal(attention(q, k, v, bias)[1], torch.zeros(4))


@pytest.mark.parametrize("heads", reference.SLOPES)
def test_the_slopes_are_the_authors(heads: int) -> None:
    wanted = [2.0**-exponent for exponent in reference.SLOPES[heads]]
    agree(-Mask.alibi(heads, dtype=torch.float64).matrix(2)[0, :, 0, 1], wanted, 1e-15)


def test_alibi_is_blooms_but_for_what_is_the_same_in_a_row() -> None:
    from transformers.models.bloom.modeling_bloom import build_alibi_tensor

    for heads in (1, 4, 6, 16, 23):
        theirs = build_alibi_tensor(torch.ones(1, 7), heads, torch.float64).view(1, heads, 1, 7)
        ours = (Mask.causal() & Mask.alibi(heads)).matrix(7)
        weights = torch.softmax(theirs + Mask.causal().matrix(7), -1)
        agree(torch.softmax(ours, -1), array(weights), 1e-6)


def test_alibi_is_refused_where_it_cannot_be_meant() -> None:
    q = torch.randn(2, 3, 5, 4)
    with pytest.raises(MaskError, match=r"mask has the axes \(1, 4\) before queries and keys"):
        attention(q, q, q, Mask.alibi(4))
    with pytest.raises(MaskError, match="7 queries look at 5 keys under alibi"):
        Mask.alibi(3).matrix(7, 5)
    agree(Mask.alibi(1, offset=0).matrix(3, 2)[0, 0] * -256, [[0, 1], [1, 0], [2, 1]], 0)
    for joined in (lambda: Mask.causal() | Mask.alibi(2), lambda: Mask.alibi(2) | Mask.causal()):
        with pytest.raises(MaskError, match=r"a bias cannot be joined with \|"):
            joined()
    for number in (0, -1, True):
        with pytest.raises(MaskError, match=f"alibi got num_heads={number!r}; wanted a whole num"):
            Mask.alibi(number)
    with pytest.raises(MaskError, match=r"alibi got dtype=torch.int64; wanted a floating one"):
        Mask.alibi(2, dtype=torch.int64)


def test_alibi_is_added_to_what_is_trained() -> None:
    bias = torch.randn(1, 4, 5, 5, requires_grad=True)
    mask = Mask.alibi(4) & Mask.bias(bias)
    assert mask.trainable
    assert not Mask.alibi(4).trainable
    mask.matrix(5).sum().backward()
    agree(bias.grad, np.ones((1, 4, 5, 5)), 0)
