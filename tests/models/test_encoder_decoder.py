"""Marian, an encoder and a decoder, against Hugging Face's own from the same files."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from qkv.errors import ArgumentError, ModelError
from qkv.models import load
from qkv.models.marian import Marian
from qkv.nn.attention import MultiHeadAttention
from tests.models.altering import change_config
from tests.models.peers import close, peer

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-9}
LENGTHS = torch.tensor([11, 4, 7])
VISIBLE = torch.arange(11) < LENGTHS[:, None]


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Any, Path]:
    """Hugging Face's Marian and the folder that it was saved to."""
    return peer("marian", tmp_path), tmp_path


def texts() -> tuple[Tensor, Tensor]:
    """A source and a translation of unequal lengths."""
    return torch.randint(101, (3, 11)), torch.randint(101, (3, 7))


@torch.no_grad()
def theirs(model: Any, source: Tensor, ids: Tensor, visible: Tensor | None = VISIBLE) -> Any:
    return model(
        input_ids=source, attention_mask=None if visible is None else visible.long(),
        decoder_input_ids=ids, output_hidden_states=True,
    )  # fmt: skip


@pytest.mark.parametrize("dtype", TOLERANCE)
@torch.no_grad()
def test_states_and_logits_equal_hugging_faces(pair: Any, dtype: torch.dtype) -> None:
    model, folder = pair
    ours: Marian = load(folder, dtype=dtype)
    source, ids = texts()
    expected = theirs(model, source, ids)
    read = ours.encoder_states(source, LENGTHS)
    for state, other in zip(read, expected.encoder_hidden_states, strict=True):
        close(state[VISIBLE], other[VISIBLE], TOLERANCE[dtype])
    written = ours.hidden_states(ids, ours.read(source, LENGTHS))
    for state, other in zip(written, expected.decoder_hidden_states, strict=True):
        close(state, other, TOLERANCE[dtype])
    close(ours(source, ids, LENGTHS), expected.logits, TOLERANCE[dtype])


@torch.no_grad()
def test_equal_sizes_and_no_padding(tmp_path: Path) -> None:
    sizes = {"d_model": 6, "encoder_attention_heads": 6, "decoder_attention_heads": 6,
             "encoder_ffn_dim": 6, "decoder_ffn_dim": 6, "encoder_layers": 2}  # fmt: skip
    model = peer("marian", tmp_path, **sizes)
    source, ids = torch.randint(101, (6, 6)), torch.randint(101, (6, 6))
    expected = theirs(model, source, ids, None).logits
    close(load(tmp_path, dtype=torch.float64)(source, ids), expected, 1e-9)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("chunks", [[1] * 7, [3, 4], [7], [2, 1, 4]])
@torch.no_grad()
def test_a_translation_read_in_parts_gives_the_same_logits(
    pair: Any, dtype: torch.dtype, chunks: list[int]
) -> None:
    model, folder = pair
    ours: Marian = load(folder, dtype=dtype)
    source, ids = texts()
    expected, cache, end = theirs(model, source, ids).logits, ours.read(source, LENGTHS), 0
    for size in chunks:
        logits = ours.next(ids[:, end : end + size], cache)
        end += size
        close(logits, expected[:, end - 1], TOLERANCE[dtype])


@torch.no_grad()
def test_rows_that_are_reordered_go_on_from_their_own_source(pair: Any) -> None:
    model, folder = pair
    ours: Marian = load(folder, dtype=torch.float64)
    source, ids = texts()
    rows = torch.tensor([2, 0, 0, 1])
    cache = ours.read(source, LENGTHS)
    ours.next(ids[:, :4], cache)
    cache.reorder(rows)
    logits = ours.next(ids[rows, 4:], cache)
    close(logits, theirs(model, source, ids).logits[rows, -1], 1e-9)


def test_gradients_reach_the_encoder_but_not_through_what_writes(pair: Any) -> None:
    ours: Marian = load(pair[1])
    source, ids = texts()
    ours(source, ids, LENGTHS).sum().backward()
    assert ours.encoder.layers[0].attention.WQKV.grad is not None
    cache = ours.read(source)
    assert not cache.memory.requires_grad
    assert not ours.next(ids, cache).requires_grad


@pytest.mark.parametrize("activation", ["gelu", "relu", "swish"])
@torch.no_grad()
def test_activations_and_words_that_are_not_scaled(tmp_path: Path, activation: str) -> None:
    model = peer("marian", tmp_path, activation_function=activation, scale_embedding=False)
    source, ids = texts()
    ours = load(tmp_path, dtype=torch.float64)
    close(ours(source, ids, LENGTHS), theirs(model, source, ids).logits, 1e-9)


@pytest.mark.usefixtures("as_shipped")
def test_what_cannot_be_meant_is_refused(pair: Any) -> None:
    ours: Marian = load(pair[1])
    source, ids = texts()
    with pytest.raises(ArgumentError, match="the cache has no memory"):
        ours.next(ids, ours.new_cache())
    with pytest.raises(ArgumentError, match=r"lengths are \[11, 12, 1\] for a source of \(3, 11\)"):
        ours.read(source, [11, 12, 1])
    with pytest.raises(ArgumentError, match="has 62 tokens"):
        ours.read(torch.zeros(1, 62, dtype=torch.long))
    with pytest.raises(ArgumentError, match="source reach from 0 to 101"):
        ours.read(torch.tensor([[0, 101]]))


def test_an_activation_that_is_not_known_is_refused(tmp_path: Path) -> None:
    peer("marian", tmp_path, activation_function="tanh")
    with pytest.raises(ModelError, match="activation_function is 'tanh'"):
        load(tmp_path)


def test_the_two_dropouts_of_a_configuration_reach_every_layer(tmp_path: Path) -> None:
    peer("marian", tmp_path, dropout=0.3, attention_dropout=0.2)
    ours: Marian = load(tmp_path)
    layers = [*ours.encoder.layers, *ours.decoder.layers]
    assert {layer.dropout for layer in layers} == {0.3}
    parts = [part for part in ours.modules() if isinstance(part, MultiHeadAttention)]
    assert [part.dropout for part in parts] == [0.2] * len(parts)


@pytest.mark.parametrize("name", ["dropout", "attention_dropout"])
def test_a_dropout_that_is_no_probability_is_refused(pair: Any, name: str) -> None:
    change_config(pair[1], **{name: 1.5})
    with pytest.raises(ModelError, match=f"{name} is 1.5; wanted 0 to below 1"):
        load(pair[1])
