"""A sentence in a real model."""

import numpy as np
import pytest
import torch

from qkv.errors import ArgumentError
from qkv.explaining.model import ModelText

SENTENCE = "the coffee spilled on the laptop and it stopped working"


@pytest.fixture(scope="module")
def read(minilm_folder):
    return ModelText.read(SENTENCE, "minilm")


def test_one_head_is_what_the_layer_computes_in_the_model(read):
    told = read.explain(4, 7)
    told.verify()
    layer = read.model.layers[3].attention
    x = read.states[3][None]
    with torch.no_grad():
        context = layer.context(x, x, x, None)[0, 6]
    np.testing.assert_allclose(told.result, context.numpy(), atol=1e-5)
    assert told.title == "Layer 4: Self-attention, head 7 of 12"
    assert told.step("weights").rows == ("[CLS]", *SENTENCE.split(), "[SEP]")


def test_the_pronoun_is_tied_to_the_laptop(read):
    table = read.heads()
    assert dict(table.looks)["it"][0][0] == "laptop"
    links = [(link.source, link.target) for head in table.ranked for link in head.links]
    assert ("it", "laptop") in links


def test_heads_are_ranked_by_how_much_they_link_words_that_are_no_neighbours(read):
    ranked = read.heads(6).ranked
    assert [head.linking for head in ranked] == sorted((h.linking for h in ranked), reverse=True)
    assert {head.layer for head in ranked} == {6}
    best = ranked[0]
    weights = read.explain(6, best.head)["weights"][1:-1, 1:-1].copy()
    near = np.abs(np.subtract.outer(range(10), range(10))) < 2
    weights[near] = 0
    assert best.linking == pytest.approx(weights.max(axis=1).mean(), abs=1e-6)


def test_a_window_reads_only_its_tokens(read):
    part = ModelText.read(SENTENCE, "minilm", "1:3")
    assert part.tokens == ("[CLS]", "coffee", "spilled", "[SEP]")


def test_one_word_has_no_other_word_to_look_at():
    table = ModelText.read("coffee", "minilm").heads(1)
    assert table.looks == (("coffee", ()),)
    assert all(head.links == () for head in table.ranked)


@pytest.mark.parametrize(
    ("layer", "head", "message"),
    [
        (None, 1, "--head needs a layer"),
        (7, 1, "--layer is 7; there are layers 1 to 6"),
        (0, 1, "--layer is 0; there are layers 1 to 6"),
        (1, 13, "--head is 13; there are heads 1 to 12"),
    ],
)
def test_layers_and_heads_out_of_range_are_refused(read, layer, head, message):
    with pytest.raises(ArgumentError, match=message):
        read.explain(layer, head)


def test_more_text_than_the_model_reads_is_refused_with_the_way_out(minilm_folder):
    with pytest.raises(ArgumentError, match=r"--tokens"):
        ModelText.read("word " * 1000, "minilm")
