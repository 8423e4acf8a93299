"""How heads link words: against the whole matrix, with what does not count left out."""

import torch

import qkv
from qkv.cli.linking import LINKS, linking, ranked
from qkv.explaining.inputs import Rows
from qkv.nn.attention import MultiHeadAttention


def seen(x, y=None, mask=None):
    layer = MultiHeadAttention(x.shape[-1], num_heads=3).eval()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.mul_(3)  # peaked
        with qkv.watch(layer) as recording:
            layer(x, x if y is None else y, x if y is None else y, mask=mask)
    (call,) = recording
    return call


def brute(weights, queries, keys, apart, first):
    """The strongest other key of each own query, pair by pair."""
    best = {}
    for i in queries.own:
        for j in keys.own:
            if (apart is None or abs(i - j) >= apart) and j >= first:
                weight = float(weights[i, j])
                if weight > best.get(i, (0.0, None))[0]:
                    best[i] = (weight, j)
    return best


def check(call, queries, keys, apart, first):
    dense = call.weights.dense()[0].double()
    for found, weights in zip(linking(4, call, queries, keys), dense, strict=True):
        best = brute(weights, queries, keys, apart, first)
        # 1e-6: the weights are in float32
        torch.testing.assert_close(
            torch.tensor(found.share, dtype=torch.double),
            torch.tensor(sum(w for w, _ in best.values()) / len(queries.own), dtype=torch.double),
            atol=1e-6, rtol=0,
        )  # fmt: skip
        ordered = sorted(best.items(), key=lambda item: -item[1][0])[:LINKS]
        wanted = [(queries.names[i], keys.names[j]) for i, (_, j) in ordered]
        assert [(link.query, link.key) for link in found.links] == wanted
        assert found.name.startswith("4.")


def names(count, own):
    return Rows(tuple(f"w{i}" for i in range(count)), tuple(own))


def test_neighbours_and_what_surrounds_the_text_do_not_count():
    rows = names(8, range(1, 7))
    check(seen(torch.randn(1, 8, 12)), rows, rows, apart=2, first=0)


def test_under_a_causal_mask_the_first_token_does_not_count():
    rows = names(7, range(7))
    call = seen(torch.randn(1, 7, 12), mask=qkv.Mask.causal())
    check(call, rows, rows, apart=2, first=1)


def test_across_the_bridge_every_word_counts():
    call = seen(torch.randn(1, 5, 12), torch.randn(1, 8, 12))
    check(call, names(5, range(5)), names(8, range(1, 7)), apart=None, first=0)


def test_the_same_words_are_told_once_and_heads_are_ranked_by_their_share():
    rows = Rows(("the", "a", "the", "b", "the", "c"), tuple(range(6)))
    found = linking(1, seen(torch.randn(1, 6, 12)), rows, rows)
    for one in found:
        pairs = [(link.query, link.key) for link in one.links]
        assert len(pairs) == len(set(pairs))
    shares = [one.share for one in ranked(found, 2)]
    assert shares == sorted((one.share for one in found), reverse=True)[:2]
