"""Weights in blocks give the products that rows give."""

from threading import Thread

import pytest
import torch
from torch import Tensor, nn

from qkv.core import laid as laying
from qkv.core.laid import FEW, Laid
from qkv.core.product import BFLOAT16, LARGE, linear
from tests.dispatch import watched
from tests.reference import agree, array

INPUTS, OUTPUTS = 515, 517
BLOCKS = "mkldnn::_linear_pointwise"
WITHIN = {torch.float32: 1e-4, torch.bfloat16: 0.5}  # sums of 515 products of about 1
DTYPES = [
    torch.float32,
    pytest.param(
        torch.bfloat16, marks=pytest.mark.skipif(not BFLOAT16, reason="no products of bfloat16")
    ),
]

pytestmark = pytest.mark.usefixtures("writing")


@pytest.fixture(name="writing")
def _writing() -> object:
    with torch.no_grad():
        yield


def drawn(dtype: torch.dtype = torch.float32) -> nn.Parameter:
    assert INPUTS * OUTPUTS >= LARGE
    return nn.Parameter(torch.randn(OUTPUTS, INPUTS).to(dtype))


def ways(x: Tensor, W: Tensor, b: Tensor | None = None) -> list[str]:
    return [name for name in watched(lambda: linear(x, W, b)).names if name == BLOCKS]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("rows", [(1,), (3,), (FEW,), (2, 1), (2, 4), (1, 1), ()], ids=str)
@pytest.mark.parametrize("bias", [False, True])
def test_blocks_give_the_same_product(
    dtype: torch.dtype, rows: tuple[int, ...], bias: bool
) -> None:
    W, blocks = drawn(dtype), Laid()
    b = torch.randn(OUTPUTS).to(dtype) if bias else None
    for _ in range(3):
        x = torch.randn(*rows, INPUTS).to(dtype)
        wide = x.double() @ W.double().mT + (0 if b is None else b.double())
        with blocks.used():
            agree(linear(x, W, b), array(wide), WITHIN[dtype])
    assert len(blocks.blocks) == 1


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_numbers_do_not_move_much_when_blocks_come_into_use(dtype: torch.dtype) -> None:
    W, x, blocks = drawn(dtype), torch.randn(2, INPUTS).to(dtype), Laid()
    with blocks.used():
        before, after = linear(x, W), linear(x, W)
    room = 4 * torch.finfo(dtype).eps * float(before.abs().max())
    assert float((before - after).abs().max()) <= room


def test_they_are_made_at_the_first_product_and_read_from_the_second_on() -> None:
    W, x, blocks = drawn(), torch.randn(1, INPUTS), Laid()
    linear(x, W)
    assert not blocks.blocks
    with blocks.used():
        linear(x, W)
        (kept,) = blocks.blocks.values()
        W.zero_()  # what is laid out already is read
        assert float(linear(x, W).abs().max()) > 0
    assert kept[0] is W
    assert float(linear(x, W).abs().max()) == 0


def test_what_does_not_fit_them_goes_its_own_way() -> None:
    W, blocks = drawn(), Laid()
    with blocks.used():
        linear(torch.randn(1, INPUTS), W)
        agree(linear(x := torch.randn(FEW + 1, INPUTS), W), array(x.double() @ W.double().mT), 1e-4)
        with pytest.raises((RuntimeError, TypeError)):  # by shapes, where these are checked
            linear(torch.randn(1, INPUTS + 1), W)
        with pytest.raises(RuntimeError):
            linear(torch.randn(1, INPUTS, dtype=torch.float64), W)
        with pytest.raises((RuntimeError, TypeError)):
            linear(torch.randn(1, INPUTS), W, torch.randn(OUTPUTS + 1))
        spread = torch.randn(2 * OUTPUTS)[::2]
        x = torch.randn(1, INPUTS)
        agree(linear(x, W, spread), array(x.double() @ W.double().mT + spread.double()), 1e-4)
        assert linear(torch.randn(0, INPUTS), W).shape == (0, OUTPUTS)


def test_views_and_small_matrices_are_not_laid_out() -> None:
    W, blocks = drawn(), Laid()
    with blocks.used():
        for matrix in (W[:], W.detach(), nn.Parameter(torch.randn(7, INPUTS))):
            linear(torch.randn(1, INPUTS), matrix)
    assert not blocks.blocks


def test_there_is_a_limit_to_their_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = drawn(), drawn()
    monkeypatch.setattr(laying, "MOST", first.nbytes + second.nbytes - 1)
    blocks, x = Laid(), torch.randn(1, INPUTS)
    with blocks.used():
        for W in (first, second, first, second):
            agree(linear(x, W), array(x.double() @ W.double().mT), 1e-4)
    assert [kept[0] is first for kept in blocks.blocks.values()] == [True]


def test_only_this_thread_uses_them_and_only_within() -> None:
    W, blocks, inner = drawn(), Laid(), Laid()
    x = torch.randn(1, INPUTS)
    with blocks.used():
        other = Thread(target=lambda: linear(x, W))
        other.start()
        other.join()
        assert not blocks.blocks
        with inner.used():
            linear(x, W)
        assert not blocks.blocks
        with pytest.raises(ZeroDivisionError), inner.used():
            raise ZeroDivisionError
        linear(x, W)
    linear(x, drawn())
    assert len(blocks.blocks) == len(inner.blocks) == 1


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_they_are_one_operation_to_whoever_watches(dtype: torch.dtype) -> None:
    W, x, blocks = drawn(dtype), torch.randn(1, INPUTS).to(dtype), Laid()
    with blocks.used():
        linear(x, W)
        assert ways(x, W) == [BLOCKS]
