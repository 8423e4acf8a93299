"""`module.explain(...)`: what the forward pass computed, step by step, with its own output."""

import copy

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from qkv import Attention, Mask, MaskedSelfAttention, MultiHeadAttention, SelfAttention
from qkv.core.operations import Operation
from qkv.errors import ArgumentError, MaskError, ShapeError, VerificationError
from tests import reference
from tests.reference import agree, array

DTYPES = st.sampled_from([torch.float64, torch.float32, torch.bfloat16])
MASKS = {
    "none": False,
    "causal": True,
    "window": Mask.window(1),
    "padding": Mask.padding([2]),
    "nothing": Mask.padding([0]),
    "bias": Mask.bias(torch.randn(5, 5, generator=torch.Generator().manual_seed(0))),
    "by head": Mask.allow(torch.rand(1, 4, 5, 5, generator=torch.Generator().manual_seed(0)) < 0.6),
}


@given(
    st.sampled_from(sorted(MASKS)), DTYPES, st.integers(1, 5), st.integers(1, 5),
    st.sampled_from([1, 2, 4]), st.sampled_from([None, 3]),
    st.sampled_from([(None, None), (0.3, None), (None, 2.0), (0.3, 2.0)]), st.booleans(),
)  # fmt: skip
def test_the_steps_end_in_what_forward_returns(
    kind: str, dtype: torch.dtype, d_k: int, d_v: int, kv_heads: int, n_out: int | None,
    factors: tuple[float | None, float | None], bias: bool,
) -> None:  # fmt: skip
    layer = MultiHeadAttention(
        4, num_heads=4, kv_heads=kv_heads, d_k=d_k, d_v=d_v, n_out=n_out,
        scale=factors[0], softcap=factors[1], bias=bias, dtype=dtype,
    )  # fmt: skip
    x = torch.randn(5, 4, dtype=dtype)
    mask = MASKS[kind]
    record = layer.explain(x, mask=mask)
    out = layer(x, x, x, mask=mask)
    agree(out, record.result, 20 * torch.finfo(dtype).eps)
    proof = record.verify()
    assert proof.fused is not None
    final = record.steps[-1].name
    agree(record.observed[final], array(out), 2 * torch.finfo(dtype).eps)
    assert set(record.observed) == {final, *(f"head {i}/output" for i in (1, 2, 3, 4))}


@pytest.mark.parametrize(
    "kind", [SelfAttention, MaskedSelfAttention, Attention, MultiHeadAttention]
)
@pytest.mark.parametrize("batch", [(), (3,), (2, 3)], ids=str)
def test_what_was_observed_is_forward_itself_bit_for_bit(
    kind: type, batch: tuple[int, ...]
) -> None:
    layer = kind(4)
    x = torch.randn(*batch, 5, 4)
    index = tuple(n - 1 for n in batch)
    record = layer.explain(x, batch=index)
    out = layer(x) if kind in (SelfAttention, MaskedSelfAttention) else layer(x, x, x)
    assert np.array_equal(record.observed[record.steps[-1].name], array(out[index]))
    agree(record["encodings"], array(x[index]), 0)


@pytest.mark.parametrize(
    "mask",
    [
        Mask.causal(), Mask.padding([37, 11, 1]), Mask.causal() & Mask.padding([37, 11, 1], "left"),
        Mask.window(3, 2), Mask.documents(torch.arange(37) // 5), Mask.bias(torch.randn(37, 37)),
    ],
    ids=["causal", "padding", "causal and padding", "window", "documents", "bias"],
)  # fmt: skip
def test_with_a_mask_too_forward_itself_was_observed(mask: Mask) -> None:
    layer = MultiHeadAttention(24, num_heads=3, d_k=8, d_v=8, n_out=24, bias=True)
    x = torch.randn(3, 37, 24)
    record = layer.explain(x, mask=mask, batch=1)
    assert np.array_equal(record.observed["projection/output"], array(layer(x, x, x, mask)[1]))
    record.verify()


def test_looking_changes_nothing() -> None:
    layer = MultiHeadAttention(4, num_heads=2, n_out=4, dropout=0.5)
    x = torch.randn(5, 4, requires_grad=True)
    before = copy.deepcopy(layer.state_dict())
    torch.manual_seed(1)
    out = layer(x, x, x)
    torch.manual_seed(1)
    record = layer.explain(x)
    assert layer.training
    assert torch.equal(layer(x, x, x), out), "the random numbers of dropout are left alone"
    assert x.grad is None
    assert all(p.grad is None for p in layer.parameters())
    for name, value in layer.state_dict().items():
        assert torch.equal(value, before[name])
    agree(record.result, array(layer.eval()(x, x, x)), 1e-6)


def test_sections_labels_and_sentences_of_two_heads() -> None:
    layer = MultiHeadAttention(2, num_heads=2, n_out=2)
    record = layer.explain(torch.randn(3, 2), tokens=["draw", "a", "map"], mask=True)
    assert record.title == "Masked self-attention, 2 heads"
    assert record.sections == ("inputs", "head 1", "head 2", "projection")
    head = record["head 2"]
    assert [s.short for s in head] == [
        "encodings", "mask", "WQ", "queries", "WK", "keys", "WV", "values", "similarities", "√d_k",
        "scaled", "masked", "maximum", "exponentials", "sums", "weights", "output",
    ]  # fmt: skip
    weights = record.step("head 2/weights")
    assert weights.rows == weights.columns == ("draw", "a", "map")
    assert record.step("head 1/queries").rows == ("draw", "a", "map")
    for step in record:
        assert step.value.shape == (len(step.rows), len(step.columns))
        assert step.symbol
    agree(record["inputs/mask"], reference.causal(3, 3), 0)
    agree(record["head 2/WQ"], array(layer.heads[1].WQ.weight), 0)
    assert record.step("inputs/encodings").operation is Operation.GIVEN


def test_one_head_is_shown_alone_and_counted_from_zero() -> None:
    layer = MultiHeadAttention(4, num_heads=3, n_out=4, bias=True)
    x = torch.randn(5, 4)
    whole, one = layer.explain(x), layer.explain(x, head=1)
    assert one.title == "Self-attention, head 2 of 3"
    assert one.sections == ()
    agree(one["output"], whole["head 2/output"], 0)
    agree(one["weights"], whole["head 2/weights"], 0)
    one.verify()


@pytest.mark.usefixtures("as_shipped")
@pytest.mark.parametrize("head", [3, -1, 99])
def test_a_head_that_is_not_there_is_named(head: int) -> None:
    layer = MultiHeadAttention(4, num_heads=3)
    with pytest.raises(ArgumentError, match=f"head is {head}; this layer has heads 0 to 2"):
        layer.explain(torch.randn(5, 4), head=head)


def test_cross_attention_has_two_sets_of_tokens() -> None:
    layer = Attention(4)
    x, y = torch.randn(3, 4), torch.randn(5, 4)
    english, spanish = ["the", "sky", "is", "so", "blue"], ["el", "cielo", "azul"]
    record = layer.explain(x, y, tokens=spanish, key_tokens=english)
    assert record.title == "Cross-attention"
    step = record.step("weights")
    assert (step.rows, step.columns) == (tuple(spanish), tuple(english))
    agree(record.result, array(layer(x, y, y)), 1e-6)
    assert [s.name for s in record][:2] == ["query encodings", "key encodings"]
    z = torch.randn(5, 4)
    three = layer.explain(x, y, z)
    agree(three.result, array(layer(x, y, z)), 1e-6)
    assert three.step("value encodings").symbol == "Z"
    three.verify()


@pytest.mark.parametrize("example", [(0, 0), (1, 2), (-1, -1), 1, (1,)], ids=str)
def test_the_mask_of_the_example_is_shown_not_anothers(example: int | tuple[int, ...]) -> None:
    layer = MultiHeadAttention(4, num_heads=2)
    x = torch.randn(2, 3, 5, 4)
    index = (example,) if isinstance(example, int) else example
    index = (*index, 0)[:2]
    for mask in (
        Mask.padding(torch.tensor([[1, 2, 3], [4, 5, 2]])),
        Mask.padding([1, 3, 5]),
        Mask.padding(torch.tensor([[2], [4]])),
        Mask.bias(torch.randn(2, 3, 2, 5, 5)),
        Mask.bias(torch.randn(1, 2, 5, 5)) & Mask.padding([1, 3, 5]),
    ):
        record = layer.explain(x, mask=mask, batch=example)
        agree(record.result, array(layer(x, x, x, mask=mask)[index]), 1e-6)
        record.verify()


def test_masks_that_differ_by_head_stand_in_the_heads_sections() -> None:
    layer = MultiHeadAttention(4, num_heads=4)
    may_look = torch.rand(1, 4, 5, 5) < 0.6
    record = layer.explain(torch.randn(5, 4), mask=Mask.allow(may_look))
    for head in range(4):
        agree(record[f"head {head + 1}/mask"], reference.blocked(may_look[0, head]), 0)
    one = layer.explain(torch.randn(5, 4), mask=Mask.allow(may_look), head=2)
    agree(one["mask"], reference.blocked(may_look[0, 2]), 0)
    one.verify()


def test_a_row_that_may_look_at_nothing_is_shown_as_zeros() -> None:
    layer = MaskedSelfAttention(4, mask=Mask.causal(offset=-1), dtype=torch.float64)
    record = layer.explain(torch.randn(5, 4).double())
    agree(record["weights"][0], np.zeros(5), 0)
    agree(record["output"][0], np.zeros(4), 0)
    agree(record["sums"][0], [0], 0)
    record.verify()


def test_a_forward_pass_that_goes_wrong_is_found_by_the_proof(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    layer = MultiHeadAttention(4, num_heads=2)
    right = layer.context

    def swapped(*args: object) -> torch.Tensor:
        return right(*args).flip(-3)

    monkeypatch.setattr(layer, "context", swapped)
    with pytest.raises(VerificationError, match="head 1/output: the fused value is"):
        layer.explain(torch.randn(5, 4)).verify()


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_encodings_that_are_not_finite_are_refused(bad: float) -> None:
    x = torch.randn(3, 4)
    x[1, 2] = bad
    with pytest.raises(ArgumentError, match=r"encodings .*wanted finite numbers"):
        SelfAttention(4).explain(x)
    with pytest.raises(ArgumentError, match=r"key encodings .*wanted finite numbers"):
        Attention(4).explain(torch.randn(3, 4), x)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_refused(bad: float) -> None:
    layer = SelfAttention(4)
    with torch.no_grad():
        layer.WK.weight[0, 1] = bad
    with pytest.raises(ArgumentError, match=f"WK holds {bad} in row 0, column 1; wanted finite"):
        layer.explain(torch.randn(3, 4))


@pytest.mark.usefixtures("as_shipped")
def test_what_does_not_fit_is_named() -> None:
    layer = MultiHeadAttention(4, num_heads=2)
    x = torch.randn(2, 5, 4)
    with pytest.raises(ShapeError, match=r"enc_q is \(5, 3\); wanted \(…, tokens, n_embed=4\)"):
        layer.explain(torch.randn(5, 3))
    with pytest.raises(ShapeError, match=r"enc_k is \(7, 3\)"):
        layer.explain(torch.randn(5, 4), torch.randn(7, 3))
    with pytest.raises(ArgumentError, match="no tokens; wanted one row a token"):
        layer.explain(torch.randn(0, 4))
    with pytest.raises(ArgumentError, match="there are 2 tokens for the 5 rows of encodings"):
        layer.explain(x, tokens=["a", "b"])
    for batch in (2, -3, (0, 0)):
        with pytest.raises(ShapeError, match=r"batch is .*, but the batch axes are \(2,\)"):
            layer.explain(x, batch=batch)
    with pytest.raises(ShapeError, match=r"batch is 1, but the batch axes are \(\)"):
        layer.explain(x[0], batch=1)
    with pytest.raises(MaskError, match="mask got a bare tensor"):
        layer.explain(x, mask=torch.ones(5, 5, dtype=torch.bool))
    with pytest.raises(MaskError, match="queries differ, 4 ≠ 5"):
        layer.explain(x, mask=Mask.allow(torch.ones(4, 4, dtype=torch.bool)))
    with pytest.raises(MaskError, match=r"mask has the batch axes|batch or heads differ"):
        layer.explain(torch.randn(3, 5, 4), mask=Mask.padding([3, 5]), batch=2)
    with pytest.raises(MaskError, match="batch or heads differ"):
        layer.explain(x, mask=Mask.bias(torch.zeros(1, 3, 5, 5)))
    with pytest.raises(MaskError, match="5 queries look at 3 keys"):
        layer.explain(x, x[:, :3], mask=True)


def test_one_token_attends_to_itself() -> None:
    record = SelfAttention(4).explain(torch.randn(1, 4), tokens=["map"])
    agree(record["weights"], [[1.0]], 0)
    agree(record["output"], record["values"], 1e-7)
    record.verify()


def test_scale_and_soft_cap_are_shown_as_steps() -> None:
    record = SelfAttention(4, scale=0.3, softcap=1.5).explain(torch.randn(3, 4))
    assert record["scale"].item() == pytest.approx(0.3)
    assert record["cap"].item() == 1.5
    agree(record["capped"], 1.5 * np.tanh(record["scaled"] / 1.5), 1e-6)
    agree(record["scaled"], record["similarities"] * 0.3, 1e-6)
    plain = SelfAttention(9).explain(torch.randn(3, 9))
    assert plain["√d_k"].item() == 3.0
