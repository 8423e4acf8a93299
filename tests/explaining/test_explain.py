"""`qkv.explain`: modules and tensors become the same record."""

import numpy as np
import pytest
import torch
from torch import nn

import qkv
from qkv import Mask
from qkv.errors import ArgumentError, ShapeError

TOKENS = ["one", "two", "three", "four", "five"]


def same(a: qkv.Calculation, b: qkv.Calculation) -> None:
    assert [step.name for step in a] == [step.name for step in b]
    for ours, theirs in zip(a, b, strict=True):
        np.testing.assert_array_equal(ours.value, theirs.value)
        assert (ours.rows, ours.columns) == (theirs.rows, theirs.columns)


def test_the_function_and_the_method_give_the_same_record():
    layer = qkv.MultiHeadAttention(4, num_heads=2, n_out=3)
    x = torch.randn(5, 4)
    same(qkv.explain(layer, x, tokens=TOKENS), layer.explain(x, tokens=TOKENS))


def test_tensors_of_two_axes_are_one_head():
    q, k, v = torch.randn(3, 4), torch.randn(5, 4), torch.randn(5, 2)
    told = qkv.explain(q, k, v, key_tokens=TOKENS)
    assert told.step("weights").columns == tuple(TOKENS)
    wanted = torch.softmax(q.double() @ k.double().T / 2, -1) @ v.double()
    np.testing.assert_allclose(told.result, wanted.numpy(), atol=1e-6)
    told.verify()


def test_every_head_of_a_batch_is_recorded_with_its_own_mask():
    q, k, v = torch.randn(2, 4, 5, 3), torch.randn(2, 2, 7, 3), torch.randn(2, 2, 7, 6)
    allowed = torch.rand(2, 4, 5, 7) > 0.4
    allowed[1, 3, 2] = False  # a query that may look at nothing
    told = qkv.explain(q, k, v, mask=Mask.allow(allowed), batch=1)
    told.verify()
    assert told.sections == ("head 1", "head 2", "head 3", "head 4")
    fused = qkv.attention(q, k, v, Mask.allow(allowed))
    for head in range(4):
        np.testing.assert_allclose(
            told[f"head {head + 1}/output"], fused[1, head].double().numpy(), atol=1e-6
        )
        blocked = np.isneginf(told[f"head {head + 1}/mask"])
        np.testing.assert_array_equal(blocked, ~allowed[1, head].numpy())
    np.testing.assert_array_equal(told["head 4/weights"][2], 0)


def test_grouped_heads_take_their_keys_in_runs():
    q, k, v = torch.randn(4, 3, 2), torch.randn(2, 3, 2), torch.randn(2, 3, 2)
    told = qkv.explain(q, k, v)
    for head, shared in ((1, 0), (2, 0), (3, 1), (4, 1)):
        np.testing.assert_array_equal(told[f"head {head}/keys"], k[shared].double().numpy())


def test_scale_and_softcap_are_steps():
    q, k, v = (torch.randn(5, 4) for _ in range(3))
    told = qkv.explain(q, k, v, scale=0.7, softcap=2.0)
    told.verify()
    wanted = 2 * np.tanh(0.7 * (q.double() @ k.double().T).numpy() / 2)
    np.testing.assert_allclose(told["capped"], wanted, atol=1e-6)


def test_other_modules_are_told_what_is_wanted():
    with pytest.raises(ArgumentError, match="explain got Linear, which cannot explain itself"):
        qkv.explain(nn.Linear(2, 2), torch.randn(3, 2))


def test_one_tensor_is_not_enough():
    with pytest.raises(ArgumentError, match=r"explain got 1 \+ 0 tensors; wanted q, k and v"):
        qkv.explain(torch.randn(3, 2))


def test_numbers_that_are_not_finite_are_named_by_row_and_column():
    q = torch.randn(3, 2)
    q[1, 0] = float("nan")
    with pytest.raises(ArgumentError, match="queries holds nan in row 1, column 0"):
        qkv.explain(q, torch.randn(3, 2), torch.randn(3, 2))


def test_an_example_beyond_the_batch_is_refused():
    x = torch.randn(2, 1, 3, 4)
    with pytest.raises(ShapeError, match=r"batch is 2, but the batch axes are \(2,\)"):
        qkv.explain(x, x, x, batch=2)


@pytest.mark.parametrize("batch", [0, 1, (0, 2), (1, 2)], ids=str)
def test_the_mask_of_the_example_is_shown_not_anothers(batch):
    q, k, v = (torch.randn(2, 3, 2, 5, 4) for _ in range(3))
    index = (batch,) if isinstance(batch, int) else batch
    index = (*index, 0)[:2]
    for mask in (
        Mask.padding([1, 3, 5]),
        Mask.padding(torch.tensor([[1, 2, 3], [4, 5, 2]])),
        Mask.bias(torch.randn(2, 1, 2, 5, 5)),
    ):
        told = qkv.explain(q, k, v, mask=mask, batch=batch)
        told.verify()
        wanted = qkv.attention(q, k, v, mask)[index]
        np.testing.assert_allclose(told["head 2/output"], wanted[1].double(), atol=1e-6)


def test_an_example_of_what_has_no_batch_is_refused():
    x = torch.randn(3, 4)
    with pytest.raises(ShapeError, match=r"batch is 5, but the batch axes are \(\)"):
        qkv.explain(x, x, x, batch=5)


def test_labels_that_do_not_fit_are_refused():
    x = torch.randn(3, 4)
    with pytest.raises(ArgumentError, match="tokens has 5 labels for 3 rows"):
        qkv.explain(x, x, x, tokens=TOKENS)
