"""The trained relative bias against T5's own, in transformers."""

import pytest
import torch
from transformers import T5Config
from transformers.models.t5.modeling_t5 import T5Attention

from qkv import Mask, MultiHeadAttention, attention
from qkv.errors import ArgumentError
from qkv.nn.bias import RelativeBias
from tests.reference import agree, array

SIZES = [(3, 32, 128), (4, 8, 16), (1, 6, 20), (2, 4, 3)]  # heads, buckets, most


def pair(heads: int, buckets: int, most: int, both_ways: bool) -> tuple[RelativeBias, T5Attention]:
    config = T5Config(
        d_model=heads * 2, d_kv=2, num_heads=heads, is_decoder=not both_ways,
        relative_attention_num_buckets=buckets, relative_attention_max_distance=most,
    )  # fmt: skip
    theirs = T5Attention(config, has_relative_attention_bias=True, layer_idx=0).double()
    ours = RelativeBias(heads, buckets, most, both_ways, dtype=torch.float64)
    theirs.relative_attention_bias.load_state_dict(ours.state_dict())
    return ours, theirs


@pytest.mark.parametrize("both_ways", [True, False])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (7, 7), (3, 11), (1, 300), (300, 300)])
def test_the_bias_is_t5s(
    sizes: tuple[int, int, int], both_ways: bool, queries: int, keys: int
) -> None:
    ours, theirs = pair(*sizes, both_ways)
    wanted = theirs.compute_bias(queries, keys, past_seen_tokens=keys - queries)
    agree(ours(queries, keys).matrix(queries, keys), array(wanted), 0)


def test_near_keys_have_a_bucket_each_and_far_ones_share() -> None:
    bias = RelativeBias(2)
    distance = torch.tensor([[0, -1, -7, -8, -11, -12, -127, -128, -9000, 1, 7, 128]])
    agree(bias.bucket(distance), [[0, 1, 7, 8, 8, 9, 15, 15, 15, 17, 23, 31]], 0)


@pytest.mark.parametrize("both_ways", [True, False])
def test_gradients_reach_the_table(both_ways: bool) -> None:
    ours, theirs = pair(4, 8, 16, both_ways)
    q, k, v = (torch.randn(2, 4, 11, 3, dtype=torch.float64) for _ in range(3))
    attention(q, k, v, Mask.causal() & ours(11, 11)).square().sum().backward()
    scores = q @ k.mT / 3**0.5 + theirs.compute_bias(11, 11) + Mask.causal().matrix(11)
    (torch.softmax(scores, -1) @ v).square().sum().backward()
    agree(ours.weight.grad, array(theirs.relative_attention_bias.weight.grad), 1e-12)
    assert ours.weight.grad.abs().sum() > 0.1


def test_one_query_at_a_time_sees_the_same_bias() -> None:
    bias = RelativeBias(3, 8, 16, both_ways=False)
    layer = MultiHeadAttention(12, num_heads=3, n_out=12, d_k=4, d_v=4).eval()
    x = torch.randn(2, 9, 12)
    whole = layer(x, x, x, Mask.causal() & bias(9, 9))
    for t in range(1, 10):
        seen = x[:, :t]
        agree(layer(seen[:, -1:], seen, seen, bias(1, t)), array(whole[:, t - 1 : t]), 1e-6)


def test_it_is_saved_and_made_where_asked(shape_device: torch.device) -> None:
    bias = RelativeBias(3, device=shape_device, dtype=torch.bfloat16)
    assert {n: (p.shape, p.dtype, p.device.type) for n, p in bias.named_parameters()} == {
        "weight": ((32, 3), torch.bfloat16, shape_device.type)
    }
    assert repr(bias) == "RelativeBias(num_heads=3, buckets=32, most=128)"


REFUSED = [
    ({"num_heads": 0}, "num_heads is 0; wanted a whole number, 1 or more"),
    ({"buckets": 7}, "buckets is 7; wanted 2 or more each way, an even number"),
    ({"buckets": 2}, "buckets is 2; wanted 2 or more each way, an even number"),
    ({"buckets": 1, "both_ways": False}, "buckets is 1; wanted 2 or more each way"),
    ({"most": 8}, "most is 8; wanted more than 8 (single ones)"),
]


@pytest.mark.parametrize(("arguments", "why"), REFUSED)
def test_sizes_that_cannot_be_are_refused(arguments: dict[str, int], why: str) -> None:
    with pytest.raises(ArgumentError) as error:
        RelativeBias(**{"num_heads": 2, **arguments})
    assert str(error.value).startswith(why)


@pytest.mark.parametrize(("queries", "keys"), [(0, 3), (4, 3)])
def test_more_queries_than_keys_are_refused(queries: int, keys: int) -> None:
    with pytest.raises(ArgumentError, match=f"{queries} queries of {keys} keys; wanted 1 to 3"):
        RelativeBias(2)(queries, keys)
