"""Tensors in files: read whole, by rows, turned and reordered, into any place."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from qkv.errors import FileError
from qkv.models.formats import stored as storing
from qkv.models.formats.stored import Stored, plain, unreadable

KINDS = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


def written(path: Path, tensor: Tensor, kind: str, offset: int = 13) -> Stored:
    """Write a tensor behind some other bytes, and return it as stored."""
    content = (
        tensor.contiguous().view(torch.uint8) if tensor.dim() else tensor[None].view(torch.uint8)
    )
    path.write_bytes(b"x" * offset + content.numpy().tobytes() + b"yyy")
    return plain("it", tuple(tensor.shape), kind, path, offset)


@pytest.fixture(params=[3, 1 << 17])
def block(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Numbers read at once: less than a row, and more than all of them."""
    monkeypatch.setattr(storing, "BLOCK", request.param)
    return int(request.param)


@pytest.mark.usefixtures("block")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(7, 5), (6, 6), (3, 5, 2), (11,), (1,), (), (0, 4), (4, 0)])
def test_what_was_written_is_read(tmp_path: Path, kind: str, shape: tuple[int, ...]) -> None:
    tensor = torch.randn(shape).to(KINDS[kind])
    stored = written(tmp_path / "x", tensor, kind)
    assert torch.equal(stored.read(), tensor)
    assert stored.numbers == tensor.numel()
    for dtype in KINDS.values():
        place = torch.full(shape, torch.nan, dtype=dtype)
        stored.into(place)
        assert torch.equal(place, tensor.to(dtype))


@pytest.mark.usefixtures("block")
@pytest.mark.parametrize("size", [(7, 5), (6, 6)])
def test_parts_turns_and_orders_are_those_of_the_tensor(
    tmp_path: Path, size: tuple[int, int]
) -> None:
    tensor = torch.randn(size)
    order, other = torch.randperm(size[0]), torch.randperm(size[1])
    asked = {
        "transposed": (lambda s: s.transposed(), tensor.t()),
        "rows": (lambda s: s.rows(2, 5), tensor[2:5]),
        "rows of rows": (lambda s: s.rows(1, 6).rows(2, 4), tensor[3:5]),
        "reordered": (lambda s: s.reordered(lambda: order), tensor[order]),
        "columns": (lambda s: s.columns(1, 4), tensor[:, 1:4]),
        "columns of columns": (lambda s: s.columns(1, 5).columns(1, 3), tensor[:, 2:4]),
        "rows of columns": (lambda s: s.columns(1, 4).rows(2, 5), tensor[2:5, 1:4]),
        "columns of rows": (lambda s: s.rows(2, 5).columns(1, 4), tensor[2:5, 1:4]),
        "rows of a transpose": (lambda s: s.transposed().rows(1, 4), tensor.t()[1:4]),
        "columns of a transpose": (lambda s: s.transposed().columns(1, 4), tensor.t()[:, 1:4]),
        "turned twice": (lambda s: s.transposed().transposed(), tensor),
        "a transpose reordered": (
            lambda s: s.transposed().reordered(lambda: other),
            tensor.t()[other],
        ),
        "all": (
            lambda s: s.reordered(lambda: order).transposed().rows(1, 4).transposed(),
            tensor[order].t()[1:4].t(),
        ),
    }
    whole = Stored("it", size, "F32", lambda: tensor)
    for stored in (written(tmp_path / "x", tensor, "F32"), whole):
        for name, (ask, expected) in asked.items():
            answer = ask(stored)
            assert answer.shape == tuple(expected.shape), name
            assert torch.equal(answer.read(), expected), name
            for place in (torch.empty(expected.shape), torch.empty(expected.t().shape).t()):
                answer.into(place)
                assert torch.equal(place, expected), name


def test_a_part_reads_no_more_than_itself(tmp_path: Path) -> None:
    stored = written(tmp_path / "x", torch.randn(100, 3), "F32")
    part = stored.rows(10, 20)
    (tmp_path / "x").write_bytes((tmp_path / "x").read_bytes()[: 13 + 20 * 12])
    assert part.read().shape == (10, 3)
    with pytest.raises(FileError, match="x was cut off while it was being read"):
        stored.read()


def test_projections_side_by_side_are_read_a_block_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensor = torch.randn(400, 9)
    stored = written(tmp_path / "x", tensor, "F32")
    monkeypatch.setattr(storing, "BLOCK", 90)
    sizes = []
    numbers = storing.Span._numbers

    def seen(self: storing.Span, raw: bytearray, rows: int) -> Tensor:
        sizes.append(rows)
        return numbers(self, raw, rows)

    monkeypatch.setattr(storing.Span, "_numbers", seen)
    place = torch.empty(3, 400)
    stored.transposed().rows(3, 6).into(place)
    assert torch.equal(place, tensor[:, 3:6].t())
    assert sizes == [10] * 40


def test_an_order_is_made_when_it_is_read(tmp_path: Path) -> None:
    def never() -> Tensor:
        raise AssertionError("an order was made")

    stored = written(tmp_path / "x", torch.randn(5, 3), "F32").reordered(never)
    assert stored.shape == (5, 3)


def test_a_tensor_that_is_not_of_floats_says_so() -> None:
    stored = unreadable("it", (2,), "I8")
    assert not stored.floats
    with pytest.raises(FileError, match="it is I8, which is not read here"):
        stored.read()
    assert not plain("it", (2,), "I64", Path("x"), 0).floats
