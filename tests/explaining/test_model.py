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
    ids = torch.tensor([read.model.tokenizer(SENTENCE).ids])
    with torch.no_grad():
        x = read.model.hidden_states(ids)[3]
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


def test_the_weights_of_a_layer_are_those_of_its_heads_step_by_step(read):
    weights = read.weights(2)
    assert weights.shape == (12, 12, 12)
    for head in (1, 5, 12):
        told = read.explain(2, head)["weights"]
        np.testing.assert_allclose(weights[head - 1], told, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("layer", [3, None], ids=["a layer", "all layers"])
def test_what_words_look_at_is_the_mean_of_all_heads(read, layer):
    looks = dict(read.heads(layer).looks)["it"]
    layers = range(1, 7) if layer is None else [layer]
    mean = np.concatenate([read.weights(at) for at in layers]).mean(axis=0)
    tokens = read.rows["encoder"].names
    it, words = tokens.index("it"), range(1, len(tokens) - 1)
    wanted = sorted((-mean[it, j], tokens[j]) for j in words if j != it)[:3]
    assert [name for name, _ in looks] == [name for _, name in wanted]
    np.testing.assert_allclose([x for _, x in looks], [-x for x, _ in wanted], rtol=1e-5)


def test_a_window_reads_only_its_tokens(read):
    part = ModelText.read(SENTENCE, "minilm", "1:3")
    assert part.rows["encoder"].names == ("[CLS]", "coffee", "spilled", "[SEP]")


def test_one_word_has_no_other_word_to_look_at():
    table = ModelText.read("coffee", "minilm").heads(1)
    assert table.looks == (("coffee", ()),)
    assert all(head.links == () for head in table.ranked)


@pytest.mark.parametrize(
    ("layer", "head", "message"),
    [
        (7, 1, "layer is 7; there are layers 1 to 6"),
        (0, 1, "layer is 0; there are layers 1 to 6"),
        (1, 13, "head is 13; there are heads 1 to 12"),
    ],
)
def test_layers_and_heads_out_of_range_are_refused(read, layer, head, message):
    with pytest.raises(ArgumentError, match=message):
        read.explain(layer, head)


def test_a_kind_that_the_model_has_not_is_refused_with_those_it_has(read):
    with pytest.raises(ArgumentError, match=r"kind is 'cross'; this model has encoder$"):
        read.explain(1, 1, "cross")
    with pytest.raises(ArgumentError, match=r"kind is 'cross'; this model has encoder$"):
        read.heads(kind="cross")


def test_a_whole_layer_of_the_real_model_is_written_and_proved(read):
    told = read.explain_layer(4)
    told.verify()
    assert told.title == "Layer 4: Encoder layer, 12 heads, post-norm"
    ids = torch.tensor([read.model.tokenizer(SENTENCE).ids])
    with torch.no_grad():
        wanted = read.model.hidden_states(ids)[4][0]
    np.testing.assert_allclose(told.result, wanted.numpy(), atol=1e-5)
    assert told.step("head 7/weights").rows == read.rows["encoder"].names
    with pytest.raises(ArgumentError, match="write one section"):
        told.to_excel("never.xlsx")


def test_a_text_of_its_own_has_no_output(minilm_folder):
    with pytest.raises(ArgumentError, match="output is 'a', but this model has no second text"):
        ModelText.read(SENTENCE, "minilm", output="a")


def test_more_text_than_the_model_reads_is_refused_with_the_way_out(minilm_folder):
    with pytest.raises(
        ArgumentError, match=r"choose fewer tokens \(in the command: --tokens 0:256\)"
    ):
        ModelText.read("word " * 1000, "minilm")
