"""BERT against Hugging Face's own, from the same files, state by state and head by head."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import qkv
from qkv.core.mask import Mask
from qkv.errors import ArgumentError, MaskError, ModelError
from qkv.models import load
from qkv.models.bert import Bert
from qkv.models.pooling import Pooling
from tests.models.conftest import EQUAL, TINY

Tiny = Callable[..., tuple[Path, Any]]

SENTENCES = [
    "draw a map",
    "the coffee spilled on the laptop and it stopped working",
    "Ünïcödé, 日本語 & =SUM(A1) <script>alert(1)</script> — 3.14159!",
    "a",
]
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-9}
SIDES = ["right", "left"]


def close(ours: Tensor, theirs: Tensor, within: float) -> None:
    torch.testing.assert_close(ours.double(), theirs.double(), rtol=0, atol=within)


@torch.no_grad()
def theirs(model: Any, ids: Tensor, real: Tensor | None = None, segments: Any = None) -> Any:
    return model(
        ids, attention_mask=None if real is None else real.long(), token_type_ids=segments,
        output_hidden_states=True, output_attentions=True,
    )  # fmt: skip


def padded(lengths: list[int], width: int, side: str, vocabulary: int) -> tuple[Tensor, Tensor]:
    """Draw ids, the padding too: what is hidden may be anything."""
    columns = torch.arange(width)
    sizes = torch.tensor(lengths)[:, None]
    real = columns < sizes if side == "right" else columns >= width - sizes
    return torch.randint(vocabulary, real.shape), real


def padded_sentences(model: Bert) -> tuple[Tensor, list[int], Tensor]:
    rows = [torch.tensor(model.tokenizer(text).ids) for text in SENTENCES]
    lengths = [len(row) for row in rows]
    ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
    return ids, lengths, torch.arange(ids.shape[1]) < torch.tensor(lengths)[:, None]


# --- all-MiniLM-L6-v2 -----------------------------------------------------------------------------


@pytest.mark.parametrize("text", SENTENCES)
def test_minilms_states_equal_hugging_faces(minilm: Bert, reference: Any, text: str) -> None:
    ids = torch.tensor([minilm.tokenizer(text).ids])
    with torch.no_grad():
        states = minilm.hidden_states(ids)
    expected = theirs(reference, ids).hidden_states
    assert len(states) == 7
    for ours, other in zip(states, expected, strict=True):
        close(ours, other, 1e-5)


def test_minilms_states_equal_hugging_faces_in_a_padded_batch(minilm: Bert, reference: Any) -> None:
    ids, lengths, real = padded_sentences(minilm)
    with torch.no_grad():
        states = minilm.hidden_states(ids, lengths)
    for ours, other in zip(states, theirs(reference, ids, real).hidden_states, strict=True):
        close(ours[real], other[real], 1e-5)


def test_minilms_sentence_embeddings_equal_a_mean_by_hand(minilm: Bert, reference: Any) -> None:
    rows = []
    for text in SENTENCES:
        ids = torch.tensor([minilm.tokenizer(text).ids])
        mean = theirs(reference, ids).hidden_states[-1][0].mean(dim=0)
        rows.append(mean / (mean * mean).sum().sqrt())
    close(minilm.embed(SENTENCES), torch.stack(rows), 1e-5)
    close(minilm.embed(SENTENCES, batch_size=3), torch.stack(rows), 1e-5)


def test_every_heads_weights_and_output_equal_hugging_faces(minilm: Bert, reference: Any) -> None:
    tokens = minilm.tokenizer("the coffee spilled on the laptop")
    ids = torch.tensor([tokens.ids])
    with torch.no_grad():
        states = minilm.hidden_states(ids)
    expected = theirs(reference, ids)
    for i, (layer, other) in enumerate(zip(minilm.layers, reference.encoder.layer, strict=True)):
        values = other.attention.self.value(expected.hidden_states[i])[0].detach()
        for head in range(12):
            steps = layer.attention.explain(states[i], head=head, tokens=tokens.names)
            steps.verify()
            probabilities = expected.attentions[i][0, head]
            output = probabilities @ values[:, head * 32 : (head + 1) * 32]
            close(torch.tensor(steps["weights"]), probabilities, 1e-5)
            close(torch.tensor(steps["output"]), output, 1e-5)
            assert steps.step("weights").rows == tokens.names


def test_a_whole_layer_is_explained_and_proved_in_a_padded_batch(
    minilm: Bert, reference: Any
) -> None:
    ids, lengths, real = padded_sentences(minilm)
    with torch.no_grad():
        states = minilm.hidden_states(ids, lengths)
    mask = Mask.padding(lengths)
    steps = minilm.layers[3].attention.explain(states[3], mask=mask, batch=2)
    steps.verify()
    weights = theirs(reference, ids, real).attentions[3][2, 5]
    close(torch.tensor(steps["head 6/weights"])[real[2]], weights[real[2]], 1e-5)


# --- random weights -------------------------------------------------------------------------------


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("sizes", [TINY, EQUAL], ids=["unequal primes", "equal"])
def test_a_random_models_states_equal_hugging_faces(
    tiny: Tiny, sizes: dict[str, Any], dtype: torch.dtype, side: str, device: torch.device
) -> None:
    folder, reference = tiny(**sizes)
    model = qkv.load(folder, dtype=dtype, device=device)
    lengths, width = ([7, 2, 5], 7) if sizes is TINY else ([9, 3, 5, 1, 2, 4, 6, 7, 8], 9)
    ids, real = padded(lengths, width, side, sizes["vocab_size"])
    segments = torch.randint(sizes["type_vocab_size"], ids.shape)
    mask = Mask.padding(lengths, side)  # type: ignore[arg-type]
    with torch.no_grad():
        states = model.hidden_states(ids.to(device), mask=mask, segments=segments.to(device))
        last = model(ids.to(device), mask=mask, segments=segments.to(device))
    expected = theirs(reference, ids, real, segments).hidden_states
    for ours, other in zip(states, expected, strict=True):
        assert ours.dtype == dtype
        close(ours.cpu()[real], other[real], TOLERANCE[dtype])
    assert torch.equal(last, states[-1])


def test_a_text_alone_equals_itself_among_longer_ones(tiny: Tiny) -> None:
    model = load(tiny()[0], dtype=torch.float64)
    ids, _ = padded([7, 3], 7, "right", 101)
    close(model(ids, [7, 3])[1, :3], model(ids[1, :3]), 1e-12)


def test_lengths_and_a_mask_are_both_kept(tiny: Tiny) -> None:
    model = load(tiny()[0], dtype=torch.float64)
    ids, _ = padded([7, 3], 7, "right", 101)
    both = model(ids, [7, 3], mask=Mask.window(1, 1))
    close(both, model(ids, mask=Mask.window(1, 1) & Mask.padding([7, 3])), 0)
    assert (both - model(ids, [7, 3])).abs().max() > 1e-3


def test_gradients_reach_every_parameter(tiny: Tiny) -> None:
    model = load(tiny()[0])
    model(torch.tensor([[1, 2, 3]])).square().sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_loading_draws_no_random_numbers_and_is_ready_for_use(tiny: Tiny) -> None:
    folder, _ = tiny()
    before = torch.get_rng_state()
    model = load(folder)
    assert torch.equal(torch.get_rng_state(), before)
    assert not model.training
    assert {p.dtype for p in model.parameters()} == {torch.float32}


# --- what is refused ------------------------------------------------------------------------------


def test_a_text_over_the_models_positions_is_refused(minilm: Bert) -> None:
    message = "the text has 1002 tokens, the model takes 1 to 512: choose fewer tokens$"
    with pytest.raises(ArgumentError, match=message):
        minilm.embed(["short", "map " * 1000])
    with pytest.raises(ArgumentError, match=message):
        minilm.hidden_states(torch.tensor([minilm.tokenizer("map " * 1000).ids]))


def test_as_many_tokens_as_there_are_positions_are_taken(minilm: Bert) -> None:
    assert minilm.embed(["map " * 510]).shape == (1, 384)


@pytest.mark.parametrize("texts", [[], "a text", ["a", ""], ["a", " \n"]])
def test_texts_without_a_token_are_refused(minilm: Bert, texts: Any) -> None:
    with pytest.raises(ArgumentError, match=r"wanted a list of texts|there is no token in it"):
        minilm.embed(texts)


@pytest.mark.parametrize("size", [0, -1])
def test_a_batch_of_no_texts_is_refused(minilm: Bert, size: int) -> None:
    with pytest.raises(ArgumentError, match=f"batch_size is {size}; wanted"):
        minilm.embed(["a"], batch_size=size)


@pytest.mark.parametrize(
    ("ids", "segments", "message"),
    [
        ([[3, 101]], None, "ids reach from 3 to 101; the model's table has 101 rows"),
        ([[-1, 5]], None, "ids reach from -1 to 5; the model's table has 101 rows"),
        ([[3, 4]], [[0, 3]], "segments reach from 0 to 3; the model's table has 3 rows"),
        ([[]], None, "the text has 0 tokens, the model takes 1 to 23"),
        ([list(range(24))], None, "the text has 24 tokens, the model takes 1 to 23"),
    ],
)
def test_ids_outside_of_the_tables_are_refused(
    tiny: Tiny, ids: Any, segments: Any, message: str
) -> None:
    model = load(tiny()[0])
    segments = None if segments is None else torch.tensor(segments)
    with pytest.raises(ArgumentError) as error:
        model.hidden_states(torch.tensor(ids, dtype=torch.long), segments=segments)
    assert str(error.value).startswith(message)


def test_a_mask_that_does_not_fit_is_refused(tiny: Tiny) -> None:
    with pytest.raises(MaskError, match=r"padding got lengths \[4\], but there are 3 keys"):
        load(tiny()[0]).hidden_states(torch.tensor([[1, 2, 3]]), [4])


def test_a_folder_without_a_tokenizer_gives_a_model_of_ids(tiny: Tiny) -> None:
    model = load(tiny()[0])
    with pytest.raises(ModelError, match=r"has no tokenizer\.json: give it ids, not text"):
        model.embed(["a text"])


def test_a_model_takes_the_mean_and_length_one_where_its_folder_says_nothing(tiny: Tiny) -> None:
    assert load(tiny()[0]).pooling == Pooling(("mean_tokens",), normalised=True)


def test_an_encoder_says_that_it_writes_nothing(folder: Path) -> None:
    model = load(folder)
    for writes in (model.generate, model.stream):
        with pytest.raises(ModelError, match=r"Bert is an encoder: it embeds .*smollm2"):
            writes("x", max_tokens=3)


def test_another_pooling_is_refused_before_anything_is_computed(
    minilm: Bert, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(minilm, "pooling", Pooling(("cls_token",)))
    monkeypatch.setattr(Bert, "forward", None)
    with pytest.raises(ModelError, match="the pooling is cls_token; wanted mean_tokens"):
        minilm.embed(["a"])
