"""`qkv classify`: labels with their probabilities, as text and as JSON."""

import json

import pytest
import torch

from qkv.models import load
from qkv.models.bert import BertConfig
from qkv.models.classifier import CLASSIFIER, Classifier, ClassifierConfig
from qkv.models.formats.files import Unwritten
from qkv.models.saving import save_folder
from qkv.train.vocabulary import of_bytes

TEXTS = ("a fine film", "two hours that I want back", "so so")


@pytest.fixture
def folder(tmp_path):
    tokenizer = of_bytes(special=("[CLS]", "[SEP]"), before=("[CLS]",), after=("[SEP]",))
    config = ClassifierConfig.on(BertConfig(258, 12, 2, 3, 9, 40), ("bad", "très bien\x1b[2J"))
    model = Classifier(config, Unwritten(tokenizer))
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter)
    save_folder(model, CLASSIFIER, tmp_path / "mood", tokenizer=tokenizer)
    return tmp_path / "mood"


def test_each_text_stands_behind_its_label(qkv, folder):
    found = load(folder).classify(TEXTS)
    ended = qkv("classify", *TEXTS, "--model", folder)
    assert (ended.code, ended.err) == (0, "")
    for line, text, one in zip(ended.out.splitlines(), TEXTS, found, strict=True):
        label = "bad" if one.label == "bad" else "très bien�[2J"
        share = max(one.probabilities.values())
        assert line == f"{label:<{len(line) - len(text) - 8}}  {share:.2f}  {text}"
    assert "\x1b" not in ended.out


def test_json_gives_every_probability(qkv, folder, tmp_path):
    (tmp_path / "texts.txt").write_text("\n".join(["", *TEXTS, " "]))
    told = json.loads(
        qkv("classify", "--file", tmp_path / "texts.txt", "--model", folder, "--json").out
    )
    assert told["labels"] == ["bad", "très bien\x1b[2J"]
    assert told["model"] == str(folder)
    for row, text, one in zip(told["texts"], TEXTS, load(folder).classify(TEXTS), strict=True):
        assert (row["text"], row["label"]) == (text, one.label)
        assert row["probabilities"] == pytest.approx(dict(one.probabilities), abs=1e-6)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("a text",), "--model is missing; wanted the folder of a classifier"),
        (("--model", "mood"), "wanted either TEXT... or --file FILE; see --help"),
        (("x", "--file", "y", "--model", "mood"), "wanted either TEXT... or --file FILE"),
        (("x", "--model", "smollm2"), "smollm2 is a decoder: it writes text on; wanted a"),
        (("x", "--model", "nowhere"), "no model named 'nowhere'"),
    ],
)  # fmt: skip
def test_what_it_cannot_do_is_refused_in_one_line(qkv, arguments, message):
    ended = qkv("classify", *arguments)
    assert (ended.code, ended.out) == (2, "")
    assert message in ended.err
    assert ended.err.count("\n") == 1


def test_a_text_that_is_too_long_is_named_before_anything_is_printed(qkv, folder):
    ended = qkv("classify", "short", "long " * 20, "--model", folder)
    assert (ended.code, ended.out) == (2, "")
    assert "text 2 ('long long" in ended.err
    assert "has 102 tokens, the model takes 1 to 40" in ended.err
