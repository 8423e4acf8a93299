"""Tiny folders of random weights, and the reference that reads the same files."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from qkv.models.named import NAMED

TINY = {
    "vocab_size": 101,
    "hidden_size": 21,
    "num_hidden_layers": 5,
    "num_attention_heads": 3,
    "intermediate_size": 37,
    "max_position_embeddings": 23,
    "type_vocab_size": 3,
    "layer_norm_eps": 1e-3,
}
EQUAL = {
    "vocab_size": 9,
    "hidden_size": 9,
    "num_hidden_layers": 3,
    "num_attention_heads": 3,
    "intermediate_size": 9,
    "max_position_embeddings": 9,
    "type_vocab_size": 2,
    "layer_norm_eps": 1e-12,
}


@pytest.fixture(scope="session")
def reference(minilm_folder: Path) -> Any:
    """Hugging Face's model from the same folder, in float64 for its own errors to be small."""
    return _reference(minilm_folder)


def _reference(folder: Path) -> Any:
    from transformers import BertModel

    model = BertModel.from_pretrained(folder, attn_implementation="eager", dtype=torch.float64)
    return model.eval()


@pytest.fixture
def tiny(tmp_path: Path) -> Callable[..., tuple[Path, Any]]:
    """Make a folder of random weights, and return it with Hugging Face's model of it."""

    def make(**sizes: Any) -> tuple[Path, Any]:
        from transformers import BertConfig, BertModel

        model = BertModel(BertConfig(**(TINY | sizes))).double()
        with torch.no_grad():  # also what starts as 0 or 1, which would hide its misuse
            for parameter in model.parameters():
                parameter.normal_(std=0.5)
        folder = tmp_path / "tiny"
        model.save_pretrained(folder)
        return folder, _reference(folder)

    return make


@pytest.fixture
def folder(tiny: Callable[..., tuple[Path, Any]]) -> Path:
    """A folder of random weights of a small BERT."""
    return tiny(num_hidden_layers=2)[0]


def packaged(name: str) -> Path:
    """Return where a named model is installed; skip only where it is absent and may be."""
    place = NAMED[name].find()
    if place is None and not os.environ.get("QKV_REQUIRE_MODELS"):
        pytest.skip(f"{NAMED[name].requirement} is not installed: the real model was not checked")
    assert place is not None
    return place


@pytest.fixture(scope="session")
def smollm2_file() -> Path:
    """The GGUF file of the installed SmolLM2."""
    return packaged("smollm2")


@pytest.fixture(scope="session")
def whisper_folder() -> Path:
    """The folder of the installed Whisper."""
    return packaged("whisper-tiny")
