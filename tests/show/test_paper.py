"""How a matrix stands on paper."""

import torch

from qkv import MultiHeadAttention, SelfAttention
from qkv.show.paper import is_share, printed, printed_transposed


def test_weights_are_printed_transposed_and_nothing_else():
    c = SelfAttention(3).explain(torch.randn(5, 3))
    assert printed_transposed(c) == {"WQ", "WK", "WV"}


def test_keys_that_are_given_are_used_as_weights_are_and_printed_so():
    c = MultiHeadAttention(3, num_heads=2, n_out=3).explain(torch.randn(5, 3))
    heads = {f"head {i}/{name}" for i in (1, 2) for name in ("WQ", "WK", "WV")}
    assert printed_transposed(c) == heads | {"projection/WO"}


def test_a_matrix_is_printed_with_its_labels_and_symbol_turned_as_it_is():
    c = SelfAttention(3, d_k=5).explain(torch.randn(2, 3), tokens=["draw", "a"])
    wq = printed(c.step("WQ"), c)
    assert (wq.values == c["WQ"].T).all()
    assert (wq.values.shape, len(wq.rows), len(wq.columns)) == ((3, 5), 3, 5)
    assert wq.symbol == "WQᵀ"
    queries = printed(c.step("queries"), c)
    assert (queries.values == c["queries"]).all()
    assert (queries.rows, queries.symbol) == (("draw", "a"), "Q = X WQᵀ")


def test_only_the_weights_of_attention_are_shares_of_their_row():
    c = SelfAttention(3).explain(torch.randn(5, 3))
    assert [step.name for step in c if is_share(step, c)] == ["weights"]
