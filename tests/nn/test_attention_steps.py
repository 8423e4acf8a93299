"""The steps of an attention layer: heads, groups, rotary positions, the projection."""

import pytest
import torch

from qkv.core.operations import Operation
from qkv.core.steps import Head, Projection, Recipe
from qkv.core.working import Working
from qkv.nn.attention_steps import Turn, attention, rotate
from tests.reference import agree, array


def test_a_layer_of_heads_with_biases_and_a_projection() -> None:
    def projection(rows: int, columns: int) -> Projection:
        return Projection(torch.randn(rows, columns).double(), torch.randn(rows).double())

    heads = tuple(Head(i, projection(2, 5), projection(2, 5), projection(3, 5)) for i in (1, 2))
    recipe = Recipe(heads, projection(5, 6), joins=True)
    x = torch.randn(4, 5).double()
    w = Working("layer")
    outputs = attention(w, recipe, *[w.given("inputs/encodings", x, symbol="X")] * 3, [None, None])
    c = w.finish()
    assert outputs == {
        "head 1": "head 1/output", "head 2": "head 2/output", "output": "projection/output",
    }  # fmt: skip
    parts = []
    for head in heads:
        q, k, v = (x @ p.weight.mT + p.bias for p in (head.WQ, head.WK, head.WV))
        parts.append(torch.softmax(q @ k.mT / 2**0.5, -1) @ v)
    wanted = torch.cat(parts, -1) @ recipe.output.weight.mT + recipe.output.bias
    agree(c.result, array(wanted), 1e-12)
    assert [s.name for s in c["projection"]][2:] == [
        "concatenated",
        "WO",
        "output before bias",
        "bO",
        "output",
    ]
    c.verify(tolerance=1e-12)


@pytest.mark.parametrize("pairs", [False, True], ids=["halves", "pairs"])
@pytest.mark.parametrize("part", [6, 4, 2])
def test_rotary_positions_turn_points_of_a_plane(pairs: bool, part: int) -> None:
    x = torch.randn(5, 6).double()
    theta = torch.tensor([1.0, 0.1, 0.01]).double()[: part // 2]
    angle = torch.arange(5)[:, None] * theta
    wide = angle.repeat_interleave(2, 1) if pairs else angle.repeat(1, 2)
    w = Working("rotary")
    q = w.given("queries", x, symbol="Q")
    names = [w.given(f.__name__, f(wide), symbol=f.__name__) for f in (torch.cos, torch.sin)]
    operation = Operation.ROTATE_PAIRS if pairs else Operation.ROTATE_HALVES
    last = rotate(w, q, Turn(*names, operation), "queries", "Q", "")
    assert last == "rotated queries"
    turns = x[:, :part]
    a, b = (turns[:, 0::2], turns[:, 1::2]) if pairs else turns.chunk(2, -1)
    point = torch.complex(a, b) * torch.polar(torch.ones_like(angle), angle)
    parts = (point.real, point.imag)
    wanted = torch.stack(parts, -1).flatten(-2) if pairs else torch.cat(parts, -1)
    c = w.finish()
    agree(c[last], array(torch.cat((wanted, x[:, part:]), -1)), 1e-12)
    assert c.step(last).columns == c.step("queries").columns
    assert c.step(last).symbol == "Q′"
    c.verify(tolerance=1e-12)
    by_hand = c.by_hand(6)
    assert by_hand.drift < 1e-5


def test_heads_of_a_group_take_the_keys_and_values_of_its_first() -> None:
    def projection(rows: int) -> Projection:
        return Projection(torch.randn(rows, 5).double())

    shared = [(projection(2), projection(3)) for _ in range(2)]
    heads = tuple(Head(i + 1, projection(2), *shared[i // 2]) for i in range(4))
    x = torch.randn(4, 5).double()
    w = Working("grouped")
    recipe = Recipe(heads, joins=True, group=2, within="own/")
    outputs = attention(w, recipe, *[w.given("inputs/encodings", x, symbol="X")] * 3, [None] * 4)
    c = w.finish()
    assert outputs["head 3"] == "own/head 3/output"
    assert c.step("own/head 2/similarities").operands == ("own/head 2/queries", "own/head 1/keys")
    assert c.step("own/head 4/output").operands == ("own/head 4/weights", "own/head 3/values")
    assert not any(step.name in ("own/head 2/WK", "own/head 4/WV") for step in c)
    parts = [
        torch.softmax(
            (x @ head.WQ.weight.mT) @ (x @ head.WK.weight.mT).mT / 2**0.5, -1
        ) @ (x @ head.WV.weight.mT)
        for head in heads
    ]  # fmt: skip
    agree(c.result, array(torch.cat(parts, -1)), 1e-12)
    alone = Working("one")
    one = Recipe((heads[3],), group=2)
    attention(alone, one, *[alone.given("encodings", x, symbol="X")] * 3, [None])
    assert alone.finish().step("output").operands == ("weights", "values")
