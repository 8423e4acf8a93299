"""A classifier on an encoder: its equation, its labels, its folder."""

import json

import numpy as np
import pytest
import torch
from torch.nn.functional import layer_norm, softmax

import qkv
from qkv.errors import ArgumentError, ModelError
from qkv.explaining.model import ModelText
from qkv.models import load
from qkv.models.bert import BertConfig
from qkv.models.classifier import CLASSIFIER, Classifier, ClassifierConfig
from qkv.models.formats.files import Unwritten
from qkv.models.maps.architecture import map_of
from qkv.models.saving import save_folder
from qkv.train.vocabulary import of_bytes

UNEVEN = BertConfig(263, 15, 3, 5, 11, 29, type_vocab_size=2, layer_norm_eps=1e-3)
EVEN = BertConfig(259, 8, 2, 2, 8, 19, type_vocab_size=1)
LABELS = ("bad", "good", "so so")


@pytest.fixture
def tokenizer():
    return of_bytes(special=("[PAD]", "[CLS]", "[SEP]"), before=("[CLS]",), after=("[SEP]",))


@pytest.fixture
def made(tokenizer):
    """Make a classifier of random weights in float64."""

    def make(sizes=UNEVEN, labels=LABELS, **options):
        model = Classifier(ClassifierConfig.on(sizes, labels), Unwritten(tokenizer), **options)
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter, std=0.3)
        return model.double().eval()

    return make


def by_hand(model, ids):
    """The whole network on one text, without its modules."""
    p, c = model.state_dict(), model.config
    n, heads = c.hidden_size, c.num_attention_heads

    def linear(x, name):
        return x @ p[f"{name}.weight"].mT + p[f"{name}.bias"]

    def norm(x, name):
        return layer_norm(x, (n,), p[f"{name}.weight"], p[f"{name}.bias"], c.layer_norm_eps)

    e = "bert.embedding"
    x = p[f"{e}.token.weight"][ids] + p[f"{e}.position.weight"][: len(ids)]
    x = norm(x + p[f"{e}.segment.weight"][0], f"{e}.norm")
    for i in range(c.num_hidden_layers):
        at = f"bert.encoder.layers.{i}"
        q, k, v = (
            linear(x, f"{at}.attention.{w}").unflatten(-1, (heads, -1)).transpose(0, 1)
            for w in ("WQ", "WK", "WV")
        )
        seen = softmax(q @ k.mT / (n // heads) ** 0.5, dim=-1) @ v
        x = norm(x + linear(seen.transpose(0, 1).flatten(-2), f"{at}.attention.WO"),
                 f"{at}.attention_norm")  # fmt: skip
        inner = torch.nn.functional.gelu(linear(x, f"{at}.feed_forward.W1"))
        x = norm(x + linear(inner, f"{at}.feed_forward.W2"), f"{at}.feed_forward_norm")
    return linear(x.mean(dim=0), "output")


@pytest.mark.parametrize("sizes", [UNEVEN, EVEN])
def test_the_logits_are_those_of_the_equation_whatever_the_padding(made, sizes):
    model = made(sizes)
    lengths = [7, 13, 1, 5]
    ids = torch.randint(sizes.vocab_size, (4, 13))
    told = model(ids, lengths).detach()
    for row, length, logits in zip(ids, lengths, told, strict=True):
        torch.testing.assert_close(logits, by_hand(model, row[:length]), rtol=0, atol=1e-10)
    changed = ids.where(torch.arange(13) < torch.tensor(lengths)[:, None], 0)
    torch.testing.assert_close(
        model(changed, torch.tensor(lengths)).detach(), told, rtol=0, atol=1e-12
    )
    torch.testing.assert_close(model(ids[1:2]).detach(), told[1:2], rtol=0, atol=1e-12)


def test_each_text_gets_the_label_of_its_largest_logit(made, tokenizer):
    model = made()
    texts = ["a fine film", "dull", "not bad, but not good", "the end", "?"]
    with torch.no_grad():  # so that no label wins every time
        mean = torch.stack([by_hand(model, torch.tensor(tokenizer(text).ids)) for text in texts])
        model.output.bias -= mean.mean(dim=0)
    found = model.classify(texts, batch_size=2)
    assert len(found) == 5
    for text, one in zip(texts, found, strict=True):
        shares = softmax(by_hand(model, torch.tensor(tokenizer(text).ids)), dim=-1).tolist()
        assert list(one.probabilities) == list(LABELS)
        np.testing.assert_allclose(list(one.probabilities.values()), shares, atol=1e-10)
        assert one.label == LABELS[int(np.argmax(shares))]
    assert len({one.label for one in found}) > 1
    assert [one.label for one in model.classify("a fine film")] == [found[0].label]


def test_texts_that_do_not_fit_are_refused(made):
    model = made()
    with pytest.raises(ArgumentError, match="there are 0 texts, 32 at a time"):
        model.classify([])
    with pytest.raises(ArgumentError, match="there are 1 texts, 0 at a time"):
        model.classify("x", batch_size=0)
    with pytest.raises(ArgumentError, match="there is no token in it"):
        model.classify(["fine", ""])
    with pytest.raises(ArgumentError, match=r"text 2 \('bbbb.*has 42 tokens, the model takes 1 to"):
        model.classify(["fine", "b" * 40])
    with pytest.raises(ArgumentError, match=r"lengths are \[0, 3\] .*; wanted one whole number"):
        model(torch.ones(2, 3).long(), [0, 3])


def test_dropout_changes_what_is_trained_and_nothing_else(made):
    model, ids = made(dropout=0.5), torch.randint(259, (3, 9))
    assert torch.equal(model(ids), model(ids))
    model.train()
    assert not torch.equal(model(ids), model(ids))
    assert all(layer.dropout == layer.attention.dropout == 0.5 for layer in model.layers)


@pytest.mark.parametrize(
    "labels",
    [None, {}, {"0": "one"}, {"0": "a", "1": "a"}, {"1": "a", "2": "b"}, {"0": "a", "1": ""},
     {"0": "a", "1": 5}],
)  # fmt: skip
def test_labels_that_make_no_choice_are_refused(made, tmp_path, labels):
    model = made()
    save_folder(model, CLASSIFIER, tmp_path, tokenizer=model.tokenizer)
    path = tmp_path / "config.json"
    said = json.loads(path.read_text("utf-8"))
    del said["id2label"]
    path.write_text(json.dumps(said if labels is None else {**said, "id2label": labels}))
    with pytest.raises(ModelError, match="wanted two or more different labels, numbered from 0"):
        load(tmp_path)


def test_its_folder_gives_the_same_model(made, tmp_path):
    model = made()
    save_folder(model, CLASSIFIER, tmp_path, tokenizer=model.tokenizer, dtype=torch.float64)
    again = load(tmp_path, dtype=torch.float64)
    assert (type(again), again.labels, again.training) == (Classifier, LABELS, False)
    assert again.classify(["fine", "dull"]) == model.classify(["fine", "dull"])


@pytest.mark.slow
def test_it_is_seen_by_all_that_sees_an_encoder(made, tmp_path):
    model = made()
    save_folder(model, CLASSIFIER, tmp_path / "mood", tokenizer=model.tokenizer)
    assert map_of(tmp_path / "mood").pattern == "encoder only"
    again = load(tmp_path / "mood")
    with qkv.watch(again) as seen:
        again.classify("a fine film")
    assert len(seen) == UNEVEN.num_hidden_layers
    told = ModelText.read("fine", str(tmp_path / "mood")).explain(2, 3)
    assert told.verify().difference < 1e-4


def test_without_a_tokenizer_it_takes_ids_only():
    model = Classifier(ClassifierConfig.on(EVEN, LABELS))
    assert model(torch.tensor([[3, 4]])).shape == (1, 3)
    with pytest.raises(ModelError, match=r"no tokenizer\.json"):
        model.classify("fine")
