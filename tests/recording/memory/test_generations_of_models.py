"""What real models write, joined into one matrix for the sequence."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from qkv.errors import NameNotFoundError, RecordingError
from qkv.recording.recording import Recording
from qkv.recording.watching import watch
from tests.recording import small

EXACT = 1e-5
"""float32, and the whole text in one run sums in another order than the steps."""


@pytest.fixture
def ids() -> torch.Tensor:
    return torch.randint(5, 90, (2, 5))


@pytest.mark.parametrize("how", [{}, {"cache_implementation": "static"}])
@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("model", ["llama", "mistral"])
def test_a_text_is_the_matrix_that_one_run_over_it_has(
    model: str, implementation: str, how: dict[str, str], ids: torch.Tensor
) -> None:
    writer = getattr(small, model)(implementation)
    with torch.no_grad(), watch(writer) as seen:
        text = small.written(writer, ids, 6, **how)
    reader = getattr(small, model)("eager")
    with torch.no_grad():
        whole = reader(text[:, :-1], output_attentions=True).attentions
    for layer, expected in enumerate(whole):
        joined = seen[f"model.layers.{layer}.self_attn"]
        assert joined.shape == (2, 4, 10, 10)
        torch.testing.assert_close(joined.weights.dense(), expected, rtol=0, atol=EXACT)
        assert joined.error_eps < 16
        assert joined.blocking.causal
    assert len(seen) == 12
    assert len(seen.runs) == 1


def test_each_step_keeps_its_own_weights() -> None:
    model, ids = small.llama("eager"), torch.randint(5, 90, (2, 5))
    with torch.no_grad(), watch(model) as seen:
        small.written(model, ids, 4)
    joined = seen["model.layers.1.self_attn"].weights.dense()
    steps = list(seen.select("*.1.*"))
    assert [call.shape[-2:] for call in steps] == [(5, 5), (1, 6), (1, 7), (1, 8)]
    for row, call in enumerate(steps[1:], start=5):
        keys = call.shape[-1]
        torch.testing.assert_close(call.weights.dense(), joined[..., row : row + 1, :keys])
        assert call.error_eps < 16


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_a_padded_prompt_stays_padded(implementation: str) -> None:
    model, ids = small.llama(implementation), torch.randint(5, 90, (2, 6))
    mask = torch.ones_like(ids)
    mask[1, :2] = 0
    with torch.no_grad(), watch(model) as seen:
        text = small.written(model, ids, 4, attention_mask=mask)
    joined = seen["model.layers.0.self_attn"]
    assert joined.error_eps < 16
    weights = joined.weights.dense()
    assert (weights[1, :, 2:, :2] == 0).all()
    with torch.no_grad():
        longer = torch.cat((mask, torch.ones(2, 3, dtype=mask.dtype)), 1)
        places = (longer.cumsum(-1) - 1).clamp(min=0)
        whole = small.llama("eager")(
            text[:, :-1], attention_mask=longer, position_ids=places, output_attentions=True
        )
    real = longer.bool()[:, None, :, None]
    expected = whole.attentions[0].masked_fill(~real, 0.0)
    torch.testing.assert_close(weights.masked_fill(~real, 0.0), expected, rtol=0, atol=EXACT)


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_a_decoder_looks_at_the_encoder_in_every_step(
    implementation: str, ids: torch.Tensor
) -> None:
    model = small.bart(implementation)
    with torch.no_grad(), watch(model) as seen:
        small.written(model, ids, 6)
    cross = seen["model.decoder.layers.1.encoder_attn"]
    assert cross.kind == "cross"
    assert cross.shape == (2, 4, 6, 5)
    own = seen["model.decoder.layers.1.self_attn"]
    assert own.shape == (2, 4, 6, 6)
    assert max(cross.error_eps, own.error_eps) < 16
    assert len(seen.runs) == 2  # the encoder ran once, the decoder's steps are one text


def test_beams_that_change_places_are_refused_by_name(ids: torch.Tensor) -> None:
    model = small.llama()
    with torch.no_grad(), watch(model) as seen:
        small.written(model, ids, 8, num_beams=3)
    with pytest.raises(NameNotFoundError, match=r"beams were reordered \(\d goes on from \d"):
        seen["model.layers.0.self_attn"]
    assert all(call.error_eps < 16 for call in seen)


def test_two_texts_are_two_runs(ids: torch.Tensor) -> None:
    model = small.llama()
    with torch.no_grad(), watch(model) as seen:
        small.written(model, ids, 3)
        small.written(model, ids[:1, :4], 5)
    first, second = seen.runs
    assert (len(first), len(second)) == (6, 10)
    assert second["model.layers.0.self_attn"].shape == (1, 4, 8, 8)
    with pytest.raises(NameNotFoundError, match=r"2 matrices and not one.*choose a run, seen.runs"):
        seen["model.layers.0.self_attn"]


def steps(model: torch.nn.Module, ids: torch.Tensor, change: Callable[[], None]) -> Recording:
    """Read a prompt, change the model, and read four tokens one by one, gradients enabled."""
    with watch(model) as seen:
        cache = model(ids[:, :-4]).cache
        change()
        for at in range(ids.shape[1] - 4, ids.shape[1]):
            cache = model(ids[:, at : at + 1], cache=cache).cache
    return seen


@pytest.mark.parametrize("ways", [("eager", "sdpa"), ("sdpa", "eager")])
def test_a_prompt_and_steps_that_were_computed_in_two_ways_are_one_matrix(
    ways: tuple[str, str],
) -> None:
    model, ids = small.llama(ways[0]), torch.randint(5, 90, (2, 9))
    seen = steps(model, ids, lambda: model.set_attn_implementation(ways[1]))
    joined = seen["model.layers.1.self_attn"]
    with torch.no_grad():
        whole = small.llama("eager")(ids, output_attentions=True).attentions[1]
    torch.testing.assert_close(joined.weights.dense(), whole, rtol=0, atol=EXACT)
    assert joined.error_eps < 16
    assert "and" in joined.how
    assert joined.blocking.causal
    assert len(seen.table()) == 8


def test_a_joined_matrix_answers_where_gradients_are_enabled() -> None:
    model, ids = small.llama(), torch.randint(5, 90, (2, 9))
    seen = steps(model, ids, lambda: None)
    assert torch.is_grad_enabled()
    joined = seen["model.layers.0.self_attn"]
    with torch.no_grad():
        whole = small.llama("eager")(ids, output_attentions=True).attentions[0]
    found = joined.weights.dense()
    assert not found.requires_grad
    torch.testing.assert_close(found, whole, rtol=0, atol=EXACT)
    torch.testing.assert_close(joined.weights @ joined.v, joined.output, rtol=0, atol=EXACT)
    assert joined.weights.entropy().shape == (2, 4, 9)
    assert joined.explain(1, 1).verify()
    assert joined.contributions(2).projected


def test_steps_that_make_no_single_matrix_say_so_and_break_nothing(tmp_path: Path) -> None:
    model, ids = small.llama("eager"), torch.randint(5, 90, (2, 9))

    def change() -> None:
        model.model.layers[1].self_attn.scaling *= 2

    seen = steps(model, ids, change)
    with pytest.raises(RecordingError, match=r"'model.layers.1.self_attn' has no single matrix: "):
        seen["model.layers.1.self_attn"]
    assert seen["model.layers.0.self_attn"].shape == (2, 4, 9, 9)
    assert "5 × 5, batch 2 … 1 × 9, batch 2" in repr(seen).split("\n")[3]
    assert len(seen.table()) == 8
    assert [call.shape[-2:] for call in seen.joined()] == [
        (9, 9), (5, 5), (1, 6), (1, 7), (1, 8), (1, 9)
    ]  # fmt: skip
    assert seen.compare(seen).same
    departed = seen.compare(steps(small.llama("eager"), ids, lambda: None)).first
    assert departed is not None
    assert departed.departs_in == "shape"
    seen.save(tmp_path / "seen")
    assert repr(Recording.load(tmp_path / "seen")) == repr(seen)
