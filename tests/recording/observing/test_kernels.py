"""Fused attention is recorded with all that it was given."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.recording.recomputed import assert_explains_its_output, assert_nothing_changed, observe

FLASH = "_scaled_dot_product_flash_attention_for_cpu"
BATCH, HEADS, QUERIES, KEYS, D_K = 2, 6, 5, 7, 4


def tensors(kv_heads: int = HEADS) -> tuple[Tensor, Tensor, Tensor]:
    return (
        torch.randn(BATCH, HEADS, QUERIES, D_K),
        torch.randn(BATCH, kv_heads, KEYS, D_K),
        torch.randn(BATCH, kv_heads, KEYS, D_K),
    )


GIVEN = {
    "nothing": {},
    "a scale": {"scale": 0.3},
    "a triangle": {"is_causal": True},
    "a mask": {"attn_mask": torch.ones(QUERIES, KEYS, dtype=torch.bool).tril(1)},
    "a mask of each sentence": {"attn_mask": (torch.arange(KEYS) < 5)[None, None, None]},
    "a bias of each head": {
        "attn_mask": torch.linspace(-1, 1, HEADS)[None, :, None, None].expand(
            1, HEADS, QUERIES, KEYS
        )
    },
}


@pytest.mark.parametrize("given", GIVEN)
@pytest.mark.parametrize("context", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_what_the_kernel_is_given_is_recorded(given: str, context: Callable) -> None:
    q, k, v = tensors()
    observed = observe(
        lambda: F.scaled_dot_product_attention(q, k, v, **GIVEN[given]), context=context
    )
    assert observed.only.how == FLASH
    assert observed.only.empty_is_zero
    assert observed.only.scores[0].number == GIVEN[given].get("scale", D_K**-0.5)
    for mine, theirs in zip((q, k, v), _inputs(observed.only), strict=True):
        assert mine.data_ptr() == theirs.data_ptr(), "by reference"
    assert_explains_its_output(observed.only)
    assert_nothing_changed(observed)


def _inputs(operands: object) -> tuple[Tensor, Tensor, Tensor]:
    return operands.q, operands.k, operands.v


@pytest.mark.parametrize("kv_heads", [1, 2, 3])
def test_grouped_heads_are_kept_as_they_were(kv_heads: int) -> None:
    q, k, v = tensors(kv_heads)
    group = HEADS // kv_heads

    def repeated(x: Tensor) -> Tensor:
        return x[:, :, None].expand(-1, -1, group, -1, -1).reshape(BATCH, HEADS, KEYS, D_K)

    for run in (
        lambda: F.scaled_dot_product_attention(q, repeated(k), repeated(v)),
        lambda: F.scaled_dot_product_attention(q, k, v, enable_gqa=True),
    ):
        observed = observe(run)
        torch.testing.assert_close(observed.only.k, k, atol=0, rtol=0)
        torch.testing.assert_close(observed.only.v, v, atol=0, rtol=0)
        assert_explains_its_output(observed.only)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_every_precision_is_recorded(dtype: torch.dtype) -> None:
    q, k, v = (x.to(dtype) for x in tensors())
    observed = observe(lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True))
    assert observed.only.q.dtype == dtype
    assert_explains_its_output(observed.only)


def test_what_no_kernel_takes_is_recorded_as_it_is_written_out() -> None:
    q, k, v = tensors()
    wide = torch.randn(BATCH, HEADS, KEYS, 9)
    for run in (
        lambda: F.scaled_dot_product_attention(q, k, wide),
        lambda: F.scaled_dot_product_attention(q, k, v, dropout_p=0.4),
        lambda: F.scaled_dot_product_attention(q[0], k[0], v[0], is_causal=True),
    ):
        observed = observe(run)
        assert observed.only.how == "written out"
        assert observed.only.scores[0].number == pytest.approx(D_K**-0.5)
        assert_explains_its_output(observed.only)
        assert_nothing_changed(observed)


def test_rows_that_may_look_at_nothing_are_zero() -> None:
    q, k, v = tensors()
    mask = torch.ones(QUERIES, KEYS, dtype=torch.bool)
    mask[2] = False
    observed = observe(lambda: F.scaled_dot_product_attention(q, k, v, attn_mask=mask))
    assert not observed.only.output[:, :, 2].any()
    assert_explains_its_output(observed.only)


def test_the_output_projection_is_found_head_by_head() -> None:
    out = nn.Linear(HEADS * D_K, 9)
    q, k, v = tensors()

    def run() -> Tensor:
        y = F.scaled_dot_product_attention(q, k, v)
        return out(y.transpose(1, 2).reshape(BATCH, QUERIES, HEADS * D_K))

    observed = observe(run)
    assert observed.only.projection is not None
    W = observed.only.projection()
    assert W is not None
    again = torch.einsum("bhtd,hdo->bto", observed.only.output, W) + out.bias
    torch.testing.assert_close(again, observed.watched)


def test_an_operation_that_hides_attention_is_named() -> None:
    lib = torch.library.Library("hidden", "DEF")
    lib.define("attend(Tensor q, Tensor k, Tensor v) -> Tensor")
    lib.impl("attend", lambda q, k, v: (q @ k.mT).softmax(-1) @ v, "CPU")
    observed = observe(lambda: torch.ops.hidden.attend(*tensors()))
    assert "hidden.attend" in observed.misses.text()
    assert not observed.calls


@pytest.mark.parametrize("queries", [1, 3])
def test_heads_folded_into_the_rows_of_a_kernel_are_restored(queries: int) -> None:
    project, kv_heads, group = nn.Linear(9, HEADS * D_K), 2, HEADS // 2
    x, (_, k, v) = torch.randn(BATCH, queries, 9), tensors(kv_heads)
    bias = torch.randn(BATCH, 1, group * queries, KEYS)

    def run() -> Tensor:
        q = project(x).view(BATCH, queries, kv_heads, group, D_K).permute(0, 2, 3, 1, 4)
        packed = q.reshape(BATCH, kv_heads, group * queries, D_K)
        return F.scaled_dot_product_attention(packed, k, v, attn_mask=bias)

    with torch.no_grad():
        observed = observe(run)
        q = project(x).view(BATCH, queries, HEADS, D_K).transpose(1, 2)
    torch.testing.assert_close(observed.only.q, q)
    assert observed.only.k.shape == (BATCH, kv_heads, KEYS, D_K)
    assert_explains_its_output(observed.only)
    assert_nothing_changed(observed)
