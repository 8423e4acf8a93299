"""GPT-2 and Llama against Hugging Face's own, from the same files, state by state."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from qkv.errors import ArgumentError, ModelError
from qkv.models import load
from qkv.models.decoder_only import DecoderOnly
from tests.models.altering import change_config, change_weights, refusal
from tests.models.peers import close, peer

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-9}
FAMILIES = ("gpt2", "llama")
EQUAL = {
    "gpt2": {"vocab_size": 6, "n_positions": 6, "n_embd": 6, "n_layer": 2, "n_head": 6,
             "n_inner": 6},
    "llama": {"vocab_size": 8, "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 4,
              "num_key_value_heads": 4, "head_dim": 2, "intermediate_size": 8,
              "max_position_embeddings": 8},
}  # fmt: skip
LENGTHS = torch.tensor([13, 4, 7])


@pytest.fixture(params=FAMILIES)
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Any, Path]:
    """Hugging Face's model and the folder that it was saved to."""
    return peer(request.param, tmp_path), tmp_path


def ids(batch: int = 3, tokens: int = 13, vocabulary: int = 101) -> Tensor:
    return torch.randint(vocabulary, (batch, tokens))


def real(lengths: Tensor, width: int, side: str) -> Tensor:
    columns, sizes = torch.arange(width), lengths[:, None]
    return columns < sizes if side == "right" else columns >= width - sizes


@torch.no_grad()
def theirs(model: Any, ids: Tensor, visible: Tensor | None = None) -> Any:
    if visible is None:
        return model(ids, output_hidden_states=True)
    positions = (visible.long().cumsum(-1) - 1).clamp(min=0)
    return model(
        ids, attention_mask=visible.long(), position_ids=positions, output_hidden_states=True
    )


@pytest.mark.parametrize("dtype", TOLERANCE)
@torch.no_grad()
def test_states_and_logits_equal_hugging_faces(pair: Any, dtype: torch.dtype) -> None:
    model, folder = pair
    ours, text = load(folder, dtype=dtype), ids()
    expected = theirs(model, text)
    states = ours.hidden_states(text)
    assert len(states) == len(expected.hidden_states)
    for state, other in zip(states, expected.hidden_states, strict=True):
        close(state, other, TOLERANCE[dtype])
    close(ours(text), expected.logits, TOLERANCE[dtype])


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_sizes_that_are_all_equal(family: str, tmp_path: Path) -> None:
    model, text = peer(family, tmp_path, **EQUAL[family]), ids(6, 6, 6)
    close(load(tmp_path, dtype=torch.float64)(text), theirs(model, text).logits, 1e-9)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("side", ["right", "left"])
@torch.no_grad()
def test_padding_on_either_side(pair: Any, dtype: torch.dtype, side: str) -> None:
    model, folder = pair
    text, visible = ids(), real(LENGTHS, 13, side)
    logits = load(folder, dtype=dtype)(text, LENGTHS, side=side)
    close(logits[visible], theirs(model, text, visible).logits[visible], TOLERANCE[dtype])


@torch.no_grad()
def test_what_stands_in_the_padding_changes_nothing(pair: Any) -> None:
    ours, text = load(pair[1], dtype=torch.float64), ids()
    visible = real(LENGTHS, 13, "left")
    other = torch.where(visible, text, (text + 7) % 101)
    logits, expected = (ours(x, LENGTHS, side="left")[visible] for x in (other, text))
    close(logits, expected, 1e-12)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("chunks", [[1] * 13, [13], [5, 5, 3], [12, 1], [2, 1, 7, 3]])
@torch.no_grad()
def test_a_text_read_in_parts_gives_the_same_logits(
    pair: Any, dtype: torch.dtype, chunks: list[int]
) -> None:
    model, folder = pair
    ours, text = load(folder, dtype=dtype), ids()
    expected, cache, end = theirs(model, text).logits, ours.new_cache(), 0
    for size in chunks:
        part = text[:, end : end + size]
        end += size
        close(ours.next(part, cache), expected[:, end - 1], TOLERANCE[dtype])
    assert cache.length == 13


@pytest.mark.parametrize("chunks", [[10, 1, 1, 1], [10, 3]])
@torch.no_grad()
def test_a_batch_padded_on_the_left_goes_on_from_its_cache(pair: Any, chunks: list[int]) -> None:
    model, folder = pair
    ours, text, visible = load(folder, dtype=torch.float64), ids(), real(LENGTHS, 13, "left")
    expected, cache, end = theirs(model, text, visible).logits, ours.new_cache(), 0
    for size in chunks:
        lengths = LENGTHS - 3 if end == 0 else None
        logits = ours.next(text[:, end : end + size], cache, lengths)
        end += size
        close(logits, expected[:, end - 1], 1e-9)


@torch.no_grad()
def test_logits_of_every_token_while_a_cache_grows(pair: Any) -> None:
    model, folder = pair
    ours, text = load(folder, dtype=torch.float64), ids()
    cache = ours.new_cache()
    logits = torch.cat([ours(text[:, :6], cache=cache), ours(text[:, 6:], cache=cache)], dim=1)
    close(logits, theirs(model, text).logits, 1e-9)


def test_a_loop_that_writes_keeps_no_graph(pair: Any) -> None:
    ours, text = load(pair[1]), ids()
    cache = ours.new_cache()
    assert not ours.next(text, cache).requires_grad
    assert ours(text).requires_grad  # but a text that is read whole can be trained on


@torch.no_grad()
def test_looking_at_states_changes_nothing(pair: Any) -> None:
    ours, text = load(pair[1]), ids()
    before = ours(text)
    ours.hidden_states(text)
    assert torch.equal(ours(text), before)


@pytest.mark.parametrize(
    "options",
    [
        {"tie_word_embeddings": True},
        {"attention_bias": True, "mlp_bias": True},
        {"num_key_value_heads": 6},
        {"num_key_value_heads": 1},
        {"head_dim": 8},
        {"rope_parameters": {"rope_type": "linear", "factor": 3.0, "rope_theta": 900.0}},
        {"rope_parameters": {
            "rope_type": "llama3", "rope_theta": 100.0, "factor": 4.0, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0, "original_max_position_embeddings": 32}},
    ],
    ids=str,
)  # fmt: skip
@torch.no_grad()
def test_what_llamas_differ_in(tmp_path: Path, options: dict[str, Any]) -> None:
    model, text = peer("llama", tmp_path, **options), ids(tokens=47)
    close(load(tmp_path, dtype=torch.float64)(text), theirs(model, text).logits, 1e-9)


def test_a_tied_table_is_stored_once(tmp_path: Path) -> None:
    model = peer("llama", tmp_path, tie_word_embeddings=True)
    ours: DecoderOnly = load(tmp_path)
    assert ours.head is None
    assert sum(p.numel() for p in ours.parameters()) == sum(p.numel() for p in model.parameters())


@pytest.mark.usefixtures("as_shipped")
def test_texts_that_the_model_cannot_read_are_refused(pair: Any) -> None:
    ours = load(pair[1])
    with pytest.raises(ArgumentError, match="has 62 tokens, the model takes 1 to 61"):
        ours(ids(tokens=62))
    with pytest.raises(ArgumentError, match=r"ids reach from 0 to 101; .* 101 rows"):
        ours(torch.tensor([[0, 101]]))
    with pytest.raises(
        ArgumentError, match=r"^the text has 0 tokens; wanted a text of one or more$"
    ):
        ours(torch.zeros(1, 0, dtype=torch.long))
    with pytest.raises(ArgumentError, match=r"lengths are \[3, 3\]"):
        ours(ids(), [3, 3])
    with pytest.raises(ArgumentError, match=r"lengths are \[13, 0, 14\]"):
        ours(ids(), [13, 0, 14])
    cache = ours.new_cache()
    with pytest.raises(ArgumentError, match="with a cache the padding stands on the left"):
        ours(ids(), LENGTHS, cache=cache)
    ours.next(ids(tokens=60), cache)
    with pytest.raises(ArgumentError, match="has 62 tokens"):
        ours.next(ids(tokens=2), cache)
    with pytest.raises(ArgumentError, match="the cache has read already"):
        ours.next(ids(tokens=1), cache, [1, 1, 1])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"activation_function": "relu"}, "activation_function is 'relu', only 'gelu_new'"),
        ({"scale_attn_by_inverse_layer_idx": True}, "only False is known"),
    ],
)
def test_a_gpt2_that_computes_otherwise_is_refused(
    tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    peer("gpt2", tmp_path, **options)
    with pytest.raises(ModelError, match=message):
        load(tmp_path)


@pytest.mark.parametrize(("family", "key"), [("gpt2", "n_layer"), ("llama", "num_hidden_layers")])
def test_layers_that_the_configuration_does_not_count_are_surplus(
    tmp_path: Path, family: str, key: str
) -> None:
    peer(family, tmp_path)
    change_config(tmp_path, **{key: 2})
    message = refusal(tmp_path, ModelError)
    names = message.partition("surplus: ")[2].split(", ")
    assert len(names) == len(set(names)) == {"gpt2": 12, "llama": 9}[family]
    assert all(".2." in name for name in names)


def test_tables_that_older_versions_stored_are_left_out(tmp_path: Path) -> None:
    peer("gpt2", tmp_path / "gpt2")
    triangle = {f"transformer.h.{i}.attn.bias": torch.ones(1, 1, 61, 61) for i in range(3)}
    hidden = {f"transformer.h.{i}.attn.masked_bias": torch.tensor(-1e4) for i in range(3)}
    change_weights(tmp_path / "gpt2", lambda tensors: tensors.update(triangle | hidden))
    load(tmp_path / "gpt2")
    peer("llama", tmp_path / "llama")
    hands = {f"model.layers.{i}.self_attn.rotary_emb.inv_freq": torch.ones(7) for i in range(3)}
    change_weights(tmp_path / "llama", lambda tensors: tensors.update(hands))
    load(tmp_path / "llama")


@pytest.mark.usefixtures("as_shipped")
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_attention_heads": 5, "head_dim": None}, "num_heads=5 cannot share n_embed=42"),
        ({"rope_parameters": {"rope_type": "yarn"}}, "rope_type is 'yarn'; known: default, lin"),
        ({"rope_parameters": {"rope_type": "linear"}}, "rope scaling says factor None; wanted"),
        ({"rope_parameters": {"rope_type": ["a"]}}, "rope_type is ['a']; known: default, linear"),
        ({"rope_parameters": {"rope_theta": None}}, "rope_theta is None; wanted a number above 0"),
        ({"rope_parameters": {"rope_theta": "abc"}}, "rope_theta is 'abc'; wanted a number"),
        ({"rope_parameters": {"rope_theta": True}}, "rope_theta is True; wanted a number above 0"),
        ({"rope_parameters": {"rope_theta": -3}}, "base is -3.0; wanted a number above 0"),
        ({"rope_parameters": None, "rope_theta": 0}, "base is 0.0; wanted a number above 0"),
        ({"head_dim": 7}, "rotary turns 7 of 7 values; wanted an even part"),
    ],
    ids=str,
)
def test_a_configuration_whose_parts_do_not_go_together_is_named(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    peer("llama", tmp_path)
    change_config(tmp_path, **changes)
    assert refusal(tmp_path, ModelError).startswith(
        f"{tmp_path / 'config.json'} makes no llama: {message}"
    )


def test_a_folder_without_a_tokenizer_takes_ids(pair: Any) -> None:
    with pytest.raises(ModelError, match="has no tokenizer: give it ids, not text"):
        _ = load(pair[1]).tokenizer
