"""Recurrent encoder and decoders: against loops, under padding, in parts, in half precision."""

import pytest
import torch
from torch import Tensor

from qkv.core.calculation import Calculation
from qkv.errors import ArgumentError
from qkv.nn.alignment import Alignment
from qkv.nn.recurrent import RecurrentDecoder, RecurrentEncoder, Source, StateCache
from tests.recurrence import decode, encode, numbers
from tests.reference import agree, array

KINDS = [None, "additive", "dot"]
LENGTHS = torch.tensor([7, 1, 4])
SIZES = [
    pytest.param((5, 6, 1), id="one layer"),  # n_embed, n_hidden, layers
    pytest.param((3, 10, 3), id="three layers"),
    pytest.param((4, 4, 2), id="equal"),
]


def encoder(sizes: tuple[int, int, int] = (5, 6, 2)) -> RecurrentEncoder:
    return RecurrentEncoder(*sizes).double()


def decoder(kind: str | None, sizes: tuple[int, int, int] = (5, 6, 2)) -> RecurrentDecoder:
    return RecurrentDecoder(*sizes, attention=kind).double()


def words(tokens: int, n_embed: int = 5) -> Tensor:
    return torch.randn(3, tokens, n_embed, dtype=torch.float64)


def read(
    made: RecurrentDecoder, n_hidden: int = 6, lengths: Tensor | None = LENGTHS
) -> tuple[Source, Tensor, Tensor, Tensor]:
    """What a decoder looks at and begins with, and what they were made of."""
    memory = torch.randn(3, 7, n_hidden, dtype=torch.float64)
    summary = torch.randn(3, n_hidden, dtype=torch.float64)
    return made.source(memory, summary, lengths), made.begin(summary), memory, summary


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("lengths", [None, LENGTHS])
def test_the_encoder_reads_both_ways(sizes: tuple[int, int, int], lengths: Tensor | None) -> None:
    made, x = encoder(sizes), words(7, sizes[0])
    memory, summary = made(x, lengths)
    p = numbers(made)
    for text, real in enumerate([7, 7, 7] if lengths is None else lengths.tolist()):
        rows, ends = encode(p, array(x[text, :real]))
        agree(memory[text, :real], rows, 1e-12)
        agree(summary[text], ends, 1e-12)
        assert not memory[text, real:].any()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sizes", SIZES)
def test_each_decoder_is_its_papers(kind: str | None, sizes: tuple[int, int, int]) -> None:
    made, y = decoder(kind, sizes), words(5, sizes[0])
    source, states, memory, summary = read(made, sizes[1])
    decoded = made(y, source, states)
    p = numbers(made)
    for text, real in enumerate(LENGTHS.tolist()):
        wanted, weights = decode(
            p, kind, array(y[text]), array(memory[text, :real]), array(summary[text])
        )
        agree(decoded.output[text], wanted, 1e-12)
        if made.attention is not None:
            seen = made.attention.weights(decoded.queries, source.keys, source.lengths)
            agree(seen[text, :, :real], weights, 1e-12)


def test_without_attention_the_single_vector_is_all_that_is_known() -> None:
    made, y = decoder(None), words(5)
    source, states, memory, summary = read(made)
    other = made.source(torch.randn_like(memory), summary, None)
    assert source.memory.shape == (3, 1, 6)
    assert source.lengths is None
    assert torch.equal(made(y, source, states).output, made(y, other, states).output)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("chunks", [[1] * 5, [3, 2], [1, 4]])
def test_what_is_read_in_parts_is_what_is_read_at_once(kind: str | None, chunks: list[int]) -> None:
    made, y = decoder(kind), words(5)
    source, states, *_ = read(made)
    whole = made(y, source, states)
    outputs = []
    for part in y.split(chunks, dim=1):
        decoded = made(part, source, states)
        outputs.append(decoded.output)
        states = decoded.last
    agree(torch.cat(outputs, dim=1), array(whole.output), 1e-12)
    agree(states, array(whole.last), 1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_no_word_knows_what_stands_behind_it(kind: str | None) -> None:
    made, y = decoder(kind), words(5)
    source, states, *_ = read(made)
    other = y.clone()
    other[:, 3:] = torch.randn_like(other[:, 3:])
    one, two = made(y, source, states).output, made(other, source, states).output
    assert torch.equal(one[:, :3], two[:, :3])
    assert not torch.equal(one[:, 3], two[:, 3])


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_are_those_of_differences(kind: str | None) -> None:
    reads, writes = encoder((2, 4, 1)), decoder(kind, (2, 4, 1))
    x, y = (words(n, 2).requires_grad_() for n in (4, 3))
    lengths = torch.tensor([4, 1, 2])
    parameters = [*reads.parameters(), *writes.parameters()]

    def output(x: Tensor, y: Tensor, *_: Tensor) -> Tensor:
        memory, summary = reads(x, lengths)
        return writes(y, writes.source(memory, summary, lengths), writes.begin(summary)).output

    assert torch.autograd.gradcheck(output, (x, y, *parameters), fast_mode=True)


@pytest.mark.parametrize("kind", KINDS)
def test_under_autocast_only_the_products_around_the_network_are_short(kind: str | None) -> None:
    reads, writes = RecurrentEncoder(8, 12), RecurrentDecoder(8, 12, attention=kind)
    x, y = torch.randn(3, 7, 8), torch.randn(3, 5, 8)

    def output() -> Tensor:
        memory, summary = reads(x, LENGTHS)
        source = writes.source(memory, summary, LENGTHS)
        decoded = writes(y, source, writes.begin(summary))
        assert decoded.last.dtype == torch.float32
        return decoded.output

    whole = output()
    with torch.autocast("cpu", torch.bfloat16):
        short = output()
    short.float().sum().backward()
    agree(short.float(), array(whole), 0.02)
    assert all(p.grad is not None and p.grad.dtype == p.dtype for p in writes.parameters())


def test_a_cache_follows_its_rows() -> None:
    made = decoder("additive")
    source, states, *_ = read(made)
    cache = StateCache(source, states)
    cache.keep(states, 3)
    rows = torch.tensor([2, 2, 0, 1])
    cache.reorder(rows)
    assert cache.length == 3
    assert torch.equal(cache.states, states[:, rows])
    for name in ("memory", "keys", "lengths"):
        assert torch.equal(getattr(cache.source, name), getattr(source, name)[rows])
    cache.reorder(rows.flip(0), memory=False)
    assert torch.equal(cache.states, states[:, rows.flip(0).apply_(rows.__getitem__)])
    assert torch.equal(cache.source.memory, source.memory[rows])


def test_a_state_gives_nothing_back() -> None:
    source, states, *_ = read(decoder("dot"))
    cache = StateCache(source, states)
    cache.keep(states, 3)
    cache.cut(3)
    with pytest.raises(ArgumentError, match="length is 2, but a state of 3 tokens stays so"):
        cache.cut(2)


@pytest.mark.usefixtures("as_shipped")
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RecurrentEncoder(3, 5), "n_hidden is 5; wanted an even number, half a direction"),
        (lambda: RecurrentEncoder(3, 0), "n_hidden is 0; wanted a whole number, 1 or more"),
        (lambda: RecurrentEncoder(0, 4), "n_embed is 0; wanted a whole number, 1 or more"),
        (lambda: RecurrentDecoder(3, 4, 0), "num_layers is 0; wanted a whole number, 1 or more"),
        (lambda: RecurrentDecoder(3, 4, dropout=1.0), r"dropout is 1\.0; wanted 0 to below 1"),
        (
            lambda: RecurrentDecoder(3, 4, attention="general"),  # type: ignore[arg-type]
            "attention is 'general'; wanted 'additive', 'dot' or None",
        ),
    ],
)
def test_what_cannot_be_meant_is_refused(make: object, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        make()  # type: ignore[operator]


def test_the_room_offers_them() -> None:
    from qkv import nn

    assert nn.RecurrentEncoder is RecurrentEncoder
    assert nn.RecurrentDecoder is RecurrentDecoder
    assert issubclass(nn.AdditiveAttention, Alignment)
    assert issubclass(nn.DotAttention, Alignment)
    assert isinstance(nn.DotAttention().explain(torch.eye(2), torch.eye(2)), Calculation)
