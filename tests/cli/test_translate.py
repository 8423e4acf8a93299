"""`qkv translate`: a line in, a line out, and what each word looked at."""

import io
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from qkv.cli import opening
from qkv.errors import ArgumentError
from qkv.explaining.aligned import aligned
from qkv.models import load
from qkv.models.recurrent import RECURRENT
from qkv.models.saving import save_folder
from tests.models import test_recurrent as recurrent
from tests.models.text.test_marian_tokenizer import folder as spelling  # noqa: F401

LINES = ["tranka lo mi", "mi", "lo lo tranka mi lo"]


@pytest.fixture(scope="module")
def folder(spelling: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:  # noqa: F811
    """A folder as OPUS-MT has them, of random weights."""
    from transformers import MarianConfig, MarianMTModel

    made = tmp_path_factory.mktemp("opus")
    numbers = json.loads((spelling / "vocab.json").read_text("utf-8"))
    torch.manual_seed(3)
    theirs = MarianMTModel(
        MarianConfig(
            vocab_size=len(numbers), d_model=12, encoder_layers=1, decoder_layers=3,
            encoder_attention_heads=2, decoder_attention_heads=3, encoder_ffn_dim=7,
            decoder_ffn_dim=5, max_position_embeddings=30, pad_token_id=numbers["<pad>"],
            eos_token_id=0, decoder_start_token_id=numbers["<pad>"], forced_eos_token_id=0,
        )
    )  # fmt: skip
    with torch.no_grad():
        for parameter in theirs.parameters():
            if parameter.requires_grad:
                parameter.normal_(std=0.6)
    theirs.generation_config.bad_words_ids = [[numbers["<pad>"]]]
    theirs.save_pretrained(made)
    for name in ("source.spm", "target.spm", "vocab.json"):
        shutil.copy(spelling / name, made)
    return made


@pytest.fixture(scope="module")
def alone(folder: Path) -> dict[str, Any]:
    """Each line translated by the library, by itself."""
    model = load(folder)
    rows = [torch.tensor([model.tokenizer(line).ids]) for line in LINES]
    return {
        line: model.generate([()], cache=model.read(row), beams=4, max_tokens=9)[0]
        for line, row in zip(LINES, rows, strict=True)
    }


def test_each_line_is_translated_as_it_would_be_alone(qkv, folder, alone):
    ended = qkv("translate", *LINES, "--model", folder, "--max-tokens", 9)
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.splitlines() == [alone[line].text for line in LINES]
    told = json.loads(qkv("translate", *LINES, "--model", folder, "--max-tokens", 9, "--json").out)
    assert told["model"] == str(folder)
    assert told["beams"] == 4
    for line, wanted in zip(told["lines"], LINES, strict=True):
        assert (line["source"], line["text"]) == (wanted, alone[wanted].text)
        assert line["score"] == pytest.approx(alone[wanted].score, abs=1e-5)
        assert line["reason"] == alone[wanted].reason
        assert line["alignment"] is None


def test_blank_lines_stay_where_they_are(qkv, folder, alone, monkeypatch):
    lines = [LINES[0], "", *[LINES[1]] * 8, "", LINES[2]]  # more than one batch
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO("\r\n".join(lines).encode())))
    ended = qkv("translate", "-", "--model", folder, "--max-tokens", 9)
    wanted = [alone[line].text if line else "" for line in lines]
    assert ended.out.split("\n") == [*wanted, ""]


def test_only_blank_lines_are_refused_but_a_batch_of_them_is_none(qkv, folder, alone):
    text = "\n" * 20 + LINES[1]
    ended = qkv("translate", text, "--model", folder, "--max-tokens", 9)
    assert ended.out == "\n" * 20 + alone[LINES[1]].text + "\n"


def test_the_number_of_beams_reaches_the_library(qkv, folder):
    model = load(folder)
    row = torch.tensor([model.tokenizer(LINES[0]).ids])
    wanted = model.generate([()], cache=model.read(row), max_tokens=9)[0].text
    ended = qkv("translate", LINES[0], "--model", folder, "--max-tokens", 9, "--beams", 1)
    assert ended.out == f"{wanted}\n"


def test_an_alignment_says_what_each_word_looked_at(qkv, folder, alone):
    line = LINES[2]
    looks = aligned(load(folder), line, alone[line].ids)
    assert looks
    command = ("translate", line, "--model", folder, "--max-tokens", 9, "--alignment")
    told = json.loads(qkv(*command, "--json").out)["lines"][0]["alignment"]
    assert [(x["word"], x["source"]) for x in told] == [(x.word, x.source) for x in looks]
    assert [x["weight"] for x in told] == pytest.approx([x.weight for x in looks], abs=1e-5)
    first, *rest = qkv(*command).out.splitlines()
    assert first == alone[line].text
    assert [row.split()[-2:] for row in rest] == [[f"{x.weight:.2f}", x.source] for x in looks]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["a", "--model", "minilm"], "minilm is an encoder: it embeds text and cannot write any; "
                                     "wanted one that translates"),
        (["a", "--model", "smollm2"], "smollm2 is a decoder: it writes text on; wanted one that"),
        (["a", "--model", "/no/such"], "there is no model named '/no/such'"),
        (["--model", "."], "TEXT is missing"),
        (["", "--model", "."], "TEXT is ''; wanted a text"),
        (["a", "--model", ".", "--beams", "0"], "beams is 0; wanted 1 to 64"),
        (["a", "--model", ".", "--beams", "65"], "beams is 65; wanted 1 to 64"),
        (["a", "--model", ".", "--max-tokens", "0"], "max_tokens is 0; wanted 1 to 100000"),
        (["a", "--model", "a.spm"], "a.spm is a file; wanted the folder with config.json"),
    ],
)  # fmt: skip
def test_a_users_mistake_is_one_line_and_no_model_is_loaded(
    qkv, tmp_path, monkeypatch, arguments, message
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.spm").touch()
    monkeypatch.setattr(opening, "opened", None)
    ended = qkv("translate", *arguments)
    assert (ended.code, ended.out) == (2, "")
    assert message in ended.err
    assert len(ended.err.splitlines()) == 1


def test_a_line_that_is_too_long_is_named(qkv, folder):
    ended = qkv("translate", "mi\n" + "mi " * 40, "--model", folder)
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith("qkv: line 2 ('mi mi ")
    assert "the model takes 1 to 30; make several texts of it" in ended.err


def test_an_empty_folder_is_no_model(qkv, tmp_path):
    ended = qkv("translate", "a", "--model", tmp_path)
    assert ended.code == 2
    assert "config.json" in ended.err


def test_the_library_translates_texts_in_batches(folder, alone):
    model = load(folder)
    wanted = [alone[line].ids for line in LINES]
    for size in (1, 2, 3, 8):
        found = model.translate(LINES, batch_size=size, beams=4, max_tokens=9)
        assert [one.ids for one in found] == wanted
    assert model.translate(LINES[0], beams=4, max_tokens=9)[0].text == alone[LINES[0]].text


@pytest.mark.parametrize(
    ("texts", "options", "message"),
    [
        ([], {}, "there are 0 texts, 8 at a time; wanted 1 or more"),
        (["mi"], {"batch_size": 0}, "there are 1 texts, 0 at a time; wanted 1 or more"),
        (["mi", "mi " * 40], {}, r"text 2 \('mi .* the model takes 1 to 30; make several texts"),
        (["mi", ""], {}, "there is no token in it"),
        (["mi"], {"num_beams": 3}, "there is no option num_beams; known are max_tokens"),
    ],
)
def test_texts_that_cannot_be_translated_are_refused_at_once(folder, texts, options, message):
    with pytest.raises(ArgumentError, match=message):
        load(folder).translations(texts, **options)


def test_to_generate_without_a_source_says_what_to_call(folder):
    model = load(folder)
    for writes in (model.generate, model.stream):
        with pytest.raises(ArgumentError, match=r"call model\.translate\(texts\), or say cache="):
            writes("mi")


@pytest.mark.parametrize("kind", [None, "additive", "dot"])
def test_a_recurrent_network_translates_too(qkv, tmp_path, kind):
    model = recurrent.made(kind).float()
    save_folder(model, RECURRENT, tmp_path, tokenizer=recurrent.tokenizer())
    lines = ["the sky is blue", "is blue"]
    wanted = load(tmp_path).translate(lines, beams=4, max_tokens=6)
    command = ("translate", *lines, "--model", tmp_path, "--max-tokens", 6)
    ended = qkv(*command)
    assert (ended.code, ended.out.splitlines()) == (0, [one.text for one in wanted])
    ended = qkv(*command, "--alignment", "--json")
    if kind is None:
        assert ended.code == 2
        assert "this model has no attention" in ended.err
        return
    told = json.loads(ended.out)["lines"]
    assert [line["text"] for line in told] == [one.text for one in wanted]
    assert all(look["source"] in lines[0].split() for look in told[0]["alignment"])


def test_what_looks_into_layers_refuses_a_recurrent_network(qkv, tmp_path):
    save_folder(recurrent.made("dot"), RECURRENT, tmp_path, tokenizer=recurrent.tokenizer())
    for command in ("explain", "watch"):
        ended = qkv(command, "the sky", "--model", tmp_path)
        assert ended.code == 2
        assert "is a Recurrent: it has no layers of attention to look into" in ended.err
    assert (
        "is a recurrent network: it translates text"
        in qkv("generate", "the sky", "--model", tmp_path).err
    )
