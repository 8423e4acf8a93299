"""Words of a translation and what they looked at: the weights are Hugging Face's."""

from pathlib import Path
from typing import Any

import pytest
import torch

from qkv.errors import ArgumentError
from qkv.explaining.aligned import _words, aligned, weighed
from qkv.models import load
from qkv.models.recurrent import Recurrent, RecurrentConfig
from tests.models.text.test_marian_tokenizer import folder as folder  # noqa: PLC0414


@pytest.fixture(scope="module")
def models(folder: Path) -> tuple[Any, Any]:
    """Ours and Hugging Face's, with the tokenizer of that folder."""
    from transformers import MarianConfig, MarianMTModel

    from qkv.models.text.marian_tokenizer import MarianTokenizer

    size = MarianTokenizer.read(folder).size
    theirs = MarianMTModel(
        MarianConfig(
            vocab_size=size, d_model=12, encoder_layers=1, decoder_layers=3,
            encoder_attention_heads=2, decoder_attention_heads=3, encoder_ffn_dim=7,
            decoder_ffn_dim=5, max_position_embeddings=40, pad_token_id=2, eos_token_id=0,
            decoder_start_token_id=2, attn_implementation="eager",
        )
    ).double().eval()  # fmt: skip
    with torch.no_grad():
        for parameter in theirs.parameters():
            if parameter.requires_grad:
                parameter.normal_(std=0.6)
    theirs.save_pretrained(folder)
    return load(folder, dtype=torch.float64), theirs


def test_pieces_become_words() -> None:
    pieces = ["▁the", "▁sk", "y", ".", "▁", "x"]
    words = [(word, [*part]) for word, part in _words(pieces)]
    assert words == [("the", [0]), ("sky.", [1, 2, 3]), ("x", [4, 5])]
    assert [(word, [*part]) for word, part in _words(["y", "▁a"])] == [("y", [0]), ("a", [1])]


def test_each_word_looks_where_hugging_faces_heads_look_on_average(models: Any) -> None:
    ours, theirs = models
    text, ids = "the sky is blue", [9, 5, 11, 8, 14, 7]
    read = ours.tokenizer(text)
    with torch.no_grad():
        out = theirs(
            input_ids=torch.tensor([read.ids]), decoder_input_ids=torch.tensor([[2, *ids[:-1]]]),
            output_attentions=True,
        )  # fmt: skip
    weights = out.cross_attentions[1][0].mean(dim=0)  # of three layers the last but one
    sources = _words(read.names[:-1])
    words = _words([ours.tokenizer.piece(number) for number in ids])
    found = aligned(ours, text, [*ids, 0])
    assert [look.word for look in found] == [word for word, _ in words]
    for look, (_, rows) in zip(found, words, strict=True):
        row = weights[rows.start : rows.stop].mean(dim=0)
        shares = [float(row[part.start : part.stop].sum()) for _, part in sources]
        assert look.weight == pytest.approx(max(shares), abs=1e-6)
        assert look.source == sources[shares.index(max(shares))][0]


def test_nothing_written_looked_at_nothing(models: Any) -> None:
    assert aligned(models[0], "the sky", [0]) == []


def test_words_of_a_vocabulary_of_bytes_begin_with_its_mark() -> None:
    words = [(word, [*part]) for word, part in _words(["Ġthe", "Ġsk", "y"])]
    assert words == [("the", [0]), ("sky", [1, 2])]


@pytest.fixture
def recurrent(folder: Path) -> Recurrent:
    """A recurrent network with the tokenizer of that folder."""
    from qkv.models.text.marian_tokenizer import MarianTokenizer

    model = Recurrent(
        RecurrentConfig(MarianTokenizer.read(folder).size, 5, 6, attention="dot",
                        decoder_start_token_id=2, eos_token_id=0)
    ).double()  # fmt: skip
    model._tokenizer = MarianTokenizer.read(folder)
    return model


def test_each_word_of_a_recurrent_network_looks_where_its_weights_are(
    recurrent: Recurrent,
) -> None:
    text, ids = "the sky is blue", [9, 5, 11, 8, 14, 7]
    read = recurrent.tokenizer(text)
    weights = recurrent.weights(torch.tensor([read.ids]), torch.tensor([[2, *ids[:-1]]]))[0]
    assert torch.equal(torch.tensor(weighed(recurrent, read.ids, [2, *ids[:-1]])), weights)
    sources = _words(read.names[:-1])
    words = _words([recurrent.tokenizer.piece(number) for number in ids])
    found = aligned(recurrent, text, [*ids, 0])
    assert [look.word for look in found] == [word for word, _ in words]
    for look, (_, rows) in zip(found, words, strict=True):
        row = weights[rows.start : rows.stop].mean(dim=0)
        shares = [float(row[part.start : part.stop].sum()) for _, part in sources]
        assert look.weight == pytest.approx(max(shares), abs=1e-9)
        assert look.source == sources[shares.index(max(shares))][0]


def test_a_single_vector_looks_at_nothing(recurrent: Recurrent) -> None:
    recurrent.decoder.attention = None
    with pytest.raises(ArgumentError, match="this model has no attention"):
        aligned(recurrent, "the sky", [9, 5])
