"""Two recordings side by side: where they depart, and in what."""

from collections.abc import Callable

import pytest
import torch
import transformers
from torch import nn

from qkv.recording.comparing import apart
from qkv.recording.recording import Recording
from qkv.recording.watching import watch
from tests.recording import small

IDS = torch.randint(5, 90, (2, 7), generator=torch.Generator().manual_seed(2))


def recorded(model: nn.Module, ids: torch.Tensor = IDS, **given: torch.Tensor) -> Recording:
    with torch.no_grad(), watch(model) as seen:
        model(ids, **given)
    return seen


def first(a: Recording, b: Recording) -> tuple[str, str | None]:
    departed = a.compare(b).first
    assert departed is not None
    return departed.pair.path, departed.departs_in


def test_a_run_and_itself_are_the_same() -> None:
    seen = recorded(small.bert())
    comparison = seen.compare(recorded(small.bert()))
    assert comparison.same
    assert all(set(c.differences.values()) == {0.0} for c in comparison)
    assert "the same within 1.0e-04 in all 2 calls" in repr(comparison)


def test_two_implementations_agree_within_the_tolerance() -> None:
    eager, fused = recorded(small.bert("eager")), recorded(small.bert("sdpa"))
    assert eager.compare(fused).same
    assert not eager.compare(fused, tolerance=0.0).same


@pytest.mark.parametrize("part", ["query", "key", "value"])
def test_a_changed_projection_is_named(part: str) -> None:
    changed = small.bert()
    getattr(changed.encoder.layer[1].attention.self, part).weight.data.mul_(1.01)
    assert first(recorded(small.bert()), recorded(changed)) == (
        "encoder.layer.1.attention.self",
        part[0],
    )


def test_a_changed_scale_is_named_with_both_numbers() -> None:
    changed = small.bert()
    changed.encoder.layer[1].attention.self.scaling *= 2
    a, b = recorded(small.bert()), recorded(changed)
    assert first(a, b) == ("encoder.layer.1.attention.self", "scale")
    assert "depart at call 2 of 2, encoder.layer.1.attention.self, in scale: 0.35" in repr(
        a.compare(b)
    )


def changed_in_one_number(model: transformers.LlamaForCausalLM) -> None:
    model.model.layers[1].self_attn.k_proj.weight.data[3, 5] += 0.5


def changed_in_one_window(model: transformers.MistralForCausalLM) -> None:
    model.config.sliding_window = 3


def changed_in_one_scale(model: transformers.LlamaForCausalLM) -> None:
    model.model.layers[1].self_attn.scaling *= 1.01


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize(
    ("build", "change", "layer", "what"),
    [
        (small.llama, changed_in_one_number, 1, "k"),
        (small.mistral, changed_in_one_window, 0, "mask"),
        (small.llama, changed_in_one_scale, 1, "scale"),
    ],
)
def test_two_models_that_differ_in_one_thing_depart_there(
    build: Callable[[str], nn.Module],
    change: Callable[[nn.Module], None],
    layer: int,
    what: str,
    implementation: str,
) -> None:
    model = build(implementation)
    change(model)
    a, b = recorded(build(implementation)), recorded(model)
    path = f"model.layers.{layer}.self_attn"
    assert first(a, b) == first(b, a) == (path, what)
    departed = a.compare(b).first
    assert departed is not None
    assert departed.beyond("output")  # what it changes is seen behind it
    before = [c for c in departed.differences if c not in (what, "output")]
    assert {departed.differences[part] for part in before} == {0.0}
    assert f"depart at call {layer + 1} of 2, {path}, in {what}:" in repr(a.compare(b))


def test_other_hidden_keys_are_a_mask_that_differs() -> None:
    mask = torch.ones_like(IDS)
    mask[1, 5:] = 0
    a, b = recorded(small.bert()), recorded(small.bert(), attention_mask=mask)
    assert first(a, b) == ("encoder.layer.0.attention.self", "mask")
    assert "in mask: other keys are hidden" in repr(a.compare(b))


def test_other_sizes_are_said_as_such() -> None:
    a, b = recorded(small.bert()), recorded(small.bert(), IDS[:, :5])
    assert first(a, b)[1] == "shape"
    assert "2 × 4 × 7 × 7 and 2 × 4 × 5 × 5 (batch, heads, queries, keys)" in repr(a.compare(b))


def test_models_without_a_path_in_common_are_paired_by_order() -> None:
    class Around(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bert = small.bert()

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.bert(ids).last_hidden_state

    comparison = recorded(small.bert()).compare(recorded(Around()))
    assert comparison.by_order
    assert comparison.same
    assert "paired by order" in repr(comparison)
    assert "encoder.layer.0.attention.self | bert.encoder.layer.0" in repr(comparison)


def test_a_call_that_only_one_has_is_named() -> None:
    whole = recorded(small.bert())
    comparison = whole.compare(whole.select("*.0.*"))
    assert comparison.first is not None
    assert comparison.first.departs_in == "shape"
    assert "only the first has it" in repr(comparison)
    assert "only the second has it" in repr(whole.select("*.1.*").compare(whole))


def test_a_written_text_is_compared_with_one_run_over_it() -> None:
    model, ids = small.llama(), torch.randint(5, 90, (2, 4))
    with torch.no_grad(), watch(model) as steps:
        text = small.written(model, ids, 5)
    assert steps.compare(recorded(model, text[:, :-1])).same


def test_distance_is_a_share_of_the_largest_number() -> None:
    a = torch.tensor([[1.0, -4.0]])
    assert apart(a, torch.tensor([[1.5, -4.0]])) == 0.5 / 4
    assert apart(a, a.clone()) == 0.0
    assert apart(a, torch.tensor([[1.0, torch.nan]])) == torch.inf
    assert apart(a, torch.ones(2, 2)) == torch.inf
    nan = torch.tensor([[torch.nan, 2.0]])
    assert apart(nan, nan.clone()) == 0.0
    grouped = torch.randn(1, 2, 3, 4)
    assert apart(grouped, grouped.repeat_interleave(2, 1)) == 0.0
