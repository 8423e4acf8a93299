"""Additive and dot-product alignment: against loops, under padding, written down, and watched."""

import pytest
import torch
from torch import Tensor

from qkv import watch
from qkv.errors import ArgumentError, ShapeError
from qkv.nn.alignment import AdditiveAttention, Alignment, DotAttention
from tests.recurrence import numbers, similarity
from tests.reference import agree, array, softmax_rows

KINDS = ["additive", "dot"]
LENGTHS = torch.tensor([5, 1, 3])


def made(kind: str, n_hidden: int = 7) -> Alignment:
    alignment = AdditiveAttention(n_hidden, 4) if kind == "additive" else DotAttention()
    return alignment.double()


def drawn(queries: int = 4, n_hidden: int = 7) -> tuple[Tensor, Tensor]:
    """States and a memory of three texts."""
    kind = torch.float64
    return torch.randn(3, queries, n_hidden, dtype=kind), torch.randn(3, 5, n_hidden, dtype=kind)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("lengths", [None, LENGTHS])
def test_weights_and_contexts_are_those_of_loops(kind: str, lengths: Tensor | None) -> None:
    alignment = made(kind)
    states, memory = drawn()
    keys = alignment.keys(memory)
    weights = alignment.weights(states, keys, lengths)
    contexts = alignment(states, memory, keys, lengths)
    p = {f"attention.{name}": value for name, value in numbers(alignment).items()}
    for text, real in enumerate([5, 5, 5] if lengths is None else lengths.tolist()):
        for i in range(4):
            rows = array(memory[text, :real])
            e = array([[similarity(p, kind, array(states[text, i]), row) for row in rows]])
            wanted = softmax_rows(e)[0]
            agree(weights[text, i, :real], wanted, 1e-12)
            assert not weights[text, i, real:].any()
            agree(contexts[text, i], wanted @ rows, 1e-12)
    agree(weights.sum(-1), torch.ones(3, 4), 1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_what_padding_holds_has_no_influence(kind: str) -> None:
    alignment = made(kind)
    states, memory = drawn()
    other = memory.clone()
    for text, real in enumerate(LENGTHS.tolist()):
        other[text, real:] = 1e6 * torch.randn_like(other[text, real:])
    one, two = (alignment(states, m, alignment.keys(m), LENGTHS) for m in (memory, other))
    assert torch.equal(one, two)


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_are_those_of_differences(kind: str) -> None:
    alignment = made(kind)
    states, memory = (x.requires_grad_() for x in drawn(queries=2))
    parameters = tuple(alignment.parameters())

    def context(states: Tensor, memory: Tensor, *_: Tensor) -> Tensor:
        return alignment(states, memory, alignment.keys(memory), LENGTHS)

    assert torch.autograd.gradcheck(context, (states, memory, *parameters), fast_mode=True)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("queries", [1, 4])
def test_every_step_is_written_down_and_holds(kind: str, queries: int) -> None:
    alignment = made(kind)
    states, memory = (x[0] for x in drawn(queries))
    written = ["el", "cielo", "es", "azul"][:queries]
    told = alignment.explain(states, memory, tokens=written, key_tokens=[*"abcde"])
    told.verify()
    wanted = alignment.weights(states[None], alignment.keys(memory[None]))[0]
    agree(told["weights"], array(wanted), 1e-12)
    step = told.step("weights")
    assert (step.rows, step.columns) == (tuple(written), tuple("abcde"))
    agree(told["output"], array(wanted @ memory), 1e-12)
    assert told.observed.keys() == {"output"}


@pytest.mark.parametrize("kind", KINDS)
def test_the_order_of_a_memory_says_nothing_by_itself(kind: str) -> None:
    alignment = made(kind)
    states, memory = (x[0] for x in drawn())
    one, two = alignment.explain(states, memory), alignment.explain(states, memory.flip(0))
    agree(one["output"], two["output"], 1e-12)
    agree(one["weights"], two["weights"][:, ::-1], 1e-12)


def test_the_dot_product_is_watched_like_any_attention() -> None:
    alignment = made("dot")
    states, memory = drawn()
    with watch(alignment) as seen:
        alignment(states, memory, memory, LENGTHS)
    (call,) = seen
    wanted = alignment.weights(states, memory, LENGTHS)
    agree(call.weights.dense()[:, 0], array(wanted), 1e-12)
    assert call.error < 1e-12


@pytest.mark.usefixtures("as_shipped")
@pytest.mark.parametrize(
    ("states", "memory"), [((4, 7), (5, 8)), ((1, 4, 7), (5, 7)), ((4, 7), (1, 5, 7))]
)
def test_what_does_not_fit_is_refused(states: tuple[int, ...], memory: tuple[int, ...]) -> None:
    with pytest.raises(ShapeError, match=r"wanted two matrices as wide as each other"):
        made("dot").explain(torch.randn(states), torch.randn(memory))


@pytest.mark.parametrize("sizes", [(0,), (3, 0)])
def test_sizes_below_one_are_refused(sizes: tuple[int, ...]) -> None:
    with pytest.raises(ArgumentError, match=r"is 0; wanted a whole number, 1 or more"):
        AdditiveAttention(*sizes)
