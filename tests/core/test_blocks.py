"""Blocks of rows: where they run, that they are exact, and how little memory they take."""

from collections.abc import Iterator

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from qkv.core import blocks
from qkv.core.fused import attention
from qkv.core.mask import Mask
from tests import reference
from tests.dispatch import watched
from tests.problems import MASKS, problem
from tests.reference import agree

LONG, D = 2048, 4
BIAS = torch.zeros(1, 1, 1, LONG)


@pytest.fixture(scope="module", autouse=True)
def products_of_bfloat16() -> Iterator[None]:
    """Test the blocks on every processor, not only where they are the faster ones."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "BFLOAT16", True)
        yield


@pytest.mark.parametrize(
    ("queries", "keys", "in_blocks"), [(128, 128, True), (127, 128, False), (1, 16384, True)]
)
def test_bfloat16_inference_runs_in_blocks_from_128_by_128(
    queries: int, keys: int, in_blocks: bool
) -> None:
    q = torch.randn(1, 2, queries, 8, dtype=torch.bfloat16)
    k = torch.randn(1, 2, keys, 8, dtype=torch.bfloat16)
    ran = watched(lambda: attention(q, k, k))
    assert bool(ran.kernels) is not in_blocks
    assert any("softmax" in name for name in ran.names) is in_blocks


def test_a_processor_without_products_of_bfloat16_stays_fused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(blocks, "BFLOAT16", False)
    q = torch.randn(1, 2, 131, 8, dtype=torch.bfloat16)
    assert watched(lambda: attention(q, q, q)).kernels


def test_bfloat16_training_and_other_precisions_stay_fused() -> None:
    q = torch.randn(1, 2, 300, 8, dtype=torch.bfloat16, requires_grad=True)
    assert watched(lambda: attention(q, q, q), grad=True).kernels
    for dtype in (torch.float32, torch.float64, torch.float16):
        x = q.detach().to(dtype)
        assert watched(lambda x=x: attention(x, x, x)).kernels


@pytest.mark.parametrize("kv_heads", [4, 2, 1])
@pytest.mark.parametrize("kind", MASKS)
def test_bfloat16_blocks_equal_the_reference(kind: str, kv_heads: int) -> None:
    case = problem(
        kind, kv_heads=kv_heads, queries=131, keys=137, d_k=8, d_v=5, dtype=torch.bfloat16
    )
    out = attention(case.q, case.k, case.v, case.mask)
    agree(out, reference.attention(*case.arrays, case.added), 3e-2)


@given(st.sampled_from(MASKS), st.sampled_from([1, 100]), st.sampled_from([1, 2, 4]), st.booleans())
def test_the_size_of_a_block_changes_nothing(
    kind: str, pairs: int, kv_heads: int, trained: bool
) -> None:
    case = problem(kind, kv_heads=kv_heads, queries=19, keys=23)
    q, k, v = case.q, case.k, case.v
    if trained:
        q = q.requires_grad_()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "PAIRS", pairs)
        patch.setattr(blocks, "ROWS", 4)
        with torch.set_grad_enabled(trained):
            out = attention(q, k, v, case.mask, softcap=3.0)
    agree(out, reference.attention(*case.arrays, case.added, cap=3.0), 1e-12)


CASES = {
    "soft cap": {"softcap": 3.0},
    "soft cap and causal": {"softcap": 3.0, "mask": Mask.causal()},
    "soft cap and window": {"softcap": 3.0, "mask": Mask.window(100)},
    "soft cap and documents": {"softcap": 3.0, "mask": Mask.documents(torch.arange(LONG) // 300)},
    "trained bias": {"mask": Mask.bias(BIAS.clone().requires_grad_())},
    "trained bias and causal": {"mask": Mask.causal() & Mask.bias(BIAS.clone().requires_grad_())},
}


@pytest.fixture
def most(monkeypatch: pytest.MonkeyPatch) -> int:
    """Scores and weights of a block at most, with two threads: a head for each of them."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    return 4 * max(blocks.TALL, blocks.PAIRS)


@pytest.mark.parametrize("grad", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("options", CASES.values(), ids=CASES)
def test_memory_of_blocks_is_bounded_at_any_length(
    options: dict[str, object], grad: bool, most: int
) -> None:
    q, k, v = (torch.randn(1, 2, LONG, D, requires_grad=grad) for _ in range(3))
    ran = watched(lambda: attention(q, k, v, **options), grad=grad)
    assert not ran.kernels
    assert any("softmax" in name for name in ran.names)
    assert ran.largest <= most < LONG * LONG, f"{ran.largest} elements"


def test_memory_of_bfloat16_blocks_is_bounded(most: int) -> None:
    q = torch.randn(2, 2, LONG, D, dtype=torch.bfloat16)
    for mask in (None, Mask.causal(), Mask.window(100), Mask.padding([LONG, 100])):
        ran = watched(lambda mask=mask: attention(q, q, q, mask))
        assert not ran.kernels
        assert ran.largest <= most < LONG * LONG, f"{ran.largest} elements"


def test_training_keeps_no_block_until_the_backward_pass() -> None:
    """What autograd saves is q, k, v and small masks: each block is computed again."""
    q, k, v = (torch.randn(1, 2, LONG, D, requires_grad=True) for _ in range(3))
    saved: dict[int, int] = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        attention(q, k, v, softcap=3.0)
    assert sum(saved.values()) <= 16 * q.nbytes


def test_a_trained_bias_learns_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "PAIRS", 40)
    case = problem("causal and padding", seed=1)
    bias = torch.randn(1, 4, 5, 7, dtype=torch.float64, requires_grad=True)
    out = attention(case.q, case.k, case.v, case.mask & Mask.bias(bias))
    gradient = torch.autograd.grad(out.square().sum(), bias)[0]
    added = torch.tensor(case.added) + bias
    k, v = (t.repeat_interleave(2, 1) for t in (case.k, case.v))
    finite = (case.q @ k.mT / 3**0.5 + added).clamp(min=-1e30)
    nothing = (added == -torch.inf).all(-1, keepdim=True).expand(2, 4, 5, 1)
    wanted = torch.softmax(finite, -1).masked_fill(nothing, 0) @ v
    agree(gradient, torch.autograd.grad(wanted.square().sum(), bias)[0].detach(), 1e-12)


@pytest.mark.parametrize("keys", [128, 131, 150, 517])
def test_open_blocks_equal_the_reference_where_several_follow_each_other(
    keys: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The softmax overwrites its scores, block after block: no row may see another's remains."""
    monkeypatch.setattr(blocks, "PAIRS", 1 << 14)
    monkeypatch.setattr(blocks, "TALL", 1 << 15)
    q = torch.randn(3, 2, 211, 16, dtype=torch.bfloat16) * 3
    k, v = (torch.randn(3, 2, keys, 16, dtype=torch.bfloat16) for _ in range(2))
    ran = watched(lambda: attention(q, k, v))
    assert not ran.kernels
    exact = torch.softmax(q.double() @ k.double().mT / 4, -1) @ v.double()
    # similarities up to 40 are rounded to 8 bits: 2^-3 of them, and so 13 % of a weight
    assert (attention(q, k, v).double() - exact).abs().max() < 0.3
    rounded = (q * 0.25) @ k.mT
    by_rows = torch.softmax(rounded, -1) @ v
    assert (attention(q, k, v) - by_rows).abs().max() <= 2**-6 * by_rows.abs().max()
