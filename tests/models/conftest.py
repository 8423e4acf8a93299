"""Tiny folders of random weights, and the reference that reads the same files."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

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
