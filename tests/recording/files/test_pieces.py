"""Tensors in flat pieces: what shares memory is written once."""

import torch

from qkv.recording.files.pieces import Pieces, views_of


def back(*tensors: torch.Tensor) -> tuple[list[torch.Tensor], dict[str, torch.Tensor]]:
    pieces = Pieces()
    numbers = [pieces.add(tensor) for tensor in tensors]
    flat = pieces.flat()
    found = views_of(flat, pieces.views())
    return [found[number] for number in numbers], flat


def test_views_of_one_tensor_are_one_piece_as_far_as_it_is_used() -> None:
    whole = torch.randn(10, 6)
    views = [whole[2:4], whole[3:7].mT, whole[5, 1:5], whole[3:4].expand(8, 6)]
    found, flat = back(*views)
    for one, other in zip(found, views, strict=True):
        assert torch.equal(one, other)
    assert [piece.numel() for piece in flat.values()] == [5 * 6]


def test_tensors_of_their_own_are_pieces_of_their_own() -> None:
    tensors = [torch.randn(3), torch.arange(4), torch.tensor([True]), torch.randn(2).bfloat16()]
    found, flat = back(*tensors)
    assert len(flat) == 4
    for one, other in zip(found, tensors, strict=True):
        assert one.dtype == other.dtype
        assert torch.equal(one, other)


def test_the_same_tensor_twice_is_one_number() -> None:
    pieces, tensor = Pieces(), torch.randn(3, 4)
    assert pieces.add(tensor) == pieces.add(tensor.view(3, 4))
    assert pieces.add(tensor.mT) != pieces.add(tensor)


def test_what_was_made_for_the_file_alone_keeps_its_place() -> None:
    pieces = Pieces()
    numbers = [pieces.add(torch.full((100,), float(i))) for i in range(50)]
    found = views_of(pieces.flat(), pieces.views())
    assert [float(found[number][0]) for number in numbers] == list(range(50))


def test_empty_and_trained_tensors_come_back() -> None:
    found, _ = back(torch.empty(2, 0, 5), torch.randn(2, requires_grad=True))
    assert found[0].shape == (2, 0, 5)
    assert not found[1].requires_grad
