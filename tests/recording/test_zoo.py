"""A hundred architectures, each as it runs: nothing about them stands in the recorder."""

import pytest
import torch
from torch import Tensor, nn

import qkv
from tests.recording.zoo.architectures import Architecture, NotPlain, build
from tests.recording.zoo.examining import (
    examine,
    examine_not_plain,
    same_bits,
    sow,
    tensors,
)
from tests.recording.zoo.page import PAGE, page
from tests.recording.zoo.table import ARCHITECTURES, NOT_PLAIN

pytestmark = pytest.mark.filterwarnings("ignore")  # of transformers, on import and in use

WEIGHTS = 1e-5
"""Of softmax weights in float32: eager rounds logits around 10 by 1e-6 and the fused kernel sums
in another order, of which a layer hands on a few times as much."""
EPS = 16
"""Of the output's scale: sums of a dozen products, in another order."""

every_architecture = pytest.mark.parametrize("entry", ARCHITECTURES, ids=lambda entry: entry.name)


def test_there_are_more_than_forty_architectures() -> None:
    assert len({entry.model for entry in ARCHITECTURES}) >= 40


@every_architecture
def test_every_attention_is_seen_as_it_ran(entry: Architecture) -> None:
    for examined in examine(entry):
        path = f"{entry.name}, {examined.implementation}"
        assert examined.same_bits, f"{path}: the output under the watch is another one"
        assert [seen.mask for seen in examined.seen] == list(entry.masks), path
        for number, seen in enumerate(examined.seen):
            where = f"{path}, attention {number} at {seen.path} ({seen.place})"
            wanted = entry.of("heads", number), entry.of("width", number), entry.softcap
            assert (seen.heads, seen.width, seen.softcap) == wanted, where
            assert seen.kv_heads == (entry.kv_heads or seen.heads), where
            assert seen.error <= EPS, f"{where}: {seen.error:.0f} eps"
            assert seen.finite, where
            scale = entry.of("scale", number) or seen.width**-0.5
            assert seen.scale == (scale if scale == "learned" else pytest.approx(scale)), where


@every_architecture
def test_the_weights_are_those_that_the_model_returns_in_eager_mode(entry: Architecture) -> None:
    for examined in examine(entry):
        compared = [seen for seen in examined.seen if seen.weights is not None]
        assert compared or entry.returned == (), f"{entry.name} returned no weights"
        if entry.agree or examined.implementation == "eager":
            for seen in compared:
                where = f"{entry.name}, {examined.implementation}, {seen.path} ({seen.place})"
                assert float(seen.weights or 0) <= WEIGHTS, where
                assert seen.closed, f"{where}: what its mask blocks has weight"


@every_architecture
def test_watching_changes_no_bit_in_inference_mode(entry: Architecture) -> None:
    model = build(entry, entry.implementations[-1])
    with torch.no_grad():  # fills caches that transformers keeps across models
        model(**entry.inputs())
    with torch.inference_mode():
        sow()
        plain = model(**entry.inputs())
        sow()
        with qkv.watch(model) as seen:
            watched = model(**entry.inputs())
    assert same_bits(plain, watched)
    assert len(seen) == len(entry.masks)


@every_architecture
def test_watching_changes_no_bit_of_output_and_gradients_in_training(entry: Architecture) -> None:
    model = build(entry, entry.implementations[-1]).train()
    plain = trained(model, entry)
    with qkv.watch(model) as seen:
        watched = trained(model, entry)
    assert same_bits(plain, watched)
    assert len(seen) > 0


def trained(model: nn.Module, entry: Architecture) -> tuple[list[Tensor], list[Tensor | None]]:
    """Outputs and gradients of one step, with dropout as it is."""
    sow()
    model.zero_grad(set_to_none=True)
    outputs = [part for part in tensors(model(**entry.inputs())) if part.requires_grad]
    torch.stack([part.float().square().mean() for part in outputs]).sum().backward()
    return outputs, [parameter.grad for parameter in model.parameters()]


@pytest.mark.parametrize("entry", NOT_PLAIN, ids=lambda entry: entry.name)
def test_what_is_not_plain_attention_is_named_and_not_invented(entry: NotPlain) -> None:
    examined, said = examine_not_plain(entry)
    assert examined.same_bits
    assert len(examined.seen) == entry.recorded
    assert all(seen.error <= EPS for seen in examined.seen)
    if not entry.recorded:
        assert all(part in said for part in entry.said), said


def test_the_page_says_what_came_out() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), (
        "python -m tests.recording.zoo writes it anew"
    )
