"""ViT against Hugging Face's own, from the same files, state by state."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from qkv.errors import ModelError, ShapeError
from qkv.models import load
from qkv.models.vit import Vit
from tests.models.altering import change_config
from tests.models.peers import close, peer

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-9}


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(
    "sizes",
    [
        {},
        {"hidden_size": 4, "num_attention_heads": 4, "image_size": 4, "patch_size": 1,
         "intermediate_size": 4, "num_channels": 4},
        {"qkv_bias": False},
    ],
    ids=["unequal", "equal", "no bias"],
)  # fmt: skip
@torch.no_grad()
def test_states_and_logits_equal_hugging_faces(
    tmp_path: Path, dtype: torch.dtype, sizes: dict[str, Any]
) -> None:
    model = peer("vit", tmp_path, **sizes)
    ours: Vit = load(tmp_path, dtype=dtype)
    c = ours.config
    pictures = torch.randn(3, c.num_channels, c.image_size, c.image_size, dtype=torch.float64)
    expected = model(pictures, output_hidden_states=True)
    states = ours.hidden_states(pictures.to(dtype))
    wanted = [*expected.hidden_states[:-1], model.vit(pictures).last_hidden_state]
    for state, other in zip(states, wanted, strict=True):
        close(state, other, TOLERANCE[dtype])
    close(ours(pictures.to(dtype)), wanted[-1], TOLERANCE[dtype])
    close(ours.logits(pictures.to(dtype)), expected.logits, TOLERANCE[dtype])


@pytest.mark.parametrize("said", [{}, {"num_labels": 2}, {"num_labels": None}], ids=str)
@torch.no_grad()
def test_two_classes_without_names(tmp_path: Path, said: dict[str, Any]) -> None:
    model = peer("vit", tmp_path, num_labels=2)
    assert "id2label" not in json.loads((tmp_path / "config.json").read_text("utf-8"))
    change_config(tmp_path, **said)
    pictures = torch.randn(3, 2, 20, 20, dtype=torch.float64)
    close(load(tmp_path, dtype=torch.float64).logits(pictures), model(pictures).logits, 1e-9)


@torch.no_grad()
def test_a_model_without_a_classifier(tmp_path: Path) -> None:
    from transformers import ViTModel

    peer("vit", tmp_path / "whole")
    model = ViTModel.from_pretrained(
        tmp_path / "whole", dtype=torch.float64, add_pooling_layer=False
    )
    model.save_pretrained(tmp_path / "bare")
    ours: Vit = load(tmp_path / "bare", dtype=torch.float64)
    pictures = torch.randn(2, 2, 20, 20, dtype=torch.float64)
    close(ours(pictures), model(pictures).last_hidden_state, 1e-9)
    with pytest.raises(ModelError, match="the model has no classifier"):
        ours.logits(pictures)


@pytest.mark.usefixtures("as_shipped")
def test_pictures_of_another_size_are_refused(tmp_path: Path) -> None:
    peer("vit", tmp_path)
    with pytest.raises(ShapeError, match=r"pictures are \(1, 2, 20, 25\); wanted"):
        load(tmp_path)(torch.zeros(1, 2, 20, 25))
