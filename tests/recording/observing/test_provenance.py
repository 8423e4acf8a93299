"""How tensors were made, as long as they live."""

import gc

import torch
from torch import nn

from qkv.recording.observing.axes import resolved
from qkv.recording.observing.nodes import Node, Seen
from qkv.recording.observing.provenance import Provenance


def test_a_node_is_gone_with_its_storage() -> None:
    known = Provenance()
    x = torch.zeros(3, 4)
    known.node(x)
    view = x.view(12)
    del x
    assert len(known) == 1, "a view keeps the storage"
    del view
    assert len(known) == 0


def test_nothing_is_swept_and_nothing_leaks() -> None:
    known = Provenance()
    gc.disable()
    try:
        for _ in range(3000):
            x = torch.zeros(2, 2)
            held = known.hold(x)
            known.follow("same", x.clone(), known.node(x))
            del held, x
        assert len(known) == 0
        assert len(known._held) < 1100, "swept now and then, by their number"
    finally:
        gc.enable()


def test_a_view_is_known_by_its_strides_alone() -> None:
    known = Provenance()
    x = torch.zeros(2, 5, 12)
    node = known.node(x)
    view = known.find(x.view(2, 5, 3, 4).transpose(1, 2))
    assert view is not None
    assert view.parents == (node,)
    assert [len(resolved(factors)) for factors in view.axes] == [1, 1, 1, 1]
    assert resolved(view.axes[1]) + resolved(view.axes[3]) == resolved(node.axes[2])


def test_an_unknown_view_leads_to_its_owner() -> None:
    known = Provenance()
    x = torch.zeros(2, 6)
    assert known.node(x[:, :3]).parents[0] is known.find(x)


def test_parameters_are_learned_and_their_views_too() -> None:
    parameter = nn.Parameter(torch.zeros(2, 3))
    assert Provenance().node(parameter).learned
    assert Provenance().node(parameter.T).learned
    assert not Provenance().node(torch.zeros(2, 3, requires_grad=True)).learned


def test_the_origin_is_what_was_scaled_copied_and_repeated() -> None:
    known = Provenance()
    x = torch.randn(2, 1, 4)
    expanded = x.expand(2, 3, 4)
    copied = expanded.clone()
    known.follow("same", copied, known.node(expanded))
    scaled = copied * 0.5
    known.follow("scale", scaled, known.node(copied)).number = 0.5
    origin, _, factor = known.origin(scaled, known.node(scaled))
    assert origin.data_ptr() == x.data_ptr()
    assert factor == 0.5


def test_the_origin_of_a_part_is_no_more_than_the_part() -> None:
    known = Provenance()
    qkv = torch.randn(3, 2, 5)
    copied = qkv.clone()
    known.follow("same", copied, known.node(qkv))
    q = copied[0]
    scaled = q * 0.5
    known.follow("scale", scaled, known.node(q)).number = 0.5
    origin, _, _ = known.origin(scaled, known.node(scaled))
    torch.testing.assert_close(origin, q, atol=0, rtol=0)


def test_an_origin_that_is_gone_is_not_given() -> None:
    known = Provenance()
    x = torch.randn(2, 3)
    scaled = x * 0.5
    known.follow("scale", scaled, known.node(x)).number = 0.5
    del x
    origin, _, factor = known.origin(scaled, known.node(scaled))
    assert origin is scaled
    assert factor == 1.0


def test_an_origin_that_was_overwritten_is_not_given() -> None:
    known = Provenance()
    x = torch.randn(2, 3)
    node = known.node(x)
    scaled = x * 0.5
    known.follow("scale", scaled, node).number = 0.5
    known.before_write(x)
    x.zero_()
    known.written(x, node, "zero_")
    assert known.origin(scaled, known.node(scaled))[0] is scaled


def test_what_is_held_is_copied_before_it_is_overwritten() -> None:
    known = Provenance()
    x = torch.randn(4, 3)
    before = x.clone()
    first, second, apart = known.hold(x), known.hold(x[1:]), known.hold(torch.zeros(2))
    known.before_write(x[0])
    x.zero_()
    torch.testing.assert_close(first(), before, atol=0, rtol=0)
    torch.testing.assert_close(second(), before[1:], atol=0, rtol=0)
    assert apart().data_ptr() != first().data_ptr()
    copied = first()
    known.before_write(x)
    assert first() is copied, "it no longer lies there"


def test_what_is_held_of_one_tensor_is_copied_once() -> None:
    known = Provenance()
    mask = torch.randn(4, 3)
    cells = [known.hold(mask) for _ in range(3)]
    known.before_write(mask)
    assert len({cell().data_ptr() for cell in cells}) == 1


def test_what_is_not_held_comes_back_while_its_storage_lives() -> None:
    x = torch.randn(4, 3)
    seen = Seen.of(x.T)
    assert x.untyped_storage() is not None
    torch.testing.assert_close(seen(), x.T, atol=0, rtol=0)
    del x
    assert seen() is None


def test_a_write_that_no_one_explains_is_forgotten_with_the_reason() -> None:
    known = Provenance()
    x = torch.zeros(2, 3)
    node = Node("product", x)
    node.left, node.strong = 5, True
    known.put(x, node)
    known.written(x, node, "aten.scatter_")
    assert known.node(x).reason == "aten.scatter_ wrote into the similarities"


def test_a_write_into_a_part_does_not_pass_for_the_whole() -> None:
    known = Provenance()
    x = torch.zeros(4, 3)
    node = known.node(x)
    known.follow("same", x[:2], known.node(x[:2]))
    assert known.find(x) is node


def test_rows_written_into_a_cache_bring_their_source() -> None:
    known = Provenance()
    cache, row = torch.zeros(2, 8, 3), torch.zeros(2, 1, 3)
    made = Node("leaf", row)
    made.source = mark = object()
    known.put(row, made)
    known.refill(cache, made)
    assert known.node(cache).source is mark
    assert known.node(cache).layout.shape == cache.shape


def test_a_copy_and_a_normalisation_have_the_mark_of_what_they_read() -> None:
    known = Provenance()
    x = torch.randn(2, 3)
    copied, normal = x.clone(), x.clone()
    known.follow("same", copied, known.node(x))
    known.follow("normalised", normal, known.node(copied))
    assert known.node(normal).mark is known.node(x).mark
    assert known.node(torch.zeros(2, 3)).mark is not known.node(x).mark
