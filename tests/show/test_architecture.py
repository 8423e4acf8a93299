"""The record of a map: its sums, and its JSON."""

import json

import pytest

from qkv.show.architecture import CacheSize, Kind, headline, kept
from tests.show.maps import translator, writer

ENCODER = 230_161 + 5 * (1_931 + 6_141 + 2 * 46)
DECODER = 3 * (1_933 + 1_949 + 6_141 + 3 * 46) + 47 + 240_168


def test_parameters_add_up_layer_by_layer_and_tower_by_tower():
    a = translator()
    assert [tower.parameters for tower in a.towers] == [ENCODER, DECODER]
    assert a.parameters == ENCODER + DECODER
    assert headline(a) == f"marian, encoder and decoder, {ENCODER + DECODER:,} parameters"


def test_the_pattern_and_the_kinds_of_attention_follow_from_the_towers():
    assert translator().kinds == (Kind.SELF, Kind.MASKED, Kind.CROSS)
    assert writer().kinds == (Kind.MASKED,)
    assert writer().pattern == "decoder only"


def test_json_holds_all_of_the_record_under_stable_names():
    plain = json.loads(json.dumps(translator().plain()))
    assert list(plain) == ["name", "family", "pattern", "parameters", "towers", "cache"]
    encoder, decoder = plain["towers"]
    assert list(encoder) == [
        "name", "parameters", "below", "layers", "layer_parameters", "layer", "above",
    ]  # fmt: skip
    assert encoder["layers"] == 5
    assert encoder["layer_parameters"] == 8_164
    assert [part["kind"] for part in decoder["layer"]] == [
        "masked self-attention", "add & norm", "cross-attention", "add & norm", "feed-forward",
        "add & norm",
    ]  # fmt: skip
    assert encoder["below"][1] == {
        "kind": "embedding", "name": "word embedding",
        "says": ["10,007 tokens × 23", "times √23"],
        "sizes": {"vocabulary": 10_007, "n_embed": 23, "scaled": True, "shared": False},
        "parameters": 230_161,
    }  # fmt: skip
    assert plain["cache"] == {
        "values_per_token": 126,
        "bytes_per_token": {"float32": 504, "bfloat16": 252},
        "memory_values_per_row": 127,
        "most_tokens": 61,
    }


@pytest.mark.parametrize(
    ("values", "told"),
    [
        (255, "255 values, 1,020 B in float32, 510 B in bfloat16"),
        (256, "256 values, 1.0 KiB in float32, 512 B in bfloat16"),
        (3 << 18, "786,432 values, 3.0 MiB in float32, 1.5 MiB in bfloat16"),
        (5 << 40, "5,497,558,138,880 values, 20,480.0 GiB in float32, 10,240.0 GiB in bfloat16"),
    ],
)
def test_memory_of_the_cache_is_told_in_units_that_can_be_read(values, told):
    assert kept(CacheSize(values)) == [f"Cache of keys and values, for a token: {told}"]


def test_the_memory_of_the_encoder_and_the_most_are_told_where_there_are_any():
    assert kept(CacheSize(126, 127, 61))[1:] == [
        "for a row that the encoder made: 127 values, 508 B in float32, 254 B in bfloat16",
        "for 61 tokens, the most: 30.0 KiB in float32",
    ]
