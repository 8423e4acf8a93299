"""The kernel that ran is the fused one wherever attention promises it, and n × n never stands."""

import pytest
import torch

from qkv.core.fused import attention
from qkv.core.mask import Mask
from qkv.nn.attention import MultiHeadAttention
from tests.dispatch import FLASH, Ran, watched

LONG, D = 4096, 4
PLAIN = {"q": (2, 4, 6, 8), "k": (2, 4, 6, 8), "v": (2, 4, 6, 8)}
SHAPES = {
    "equal": PLAIN,
    "unequal lengths": {"q": (2, 4, 5, 8), "k": (2, 4, 7, 8), "v": (2, 4, 7, 8)},
    "d_v below d_k": {"q": (2, 4, 6, 8), "k": (2, 4, 6, 8), "v": (2, 4, 6, 3)},
    "d_v above d_k": {"q": (2, 4, 6, 3), "k": (2, 4, 6, 3), "v": (2, 4, 6, 8)},
    "two axes": {"q": (6, 8), "k": (6, 8), "v": (6, 8)},
    "three axes": {"q": (4, 6, 8), "k": (4, 6, 8), "v": (4, 6, 8)},
    "five axes": {"q": (2, 3, 4, 6, 8), "k": (2, 3, 4, 6, 8), "v": (2, 3, 4, 6, 8)},
    "grouped": {"q": (2, 4, 6, 8), "k": (2, 2, 6, 8), "v": (2, 2, 6, 8)},
    "one key/value head, other width": {"q": (2, 4, 6, 8), "k": (2, 1, 6, 8), "v": (2, 1, 6, 3)},
}
BATCHED = Mask.padding([6, 3])
MASKS = {
    "causal": Mask.causal(),
    "window": Mask.window(2, 1),
    "keys": Mask.keys(torch.tensor([True, False, True, True, False, True])),
    "padding": BATCHED,
    "left padding": Mask.padding([6, 3], side="left"),
    "causal and padding": Mask.causal() & BATCHED,
    "documents": Mask.documents(torch.tensor([0, 0, 1, 1, 2, 2])),
    "allow": Mask.allow(torch.rand(6, 6, generator=torch.Generator().manual_seed(0)) < 0.6),
    "allow by head": Mask.allow(
        torch.rand(2, 4, 6, 6, generator=torch.Generator().manual_seed(0)) < 0.6
    ),
    "bias": Mask.bias(torch.zeros(6, 6)),
    "alibi": Mask.causal() & Mask.alibi(4),
    "bias by head": Mask.causal() & Mask.bias(torch.zeros(1, 4, 6, 6)),
    "causal or keys": Mask.causal() | Mask.keys(torch.arange(6) < 2),
}
GRAD = pytest.mark.parametrize("grad", [False, True], ids=["inference", "training"])
DTYPES = pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str
)


def drawn(shapes: dict[str, tuple[int, ...]], dtype: torch.dtype, grad: bool) -> list[torch.Tensor]:
    return [torch.randn(shape, dtype=dtype, requires_grad=grad) for shape in shapes.values()]


def assert_fused(ran: Ran, calls: int | None = 1) -> None:
    forward = [name for name in ran.kernels if "backward" not in name]
    assert set(forward) == {FLASH}, ran.names
    assert ran.unfused == []
    assert calls is None or len(forward) == calls


@GRAD
@DTYPES
@pytest.mark.parametrize("shapes", SHAPES.values(), ids=SHAPES)
def test_any_shapes_run_one_fused_call(
    shapes: dict[str, tuple[int, ...]], dtype: torch.dtype, grad: bool
) -> None:
    q, k, v = drawn(shapes, dtype, grad)
    assert_fused(watched(lambda: attention(q, k, v), grad=grad))
    assert_fused(watched(lambda: attention(q, k, v, Mask.causal()), grad=grad))


@GRAD
@pytest.mark.parametrize("kv_heads", [4, 2])
@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_any_mask_runs_one_fused_call(mask: Mask, kv_heads: int, grad: bool) -> None:
    shapes = {**PLAIN, "k": (2, kv_heads, 6, 8), "v": (2, kv_heads, 6, 8)}
    q, k, v = drawn(shapes, torch.float32, grad)
    assert_fused(watched(lambda: attention(q, k, v, mask), grad=grad))


@GRAD
@pytest.mark.parametrize("lengths", [[LONG], [1000]], ids=["no padding", "padding"])
def test_causal_and_padding_are_one_call_that_forms_no_mask_over_pairs(
    lengths: list[int], grad: bool
) -> None:
    q, k, v = drawn(dict.fromkeys("qkv", (1, 1, LONG, D)), torch.float32, grad)
    ran = watched(lambda: attention(q, k, v, Mask.causal() & Mask.padding(lengths)), grad=grad)
    assert_fused(ran)
    assert ran.largest < LONG * LONG / 64


LONG_MASKS = {
    "none": None,
    "causal": Mask.causal(),
    "padding": Mask.padding([1000]),
    "window": Mask.window(64),
    "both sides": Mask.window(64, 64),
    "window and padding": Mask.window(64) & Mask.padding([3000]),
    "documents": Mask.documents(torch.arange(LONG) // 256),
    "causal documents": Mask.causal() & Mask.documents(torch.arange(LONG) // 256),
    "causal or keys": Mask.causal() | Mask.keys(torch.arange(LONG) < 100),
}


@GRAD
@pytest.mark.parametrize("mask", LONG_MASKS.values(), ids=LONG_MASKS)
def test_no_n_by_n_tensor_is_ever_made_for_a_long_text(mask: Mask | None, grad: bool) -> None:
    q, k, v = drawn(dict.fromkeys("qkv", (1, 2, LONG, D)), torch.float32, grad)
    ran = watched(lambda: attention(q, k, v, mask), grad=grad)
    assert_fused(ran, calls=None)
    assert ran.largest <= LONG * LONG / 8


@GRAD
@pytest.mark.parametrize("mask", [Mask.alibi(2), Mask.causal() & Mask.alibi(2)])
def test_alibi_of_a_long_text_is_made_in_runs_of_rows(mask: Mask, grad: bool) -> None:
    q, k, v = drawn(dict.fromkeys("qkv", (1, 2, LONG, D)), torch.float32, grad)
    ran = watched(lambda: attention(q, k, v, mask), grad=grad)
    assert_fused(ran, calls=None)
    assert ran.largest <= 2 * 512 * LONG  # heads × rows of a run × keys


@pytest.mark.parametrize("mask", [Mask.window(64), LONG_MASKS["causal documents"]])
def test_closed_tiles_of_a_long_text_are_skipped(mask: Mask) -> None:
    q, k, v = drawn(dict.fromkeys("qkv", (1, 1, LONG, D)), torch.float32, False)
    ran = watched(lambda: attention(q, k, v, mask))
    assert ran.largest <= 1024 * 512, "a run of rows saw more than its own and its neighbour's keys"


def test_a_long_window_equals_the_same_window_given_as_pairs() -> None:
    n = 2500  # above what is handed to the kernel as one tensor
    q, k, v = drawn(dict.fromkeys("qkv", (1, 2, n, D)), torch.float64, True)
    distance = torch.arange(n) - torch.arange(n)[:, None]
    pairs = torch.zeros(n, n, dtype=torch.float64)
    pairs = pairs.masked_fill((distance > 0) | (distance < -700), -torch.inf)
    out = attention(q, k, v, Mask.window(700))
    wanted = torch.softmax(q @ k.mT / D**0.5 + pairs, -1) @ v
    torch.testing.assert_close(out, wanted, rtol=0, atol=1e-12)
    got = torch.autograd.grad(out.square().sum(), (q, k, v))
    for gradient, other in zip(
        got, torch.autograd.grad(wanted.square().sum(), (q, k, v)), strict=True
    ):
        torch.testing.assert_close(gradient, other, rtol=0, atol=1e-10)


def test_what_watches_can_tell_an_unfused_path() -> None:
    q = torch.randn(2, 4, 6, 8)
    v = torch.randn(2, 4, 6, 3)
    ran = watched(lambda: torch.nn.functional.scaled_dot_product_attention(q, q, v))
    assert ran.unfused
    assert FLASH not in ran.kernels
    n = torch.zeros(64, 1)
    assert watched(lambda: n @ n.mT).largest == 64 * 64


@GRAD
@pytest.mark.parametrize(
    "options", [{}, {"d_k": 4, "d_v": 6}, {"kv_heads": 2, "n_out": 8}], ids=str
)
def test_a_module_makes_one_fused_call_for_all_its_heads(
    options: dict[str, int], grad: bool
) -> None:
    layer = MultiHeadAttention(8, num_heads=4, **options)
    x = torch.randn(2, 6, 8)
    assert_fused(watched(lambda: layer(x, x, x, mask=Mask.causal() & BATCHED), grad=grad))


STEP = {"q": (2, 6, 1, 8), "k": (2, 2, 7, 8), "v": (2, 2, 7, 8)}


@pytest.mark.parametrize(
    "mask",
    [None, Mask.causal(), Mask.padding([7, 3]), Mask.padding([7, 3], "left"), Mask.window(2)],
    ids=["none", "causal", "padding", "left padding", "window"],
)
def test_one_query_of_grouped_heads_folds_into_rows_of_as_many_heads_as_keys_have(
    mask: Mask | None,
) -> None:
    q, k, v = drawn(STEP, torch.float32, False)
    heads = []

    class Heads(Ran):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if "flash" in func._schema.name:
                heads.append(tuple(args[0].shape[1:3]))
            return super().__torch_dispatch__(func, types, args, kwargs)

    with Heads(), torch.no_grad():
        attention(q, k, v, mask)
    assert heads == [(2, 3)]
