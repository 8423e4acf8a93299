"""Read in steps through a cache or whole: the same numbers."""

import pickle
from collections.abc import Iterable
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from qkv import Mask, MultiHeadAttention
from qkv.core import laid
from qkv.core.product import linear
from qkv.errors import ArgumentError, ShapeError
from qkv.models.reading import place
from qkv.nn.cache import FIRST, SOON, Growing, KeyValueCache, LayerCache, Memory
from qkv.nn.layers import DecoderLayer, EncoderLayer
from qkv.nn.rotary import Rotary
from qkv.nn.transformer import Decoder
from tests.nn.test_layers import scrambled
from tests.reference import agree, array

BATCH, TOKENS, WIDTH = 2, 11, 24
STEPS = [[1] * 11, [11], [4, 1, 1, 5], [7, 4], [1, 9, 1]]
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "rotary": {"rotary": Rotary(4)},
    "rotary pairs, grouped": {"rotary": Rotary(4, layout="pairs"), "kv_heads": 2},
    "pre-norm, RMS, gated": {
        "norm_first": True, "norm": nn.RMSNorm, "activation": "silu", "gated": True,
        "kv_heads": 3, "rotary": Rotary(4, 50.0), "bias": False,
    },
}  # fmt: skip


def drawn(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def cuts(x: Tensor, steps: Iterable[int]) -> list[Tensor]:
    return list(x.split(list(steps), -2))


# ---------------------------------------------------------------- one attention


def filled(kept: Growing, steps: Iterable[int], kv_heads: int = 3) -> tuple[Tensor, Tensor, list]:
    """Extend with random keys and values; return all of them, and what each step gave back."""
    steps = list(steps)
    k, v = drawn(BATCH, kv_heads, sum(steps), 5), drawn(BATCH, kv_heads, sum(steps), 7)
    given = []
    for a, b in zip(cuts(k, steps), cuts(v, steps), strict=True):
        expected = kept.keys_with(a.shape[-2])
        pair = kept.extend(a, b)
        assert pair[0].shape[-2] == pair[1].shape[-2] == expected
        given.append(tuple(t.clone() for t in pair))
    return k, v, given


@pytest.mark.parametrize("most", [None, 11, 200])
@pytest.mark.parametrize("steps", [*STEPS, [FIRST, 1, 1], [FIRST + 3, 200, 1], [3] * 60])
def test_keys_and_values_of_every_step_are_all_there(most: int | None, steps: list[int]) -> None:
    if most is not None and most < sum(steps):
        most = sum(steps)
    kept = Growing(most)
    k, v, given = filled(kept, steps)
    end = 0
    for step, (keys, values) in zip(steps, given, strict=True):
        end += step
        agree(keys, array(k[:, :, :end]), 0)
        agree(values, array(v[:, :, :end]), 0)
    assert kept.length == end
    agree(kept.read()[0], array(k), 0)
    agree(kept.read()[1], array(v), 0)


def test_a_static_cache_never_moves_and_says_when_it_is_full() -> None:
    kept = Growing(5)
    k, v, _ = filled(kept, [1])
    where = kept.read()[0].data_ptr()
    kept.extend(k.expand(2, 3, 4, 5), v.expand(2, 3, 4, 7))
    assert kept.read()[0].data_ptr() == where
    with pytest.raises(ArgumentError) as error:
        kept.extend(k, v)
    assert str(error.value) == (
        "the cache has room for 5 tokens, 6 are wanted; say a larger `most`, or none"
    )
    assert kept.length == 5


def test_a_growing_cache_seldom_moves() -> None:
    kept, places = Growing(), set()
    for _ in range(1000):
        places.add(kept.extend(drawn(1, 1, 1, 2), drawn(1, 1, 1, 2))[0].data_ptr())
    assert len(places) <= 5


@pytest.mark.parametrize("window", [1, 2, 3, 5])
@pytest.mark.parametrize("steps", [[1] * 40, [7, 1, 1, 1, 9, 1, 1], [3] * 20, [20, 20, 1], [2, 5]])
def test_a_window_keeps_the_newest_and_never_fewer_than_a_query_may_see(
    window: int, steps: list[int]
) -> None:
    kept = Growing(None, window)
    k, v, given = filled(kept, steps)
    end = 0
    for step, (keys, values) in zip(steps, given, strict=True):
        end += step
        count = keys.shape[-2]
        assert count >= min(end, window - 1 + step)
        agree(keys, array(k[:, :, end - count : end]), 0)
        agree(values, array(v[:, :, end - count : end]), 0)
    assert kept.length == end
    if steps[0] == 1:
        assert given[-1][0].shape[-2] <= 2 * window


@pytest.mark.parametrize("window", [None, 4])
def test_rows_go_on_from_others(window: int | None) -> None:
    kept = Growing(None, window)
    k, v, _ = filled(kept, [5, 1])
    for rows in (torch.tensor([1, 0]), torch.tensor([1, 1, 0, 1, 0]), torch.tensor([2])):
        k, v = k[rows], v[rows]
        kept.reorder(rows)
        new = drawn(len(rows), 3, 1, 5), drawn(len(rows), 3, 1, 7)
        k, v = torch.cat((k, new[0]), 2), torch.cat((v, new[1]), 2)
        for ours, wanted in zip(kept.extend(*new), (k, v), strict=True):
            agree(ours, array(wanted[:, :, -ours.shape[2] :]), 0)
    Growing().reorder(torch.tensor([0]))  # nothing was read: nothing to reorder


def test_what_does_not_fit_is_refused() -> None:
    kept = Growing()
    with pytest.raises(ArgumentError, match="the cache is empty: nothing has been read yet"):
        kept.read()
    with pytest.raises(ArgumentError, match="the cache is empty: nothing has been read yet"):
        Memory().read()
    filled(kept, [2])
    for shape in ((3, 3, 1, 5), (2, 2, 1, 5), (2, 3, 1, 6)):
        with pytest.raises(ShapeError) as error:
            kept.extend(drawn(*shape), drawn(*shape))
        assert str(error.value) == f"k is {shape}, the cache holds (2, 3, 2, 5)"
    assert kept.length == 2


@pytest.mark.usefixtures("as_shipped")
@pytest.mark.parametrize("batch", [(), (2, 2)])
def test_a_cache_wants_one_batch_axis(batch: tuple[int, ...]) -> None:
    layer = MultiHeadAttention(WIDTH, num_heads=6).double()
    x = drawn(*batch, 3, WIDTH)
    with pytest.raises(ShapeError, match="a cache wants one batch axis"), torch.no_grad():
        layer(x, x, x, cache=Growing())


@pytest.mark.parametrize(("name", "arguments"), [
    ("num_layers", {"num_layers": 0}), ("most", {"num_layers": 1, "most": 0}),
    ("window", {"num_layers": 1, "window": -1}),
])  # fmt: skip
def test_sizes_that_cannot_be_are_refused(name: str, arguments: dict[str, int]) -> None:
    with pytest.raises(ArgumentError, match=f"{name} is {arguments[name]}; wanted 1 or more"):
        KeyValueCache(**arguments)


# ---------------------------------------------------------------- modules


def attention(**options: Any) -> MultiHeadAttention:
    names = ("rotary", "kv_heads", "bias")
    chosen = {name: options[name] for name in names if name in options}
    sizes = {"num_heads": 6, "d_k": 4, "d_v": 4, "n_out": WIDTH, "dtype": torch.float64}
    return scrambled(MultiHeadAttention(WIDTH, **sizes, **{"bias": True, **chosen}))


@pytest.mark.parametrize("steps", STEPS, ids=str)
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@torch.no_grad()
def test_an_attention_reads_in_steps_as_whole(steps: list[int], options: dict[str, Any]) -> None:
    layer, x, kept = attention(**options), drawn(BATCH, TOKENS, WIDTH), Growing()
    got = [layer(part, part, part, True, cache=kept) for part in cuts(x, steps)]
    agree(torch.cat(got, 1), array(layer(x, x, x, True)), 1e-11)


@pytest.mark.parametrize("steps", STEPS, ids=str)
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@torch.no_grad()
def test_an_encoder_layer_reads_in_steps_as_whole(
    steps: list[int], options: dict[str, Any]
) -> None:
    layer = scrambled(EncoderLayer(WIDTH, 6, 17, dtype=torch.float64, **options))
    x, kept = drawn(BATCH, TOKENS, WIDTH), LayerCache(None, None)
    got = [layer(part, True, cache=kept) for part in cuts(x, steps)]
    agree(torch.cat(got, 1), array(layer(x, True)), 1e-10)


@pytest.mark.parametrize("steps", STEPS, ids=str)
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@torch.no_grad()
def test_a_decoder_layer_reads_in_steps_and_makes_its_memory_once(
    steps: list[int], options: dict[str, Any]
) -> None:
    layer = scrambled(DecoderLayer(WIDTH, 6, 17, dtype=torch.float64, **options))
    y, memory = drawn(BATCH, TOKENS, WIDTH), drawn(BATCH, 5, WIDTH)
    hidden, kept = Mask.padding([5, 3]), LayerCache(None, None)
    got, pairs = [], set()
    for part in cuts(y, steps):
        got.append(layer(part, memory, True, hidden, cache=kept))
        pairs.add(kept.cross.read()[0].data_ptr())
    agree(torch.cat(got, 1), array(layer(y, memory, True, hidden)), 1e-10)
    assert len(pairs) == 1
    assert (kept.own.length, kept.cross.length) == (TOKENS, 5)


def decoder(**options: Any) -> Decoder:
    return scrambled(Decoder(3, WIDTH, 6, 17, dtype=torch.float64, **options))


@pytest.mark.parametrize("lengths", [None, [11, 7], [2, 11]], ids=str)
@pytest.mark.parametrize("steps", STEPS, ids=str)
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@torch.no_grad()
def test_a_decoder_reads_in_steps_as_whole_with_padding_on_the_left(
    steps: list[int], options: dict[str, Any], lengths: list[int] | None
) -> None:
    tower, y, memory = decoder(**options), drawn(BATCH, TOKENS, WIDTH), drawn(BATCH, 5, WIDTH)
    ids = torch.zeros(BATCH, TOKENS, dtype=torch.long)
    whole = place(ids, lengths, "left")
    wanted = tower(y, memory, whole.mask, positions=whole.positions)
    cache, got = KeyValueCache(3), []
    if lengths is not None:
        cache.start = TOKENS - torch.tensor(lengths)
    for part in cuts(y, steps):
        got.append(tower(part, memory, cache=cache))
    assert cache.length == TOKENS
    for row, length in enumerate(lengths or [TOKENS] * BATCH):
        ours, theirs = (t[row, TOKENS - length :] for t in (torch.cat(got, 1), wanted))
        agree(ours, array(theirs), 1e-9 * max(1, theirs.abs().max().item()))
        alone = tower(y[row, TOKENS - length :], memory[row])
        agree(ours, array(alone), 1e-9 * max(1, alone.abs().max().item()))


@pytest.mark.parametrize("window", [1, 3])
@pytest.mark.parametrize("steps", [[1] * 30, [11, 1, 1, 9, 8], [5] * 6], ids=str)
@torch.no_grad()
def test_a_window_reads_in_steps_as_a_window_mask_does_whole(window: int, steps: list[int]) -> None:
    tower, y = decoder(cross=False, rotary=Rotary(4)), drawn(BATCH, 30, WIDTH)
    cache, got = KeyValueCache(3, window=window), []
    for part in cuts(y, steps):
        got.append(tower(part, cache=cache))
    wanted = tower(y, None, Mask.window(window - 1))
    agree(torch.cat(got, 1), array(wanted), 1e-9 * wanted.abs().max().item())


@torch.no_grad()
def test_a_step_that_fails_leaves_the_cache_as_it_was() -> None:
    tower, y = decoder(cross=False, rotary=Rotary(4)), drawn(BATCH, TOKENS, WIDTH)
    wanted, cache = tower(y), KeyValueCache(3)
    first = tower(y[:, :4], cache=cache)
    with pytest.raises(ArgumentError):
        tower(y[:, 4:], mask=Mask.allow(torch.ones(3, 5, dtype=torch.bool)), cache=cache)
    assert {layer.own.length for layer in cache.layers} == {4}
    agree(torch.cat((first, tower(y[:, 4:], cache=cache)), 1), array(wanted), 1e-9)


@torch.no_grad()
def test_a_cache_that_was_cut_goes_on_from_there() -> None:
    tower, y = decoder(cross=False, rotary=Rotary(4)), drawn(BATCH, TOKENS, WIDTH)
    cache = KeyValueCache(3)
    tower(drawn(BATCH, 3, WIDTH), cache=cache)
    tower(y[:, :9], cache=cache)
    cache.cut(0)
    tower(y, cache=cache)
    cache.cut(6)
    agree(tower(y[:, 6:], cache=cache), array(tower(y)[:, 6:]), 1e-9)
    with pytest.raises(ArgumentError, match="length is -1; wanted 0 to 11"):
        cache.cut(-1)


@torch.no_grad()
def test_another_memory_than_the_caches_is_refused() -> None:
    tower, cache = decoder(), KeyValueCache(3)
    tower(drawn(BATCH, 2, WIDTH), drawn(BATCH, 5, WIDTH), cache=cache)
    with pytest.raises(ShapeError, match="the cache was made of a memory of 5"):
        tower(drawn(BATCH, 1, WIDTH), drawn(BATCH, 6, WIDTH), cache=cache)
    assert cache.length == 2


@torch.no_grad()
def test_a_decoder_without_positions_counts_on_from_its_cache() -> None:
    tower, y = decoder(cross=False, rotary=Rotary(4)), drawn(BATCH, TOKENS, WIDTH)
    cache = KeyValueCache(3, most=TOKENS)
    got = [tower(part, cache=cache) for part in cuts(y, [4, 1, 6])]
    agree(torch.cat(got, 1), array(tower(y)), 1e-9)


@pytest.mark.parametrize("with_memory", [True, False])
@torch.no_grad()
def test_beams_go_on_from_other_rows_memory_and_padding_too(with_memory: bool) -> None:
    tower, y, memory = decoder(), drawn(BATCH, 6, WIDTH), drawn(BATCH, 5, WIDTH)
    cache = KeyValueCache(3)
    cache.start, cache.memory = torch.tensor([0, 2]), memory
    cache.memory_lengths = torch.tensor([5, 3])
    tower(y, memory, Mask.causal() & Mask.padding([6, 4], "left"), cache.memory_mask, cache=cache)
    rows = torch.tensor([1, 0, 1]) if with_memory else torch.tensor([0, 0])
    cache.reorder(rows, memory=with_memory)
    kept = rows if with_memory else torch.tensor([0, 1])
    agree(cache.start, array(torch.tensor([0, 2])[kept]), 0)
    agree(cache.memory, array(memory[kept]), 0)
    agree(cache.memory_lengths, array(torch.tensor([5, 3])[kept]), 0)
    new = drawn(len(rows), 1, WIDTH)
    mask = Mask.padding(7 - torch.tensor([0, 2])[rows], "left")
    got = tower(new, cache.memory, mask, cache.memory_mask, cache=cache)
    if not with_memory:  # both rows go on from row 0, each before its own memory
        return
    whole = torch.cat((y[rows], new), 1)
    mask = Mask.causal() & mask
    wanted = tower(whole, memory[rows], mask, Mask.padding(torch.tensor([5, 3])[rows]))
    agree(got, array(wanted[:, -1:]), 1e-9)


@torch.no_grad()
def test_another_batch_or_number_of_layers_is_refused() -> None:
    tower, cache = decoder(cross=False), KeyValueCache(3)
    tower(drawn(2, 3, WIDTH), cache=cache)
    with pytest.raises(ShapeError, match=r"k is \(5, 6, 1, 4\), the cache holds \(2, 6, 3, 4\)"):
        tower(drawn(5, 1, WIDTH), cache=cache)
    with pytest.raises(ArgumentError, match="the cache has 2 layers, the decoder 3"):
        tower(drawn(2, 1, WIDTH), cache=KeyValueCache(2))


# ---------------------------------------------------------------- quicker products


def uses_blocks(cache: KeyValueCache, tokens: int = 1) -> bool:
    before = laid._USED.get()
    with cache.quicker(tokens):
        return laid._USED.get() is not before


def test_products_get_quicker_once_many_tokens_came_singly() -> None:
    cache = KeyValueCache(1)
    assert [uses_blocks(cache, tokens) for tokens in (50, *[1] * SOON, 7)] == [False] * (SOON + 2)
    assert [uses_blocks(cache, tokens) for tokens in (1, 3, 1)] == [True, False, True]
    assert not uses_blocks(KeyValueCache(1))  # each text begins anew
    with torch.autocast("cpu", torch.bfloat16):
        assert not uses_blocks(cache)
    assert laid._USED.get() is None


def test_a_cache_that_begins_anew_or_is_copied_lays_weights_out_anew() -> None:
    cache = KeyValueCache(1)
    for _ in range(SOON + 1):
        cache.quicker(1)
    W = nn.Parameter(torch.randn(600, 512), requires_grad=False)
    with torch.no_grad(), cache.quicker(1):
        linear(torch.randn(1, 512), W)
    assert cache._laid.blocks
    other = deepcopy(cache)
    assert uses_blocks(other)
    assert not other._laid.blocks
    assert not pickle.loads(pickle.dumps(cache))._laid.blocks
    cache.cut(0)
    assert not cache._laid.blocks
    assert not uses_blocks(cache)
