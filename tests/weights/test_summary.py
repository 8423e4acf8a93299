"""A summary says, in one pass, what each question says alone; kinds are named by stated rules."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from qkv.core.mask import Mask
from qkv.errors import ArgumentError, ShapeError
from qkv.weights.matrix import Weights
from qkv.weights.summary import Measures, Summary, kind_of
from tests.problems import MASKS, problem
from tests.reference import Array, agree, array
from tests.weights import dense

BATCH, HEADS, QUERIES, KEYS = 2, 4, 23, 29
WORDS = torch.randint(0, 6, (BATCH, KEYS), generator=torch.Generator().manual_seed(3))


def means(values: Array, counted: Array) -> Array:
    """Average over the queries that count, 0 where none does."""
    return (values * counted).sum(-1) / np.maximum(counted.sum(-1), 1.0)


def by_words(p: Array, may_look: Array, shift: int) -> tuple[Array, Array]:
    """Weight on keys `shift` after an earlier occurrence of the query's word, pair by pair."""
    shares, present = np.zeros(p.shape[:-1]), np.zeros(p.shape[:-1])
    words = WORDS.tolist()
    for e in range(BATCH):
        for i in range(QUERIES):
            own = i + KEYS - QUERIES
            for j in range(own):
                if words[e][j] == words[e][own] and j + shift < KEYS:
                    shares[e, :, i] += p[e, :, i, j + shift]
                    present[e, :, i] += may_look[e, :, i, j + shift]
    return shares, present > 0


@pytest.mark.parametrize("height", [7, 64])
@pytest.mark.parametrize("kind", MASKS)
def test_every_measure_is_that_of_the_dense_matrix(
    kind: str, height: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qkv.weights.blocks.block_size", lambda queries, keys, groups: (height, 1))
    monkeypatch.setattr("qkv.core.blocks.ROWS", 8)  # closed columns are skipped 8 at a time
    case = problem(kind, batch=BATCH, heads=HEADS, queries=QUERIES, keys=KEYS)
    x = dense.logits(*case.arrays[:2], case.added, None, None)
    p = dense.weights(x)
    valid = torch.rand(BATCH, QUERIES) < 0.8
    separators = torch.rand(BATCH, KEYS) < 0.2
    w = Weights(case.q, case.k, mask=case.mask)
    s = w.summary(top=5, map=(4, 6), valid=valid, separators=separators, words=WORDS)
    real = array(valid)[:, None] * ~case.empty
    own = np.arange(QUERIES) + KEYS - QUERIES
    at = np.broadcast_to(own, p.shape[:-1])[..., None]
    agree(s.entropies, dense.entropy(p), 1e-11)
    agree(s.entropy, means(dense.entropy(p), real), 1e-11)
    agree(s.distance, means(dense.distance(p), real), 1e-11)
    agree(s.first, means(p[..., 0], real), 1e-11)
    agree(s.itself, means(np.take_along_axis(p, at, -1)[..., 0], real), 1e-11)
    agree(s.previous, means(np.take_along_axis(p, at - 1, -1)[..., 0], real), 1e-11)
    agree(s.separators, means((p * array(separators)[:, None, None]).sum(-1), real), 1e-11)
    agree(s.received, (p * array(valid)[:, None, :, None]).sum(-2), 1e-11)
    agree(s.map, dense.regions(p, 4, 6), 1e-11)
    agree(s.weights, -np.sort(-p, -1)[..., :5], 1e-11)
    may_look = x > -np.inf
    visible = may_look.sum(-1)
    spread = dense.entropy(p) / np.log(np.maximum(visible, 2))
    agree(s.spread, means(spread, real * (visible > 1)), 1e-11)
    for measure, shift in ((s.same, 0), (s.induction, 1)):
        shares, present = by_words(p, may_look, shift)
        agree(measure, means(shares, real * present), 1e-11)


def logits_towards(target: Tensor, n: int) -> Tensor:
    """Logits with 50 at (i, target_i)."""
    return 50.0 * torch.nn.functional.one_hot(target, n).double()[None, None]


def summary_of(target: Tensor, **given: Tensor) -> Summary:
    """The summary of a head that looks at one key only."""
    n = len(target)
    q = logits_towards(target, n)
    return Weights(q, torch.eye(n).double()[None, None], scale=1.0).summary(**given)


def test_kinds_are_told_apart() -> None:
    n = 12
    own = torch.arange(n)
    words = torch.tensor([[3, 1, 4, 1, 5, 9, 3, 1, 4, 1, 5, 9]])
    repeated = torch.where(own >= 6, own - 5, 0)  # the key after the earlier occurrence
    same = torch.where(own >= 6, own - 6, own)
    repeated[3], same[3] = 2, 1  # the 1 at place 3 stands at place 1 before
    separators = torch.zeros(1, n, dtype=torch.bool)
    separators[0, 5] = True
    for target, kind in (
        ((own - 1).clamp(0), "previous token"),
        (own * 0, "first token"),
        (own, "itself"),
        (own * 0 + 5, "separator"),
        (same, "same word"),
        (repeated, "induction"),
        ((own * 5 + 3) % n, "focused"),
    ):
        (head,) = summary_of(target, words=words, separators=separators).heads("layer.0", layer=0)
        assert (head.kind, head.path, head.layer, head.head) == (kind, "layer.0", 0, 0)
        assert head.measure > 0.9
    flat = Weights(torch.zeros(1, 1, n, 2), torch.zeros(1, 1, n, 2)).summary().heads()[0]
    assert flat.kind == "broad"
    agree(torch.tensor([flat.entropy, flat.measure]), [math.log(n), 1.0], 1e-6)


def test_what_needs_words_or_separators_is_none_without() -> None:
    s = summary_of(torch.arange(5))
    assert (s.separators, s.same, s.induction) == (None, None, None)
    assert s.heads()[0].induction is None


def test_a_name_needs_more_than_half_of_the_weight() -> None:
    half = Measures(1.0, 3.0, first=0.5, previous=0.3, itself=0.1)
    assert kind_of(half, spread=0.48)[0] == "focused"
    assert kind_of(half._replace(first=0.51), spread=0.48) == ("first token", 0.51)


def test_heads_of_one_example_or_of_the_mean() -> None:
    w = Weights(torch.randn(3, 2, 5, 4), torch.randn(3, 2, 5, 4), mask=Mask.causal())
    s = w.summary()
    agree(torch.tensor([h.entropy for h in s.heads(batch=2)]), array(s.entropy[2]), 1e-6)
    agree(torch.tensor([h.entropy for h in s.heads()]), array(s.entropy.mean(0)), 1e-6)


def test_examples_weigh_as_much_as_they_have_queries_that_count() -> None:
    n = 8
    repeats = torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3], list(range(n))])  # the second repeats none
    after = torch.tensor([0, 0, 0, 0, 1, 2, 3, 4])
    q = logits_towards(after, n).expand(2, 1, n, n)
    k = torch.eye(n).double().expand(2, 1, n, n)
    s = Weights(q, k, scale=1.0).summary(words=repeats)
    (head,) = s.heads()
    assert head.induction == pytest.approx(1.0)
    assert head.kind == "induction"


def test_a_uniform_head_is_broad_however_few_keys_it_sees() -> None:
    q, k = torch.zeros(1, 1, 5, 2), torch.zeros(1, 1, 512, 2)
    seen = torch.arange(512) < 8
    (head,) = Weights(q, k, mask=Mask.keys(seen[None])).summary(top=2).heads()
    assert (head.kind, head.measure) == ("broad", pytest.approx(1.0))


def test_queries_that_are_padding_have_no_influence_even_nan() -> None:
    q, k = torch.randn(2, 3, 9, 4).double(), torch.randn(2, 3, 11, 4).double()
    valid = torch.rand(2, 9) < 0.6
    valid[:, 0] = True
    clean = Weights(q, k).summary(valid=valid)
    q = q.masked_fill(~valid[:, None, :, None], torch.nan)
    spoiled = Weights(q, k).summary(valid=valid)
    for name in (*Measures._fields[:5], "spread", "received"):
        agree(getattr(spoiled, name), array(getattr(clean, name)), 1e-12)


def test_positions_follow_the_offset() -> None:
    q, k = torch.randn(1, 2, 5, 4).double(), torch.randn(1, 2, 12, 4).double()
    w = Weights(q, k, mask=Mask.allow(torch.ones(5, 12, dtype=torch.bool).tril()))
    filled = Weights(q, k[..., :5, :], mask=Mask.causal()).summary()
    s = w.summary(offset=0)
    for name in (*Measures._fields[:5], "spread"):
        agree(getattr(s, name), array(getattr(filled, name)), 1e-12)


def test_no_keys_make_an_empty_summary() -> None:
    s = Weights(torch.randn(1, 2, 3, 4), torch.randn(1, 2, 0, 4)).summary()
    assert s.map.shape == (1, 2, 3, 0)
    assert not s.entropy.any()


def test_what_does_not_fit_is_named(as_shipped: None) -> None:
    w = Weights(torch.randn(2, 1, 3, 4), torch.randn(2, 1, 5, 4))
    with pytest.raises(ShapeError, match=r"valid is \(2, 5\); wanted \(2, 3\)"):
        w.summary(valid=torch.ones(2, 5, dtype=torch.bool))
    with pytest.raises(ShapeError, match=r"words is \(5,\); wanted \(2, 5\)"):
        w.summary(words=torch.zeros(5, dtype=torch.long))
    with pytest.raises(ArgumentError, match="top is 0"):
        w.summary(top=0)
