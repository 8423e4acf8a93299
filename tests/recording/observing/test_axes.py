"""Axes as products of factors."""

import pytest
import torch

from qkv.recording.observing.axes import (
    Axes,
    Layout,
    UnclearError,
    axis,
    laid_out,
    of_view,
    pairs,
    resolved,
    size,
    unify,
)


def fresh(x: torch.Tensor) -> Axes:
    return [axis(length) for length in x.shape]


def viewed(x: torch.Tensor, view: torch.Tensor, axes: Axes) -> Axes:
    return of_view(Layout.of(view), Layout.of(x), axes)[0]


def sizes(axes: Axes) -> list[list[int]]:
    return [[factor.size for factor in resolved(factors)] for factors in axes]


def test_an_axis_of_one_place_has_no_factors() -> None:
    assert axis(1) == []
    assert size(axis(1)) == 1
    assert size(axis(6)) == 6


def test_heads_are_split_off_the_width_in_place() -> None:
    x = torch.zeros(2, 5, 12)
    axes = fresh(x)
    heads = viewed(x, x.view(2, 5, 3, 4).transpose(1, 2), axes)
    assert sizes(heads) == [[2], [3], [5], [4]]
    assert sizes(axes) == [[2], [5], [3, 4]], "the owner's width is seen split"


def test_flattened_axes_keep_their_factors() -> None:
    x = torch.zeros(2, 3, 5, 4)
    axes = fresh(x)
    assert sizes(viewed(x, x.view(6, 5, 4), axes)) == [[2, 3], [5], [4]]
    assert sizes(viewed(x, x.transpose(1, 3), axes)) == [[2], [4], [5], [3]]


def test_a_view_and_its_transpose_have_the_same_factors() -> None:
    x = torch.zeros(7, 7)
    axes = fresh(x)
    assert viewed(x, x.T, axes) == [axes[1], axes[0]]


def test_a_slice_is_a_new_factor_of_the_same_lineage() -> None:
    x = torch.zeros(2, 12)
    axes = fresh(x)
    (_, sliced) = viewed(x, x[:, 3:8], axes)
    assert sliced[0].size == 5
    assert sliced[0] is not axes[1][0]
    assert sliced[0].lineage == axes[1][0].lineage
    assert sizes(axes) == [[2], [12]], "the owner is not cut by a slice"


def test_slices_that_divide_an_axis_differently_do_not_contradict() -> None:
    x = torch.zeros(2, 48)  # rotary positions: 4 of 16 turned, 12 passed on, in each of 3 heads
    axes = fresh(x)
    heads = x.view(2, 3, 16)
    assert sizes(viewed(x, heads[..., 4:], axes)) == [[2], [3], [12]]
    assert sizes(viewed(x, heads[..., :4], axes)) == [[2], [3], [4]]
    assert sizes(viewed(x, heads, axes)) == [[2], [3], [16]]


def test_repeats_are_known() -> None:
    x = torch.zeros(2, 5)
    axes, repeated = of_view(Layout.of(x[:, None].expand(2, 3, 5)), Layout.of(x), fresh(x))
    assert axes[1] == repeated
    assert size(repeated) == 3


def test_overlapping_rows_are_unclear() -> None:
    x = torch.zeros(10, 4)
    with pytest.raises(UnclearError, match="mixes axes"):
        viewed(x, x.as_strided((4, 4, 4), (8, 4, 1)), fresh(x))


def test_unified_axes_are_the_same_afterwards() -> None:
    coarse, fine = axis(12), [*axis(3), *axis(4)]
    unify(coarse, fine)
    assert resolved(coarse) == resolved(fine)
    assert [factor.size for factor in resolved(coarse)] == [3, 4]


def test_axes_that_do_not_divide_cannot_be_paired() -> None:
    with pytest.raises(UnclearError, match="do not fit"):
        pairs([*axis(3), *axis(4)], [*axis(4), *axis(3)])


def test_a_tensor_is_laid_out_by_its_factors() -> None:
    x = torch.randn(6, 5, 4)
    batch, heads, tokens, width = axis(2), axis(3), axis(5), axis(4)
    axes = [[*batch, *heads], tokens, width]
    out = laid_out(x, axes, (heads, batch, width, tokens))
    torch.testing.assert_close(out, x.view(2, 3, 5, 4).permute(1, 0, 3, 2), atol=0, rtol=0)
    assert out.data_ptr() == x.data_ptr(), "a view"


def test_a_broadcast_axis_stays_one() -> None:
    mask = torch.randn(1, 1, 7)
    batch, heads, keys = axis(2), axis(3), axis(7)
    out = laid_out(mask, [batch, heads, keys], (batch, heads, axis(5), keys))
    assert out.shape == (1, 1, 1, 7)


def test_a_part_of_a_group_is_repeated_over_the_rest() -> None:
    x = torch.randn(2, 5)
    batch, windows, keys = axis(2), axis(3), axis(5)
    out = laid_out(x, [batch, keys], ([*batch, *windows], keys))
    torch.testing.assert_close(out, x.repeat_interleave(3, 0), atol=0, rtol=0)


def test_heads_that_share_keys_are_taken_once() -> None:
    k = torch.randn(2, 3, 7, 4)
    repeated = k[:, :, None].expand(2, 3, 5, 7, 4)
    batch, shared, group, keys, width = axis(2), axis(3), axis(5), axis(7), axis(4)
    heads = [*shared, *group]
    axes = [batch, shared, group, keys, width]
    out = laid_out(repeated, axes, (batch, heads, keys, width), repeated=group, grouped=1)
    torch.testing.assert_close(out, k, atol=0, rtol=0)
    before = [batch, shared, keys, width]
    torch.testing.assert_close(laid_out(k, before, (batch, heads, keys, width), grouped=1), k)


def test_factors_that_no_group_has_are_refused() -> None:
    with pytest.raises(UnclearError, match="axes that the similarities lack"):
        laid_out(torch.zeros(2, 3), [axis(2), axis(3)], (axis(2), axis(3)))
