"""Words and places, by formula."""

import math

import pytest
import torch

from qkv.core.positions import sinusoidal
from qkv.errors import ArgumentError, ShapeError
from qkv.nn.embedding import PositionalEncoding, WordEmbedding
from qkv.nn.transformer import Encoder
from tests.reference import agree, array

IDS = torch.tensor([[3, 0, 6], [6, 6, 1]])


@pytest.mark.parametrize("scaled", [False, True])
def test_a_word_is_its_row_of_the_table(scaled: bool) -> None:
    words = WordEmbedding(7, 5, scaled=scaled, dtype=torch.float64)
    wanted = [[array(words.weight[i]) * (5**0.5 if scaled else 1) for i in row] for row in IDS]
    agree(words(IDS), wanted, 1e-15)


def test_the_same_table_writes_words_unscaled() -> None:
    words, x = WordEmbedding(7, 5, scaled=True, dtype=torch.float64), torch.randn(2, 3, 5).double()
    agree(words.logits(x), array(x) @ array(words.weight).T, 1e-12)
    agree(words.logits(x[0, 0]), array(x[0, 0]) @ array(words.weight).T, 1e-12)
    (words.logits(words(IDS))).square().sum().backward()
    assert (words.weight.grad != 0).all()  # unread words too are written


def test_rows_begin_with_the_same_size_scaled_or_not() -> None:
    for scaled in (False, True):
        rows = WordEmbedding(900, 40, scaled=scaled)(torch.arange(900))
        assert rows.std().item() == pytest.approx(1, abs=0.02)


@pytest.mark.parametrize("layout", ["interleaved", "halves"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_sines_are_added(layout: str, dtype: torch.dtype) -> None:
    places, x = PositionalEncoding(6, layout=layout), torch.randn(2, 3, 6, dtype=dtype)
    wanted = array(x) + array(sinusoidal(3, 6, layout=layout, dtype=torch.float64))
    assert not list(places.parameters())
    assert places(x).dtype == dtype
    agree(places(x), wanted, {torch.bfloat16: 0.04}.get(dtype, 1e-6))
    positions = torch.tensor([[2, 0, 1], [0, 0, 900]])
    table = array(sinusoidal(901, 6, layout=layout, dtype=torch.float64))
    at = [[table[p] for p in row] for row in positions.tolist()]
    agree(places(x, positions), array(x) + at, {torch.bfloat16: 0.04}.get(dtype, 1e-6))
    agree(places(x, positions[0]), array(x) + at[0], {torch.bfloat16: 0.04}.get(dtype, 1e-6))


@pytest.mark.parametrize("offset", [0, 2])
def test_a_learned_table_begins_behind_its_offset(offset: int) -> None:
    places = PositionalEncoding(4, 5, learned=True, offset=offset, dtype=torch.float64)
    assert places.weight.shape == (5 + offset, 4)
    x = torch.zeros(2, 3, 4, dtype=torch.float64)
    wanted = array(places.weight)[offset : offset + 3]
    agree(places(x), [wanted, wanted], 0)
    agree(
        places(x, torch.tensor([4, 4, 0])),
        [array(places.weight)[[4 + offset] * 2 + [offset]]] * 2,
        0,
    )
    places(x).sum().backward()
    agree(places.weight.grad.sum(1), [0] * offset + [8, 8, 8, 0, 0], 0)


def test_positions_that_there_are_not_are_refused() -> None:
    for places in (PositionalEncoding(4, 3), PositionalEncoding(4, 3, learned=True, offset=2)):
        places(torch.zeros(3, 4))
        with pytest.raises(ArgumentError, match="reach from 0 to 3; there are 0 to 2: the text is"):
            places(torch.zeros(4, 4))
        with pytest.raises(ArgumentError, match="positions reach from -1 to 2"):
            places(torch.zeros(2, 4), torch.tensor([-1, 2]))
        assert places(torch.zeros(0, 4)).shape == (0, 4)
    without_numbers = torch.zeros(9, 4, device="meta")
    assert PositionalEncoding(4, 3)(without_numbers).shape == (9, 4)


@pytest.mark.usefixtures("as_shipped")
def test_another_width_is_refused() -> None:
    with pytest.raises(ShapeError, match=r"x is \(3, 1\); wanted \(…, tokens, n_embed=4\)"):
        PositionalEncoding(4)(torch.zeros(3, 1))


REFUSED = [
    (lambda: PositionalEncoding(4, learned=True), "a learned table has a size: say most="),
    (lambda: PositionalEncoding(0), "n_embed is 0; wanted a whole number, 1 or more"),
    (lambda: PositionalEncoding(4, 0), "most is 0; wanted a whole number, 1 or more"),
    (lambda: WordEmbedding(0, 4), "vocabulary is 0; wanted a whole number, 1 or more"),
    (lambda: WordEmbedding(4, -1), "n_embed is -1; wanted a whole number, 1 or more"),
]


@pytest.mark.parametrize(("make", "why"), REFUSED)
def test_sizes_that_cannot_be_are_refused(make: object, why: str) -> None:
    with pytest.raises(ArgumentError) as error:
        make()
    assert str(error.value).startswith(why)


def test_modules_say_their_sizes() -> None:
    assert repr(WordEmbedding(7, 5)) == "WordEmbedding(7 × 5)"
    assert repr(PositionalEncoding(4)) == "PositionalEncoding(sinusoidal, n_embed=4, most=None)"
    learned = PositionalEncoding(4, 3, learned=True)
    assert repr(learned) == "PositionalEncoding(learned, n_embed=4, most=3)"


@pytest.mark.parametrize("learned", [False, True])
def test_word_order_is_seen_with_positions_and_not_without(learned: bool) -> None:
    """ "dogs chase cats" and "cats chase dogs", through a whole encoder."""
    words = WordEmbedding(3, 8, dtype=torch.float64)
    most = 3 if learned else None
    places = PositionalEncoding(8, most, learned=learned, dtype=torch.float64)
    encoder = Encoder(2, 8, 2, dtype=torch.float64)
    dogs_chase_cats, cats_chase_dogs = words(torch.tensor([[0, 1, 2], [2, 1, 0]]))
    agree(encoder(dogs_chase_cats).flip(0), array(encoder(cats_chase_dogs)), 1e-12)
    one, other = encoder(places(dogs_chase_cats)), encoder(places(cats_chase_dogs))
    assert (one.flip(0) - other).abs().max() > 1e-3
    assert math.isfinite(one.sum().item())
