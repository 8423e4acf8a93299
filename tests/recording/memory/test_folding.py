"""Heads among the queries, taken apart again."""

import torch

from qkv.recording.calls.operands import Operands, Operation
from qkv.recording.calls.program import Program
from qkv.recording.memory.folding import is_folded, unfolded


def test_each_head_has_its_own_row_again() -> None:
    q, k, v = (torch.randn(3, n, m, 5) for n, m in ((6, 1), (2, 7), (2, 7)))
    each, by_head = torch.randn(3, 1, 1, 7), torch.randn(3, 6, 1, 7)
    scores = (Operation("add", lambda: each), Operation("add", lambda: by_head))
    plain = Operands(q, k, v, torch.zeros(3, 6, 1, 5), scores)
    folded = Operands(
        q.reshape(3, 2, 3, 5),
        k,
        v,
        torch.zeros(3, 2, 3, 5),
        (scores[0], Operation("add", lambda: by_head.reshape(3, 2, 3, 7))),
    )
    assert is_folded(folded, 6)
    again = unfolded(folded, None)
    assert torch.equal(again.q, q)
    everything = range(1), range(7)
    assert torch.equal(Program.of(again).tile(*everything), Program.of(plain).tile(*everything))


def test_heads_that_stand_apart_are_left() -> None:
    def shaped(heads: int, queries: int, kv_heads: int) -> Operands:
        q, k = torch.randn(1, heads, queries, 4), torch.randn(1, kv_heads, 7, 4)
        return Operands(q, k, k, torch.zeros_like(q), ())

    assert not is_folded(shaped(6, 1, 2), 6)
    assert not is_folded(shaped(2, 4, 2), 6)  # four queries, as it seems
    assert not is_folded(shaped(6, 1, 6), 6)
    assert is_folded(shaped(1, 6, 1), 6)
