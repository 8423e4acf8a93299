"""Masks of every shape that models make, read back; whatever is read is what was meant."""

from math import inf

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from qkv.core.mask import Mask
from qkv.core.mask_parts import Band, as_bias
from qkv.errors import MaskError
from qkv.recording.calls.blocking import Blocking
from qkv.recording.calls.form import form_of
from qkv.recording.calls.masks import Added, Forbidden, hides_all, narrowed, recognised
from qkv.recording.calls.operands import Operands, Operation
from tests.recording.programs import LEAST, Largest, real, triangle
from tests.reference import agree


def read(visible: Tensor, queries: int, keys: int) -> Mask | None:
    return recognised(narrowed(visible), torch.logical_not, queries, keys)


def opened(mask: Mask, queries: int, keys: int) -> Tensor:
    return mask.matrix(queries, keys) == 0


def banded(queries: int, keys: int, first: int, last: int) -> Tensor:
    """Query i sees the keys from i + first to i + last."""
    distance = torch.arange(keys) - torch.arange(queries)[:, None]
    return ((distance >= first) & (distance <= last))[None, None]


sizes = st.integers(1, 14)


@given(
    queries=sizes,
    keys=sizes,
    first=st.integers(-15, 3),
    width=st.integers(0, 15),
    seed=st.integers(0, 99),
)
def test_bands_and_padding_are_read_as_what_they_are(
    queries: int, keys: int, first: int, width: int, seed: int
) -> None:
    torch.manual_seed(seed)
    lengths = torch.randint(1, keys + 1, (2,)).tolist()
    visible = banded(queries, keys, first, first + width) & real(
        lengths, keys, side="left" if seed % 2 else "right"
    )
    mask = read(visible, queries, keys)
    assert mask is not None
    assert torch.equal(opened(mask, queries, keys).expand_as(visible), visible)
    assert hides_all(mask, queries, keys, torch.device("cpu")) == bool((~visible.any(-1)).any())


@given(queries=sizes, keys=sizes, seed=st.integers(0, 999), share=st.floats(0.05, 0.95))
def test_nothing_is_read_into_a_mask_that_is_not_there(
    queries: int, keys: int, seed: int, share: float
) -> None:
    torch.manual_seed(seed)
    visible = torch.rand(2, 1, queries, keys) < share
    mask = read(visible, queries, keys)
    if mask is not None:
        assert torch.equal(opened(mask, queries, keys).expand_as(visible), visible)


@pytest.mark.parametrize(
    ("queries", "keys", "first", "last", "band"),
    [
        (9, 9, -9, 0, Band(None, 0, None)),
        (5, 9, -9, 4, Band(None, 0, None)),  # the last query sees the last key
        (5, 9, -9, 0, Band(None, 0, 0)),  # upper left: a static cache being filled
        (5, 9, -9, 2, Band(None, 0, 2)),  # a later piece of the prompt
        (9, 9, -9, -1, Band(None, 0, -1)),  # not even itself
        (9, 9, -2, 2, Band(2, 2, None)),
        (9, 9, -3, 0, Band(3, 0, None)),
        (5, 9, 1, 4, Band(3, 0, None)),  # a window over a cache
        (5, 9, -2, 0, Band(2, 0, 0)),
    ],
)
def test_the_alignment_of_a_band_is_told(
    queries: int, keys: int, first: int, last: int, band: Band
) -> None:
    mask = read(banded(queries, keys, first, last), queries, keys)
    assert mask is not None
    assert mask.parts[0] == band or vars(mask.parts[0]) == vars(band)
    assert len(mask.parts) == 1


@pytest.mark.parametrize(
    ("first", "last", "seen"),
    [
        (-9, -1, 9),  # query 1 sees only what is before it: nothing
        (1, 9, 9),  # the last one only what comes after it: nothing
        (-9, 0, 9),
        (0, 9, 9),
        (4, 5, 9),
        (-1, 0, 0),
    ],
)
def test_queries_without_a_key_are_found(first: int, last: int, seen: int) -> None:
    visible = banded(9, 9, first, last) & real([9, seen], 9)
    offset = Band(-first, last, 0)
    keys = Mask.keys(real([9, seen], 9)[:, 0, 0])
    for mask in (Mask((offset,)) & keys, Mask.allow(visible)):
        assert hides_all(mask, 9, 9, torch.device("cpu")) == bool((~visible.any(-1)).any())


def test_a_window_is_found_in_many_rows() -> None:
    visible = banded(700, 700, -64, 64) & real([700, 512], 700)
    mask = read(visible, 700, 700)
    assert mask is not None
    blocking = Blocking.of(mask, 700, 700)
    assert blocking.window == (64, 64)
    assert str(blocking) == "window of 64 before and 64 after, 0 to 188 keys hidden"


def test_one_entry_that_does_not_fit_leaves_the_mask_unread() -> None:
    visible = triangle(40, 40).clone()
    visible[0, 0, 30, 17] = False
    assert read(visible, 40, 40) is None


def test_heads_that_differ_leave_the_mask_unread() -> None:
    visible = torch.cat([triangle(8, 8), torch.ones(1, 1, 8, 8).bool()], 1)
    assert read(visible, 8, 8) is None
    assert read(triangle(8, 8).repeat(1, 3, 1, 1), 8, 8) is not None


def test_padded_queries_are_told_beside_padded_keys() -> None:
    """DeBERTa hides the outer product of the padding with itself."""
    keys = real([6, 4], 6)
    mask = read(keys & keys.mT, 6, 6)
    assert mask is not None
    blocking = Blocking.of(mask, 6, 6)
    assert blocking.idle is not None
    assert not blocking.other
    assert torch.equal(blocking.idle, ~keys[:, 0, 0])
    assert torch.equal(opened(mask, 6, 6), (keys & keys.mT))


def test_a_step_of_decoding_over_a_static_cache_hides_keys_alone() -> None:
    visible = (torch.arange(12) <= 4)[None, None, None]
    blocking = Blocking.of(read(visible, 1, 12), 1, 12)
    assert not blocking.causal
    assert blocking.padding is not None
    assert int(blocking.padding.sum()) == 7


def test_an_expanded_mask_is_read_once() -> None:
    one = real([9, 5], 9)
    assert narrowed(one.expand(2, 16, 9, 9)).shape == (2, 1, 1, 9)
    assert torch.equal(narrowed(one.expand(2, 16, 9, 9)), one)


def test_parts_by_reference_answer_like_the_tensors_they_hold() -> None:
    hidden, bias = torch.rand(2, 1, 5, 7) < 0.3, torch.randn(1, 3, 5, 7)
    bias[0, 0, 1, 2] = torch.finfo(torch.float32).min
    mask = Mask((Forbidden(hidden), Added(bias, 0.5)))
    wanted = as_bias(~hidden, torch.float32) + 0.5 * bias
    wanted[:, 0, 1, 2] = -inf
    region = {"queries": 5, "keys": 7, "device": torch.device("cpu")}
    tile = mask.tile(range(1, 4), range(2, 7), **region)
    assert isinstance(tile, Tensor)
    finite = wanted[..., 1:4, 2:7]
    assert torch.equal(tile == -inf, finite == -inf)
    agree(tile.nan_to_num(neginf=0), finite.nan_to_num(neginf=0), 0)


def test_a_mask_of_another_size_is_refused() -> None:
    with pytest.raises(MaskError, match="queries or keys differ"):
        Mask((Forbidden(torch.zeros(1, 1, 5, 7).bool()),)).check(5, 8)


def test_queries_without_a_key_are_looked_for_in_blocks_over_all_heads() -> None:
    """A bias and a mask added as one, as T5 does: (batch, heads, queries, keys)."""
    n = 256
    visible = real([n, n - 40, n - 3, n], n)
    values = torch.randn(1, 8, n, n).expand(4, -1, -1, -1).masked_fill(~visible, LEAST)
    q, k = torch.randn(2, 4, 8, n, 3)
    operands = Operands(q, k, k, q, (Operation("add", lambda: values),))
    with Largest(values) as largest:
        form = form_of(operands)
    assert (form.plain, form.least) == (True, False)
    assert 0 < largest.numbers < values.numel() / 2


def test_a_part_that_only_adds_numbers_leaves_every_key_in_sight() -> None:
    bias = Added(torch.randn(1, 2, 5, 5))
    assert not hides_all(Mask((bias,)), 5, 5, torch.device("cpu"))
    hidden = torch.zeros(1, 2, 5, 5).masked_fill(torch.eye(5)[3, :, None] == 1, -inf)
    own = Added(hidden, hides=True)
    assert hides_all(Mask((bias, own)), 5, 5, torch.device("cpu"))
