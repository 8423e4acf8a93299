"""Pooling as the folder of a sentence encoder says."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from qkv.errors import FileError, ModelError
from qkv.models.pooling import Pooling

TRANSFORMER = {"path": "", "type": "sentence_transformers.models.Transformer"}
POOLING = {"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}
NORMALIZE = {"path": "2_Normalize", "type": "sentence_transformers.models.Normalize"}
X = torch.tensor([[[1.0, 2], [3, 6], [100, torch.nan]], [[3, 4], [100, 100], [100, 100]]])
REAL = torch.tensor([[True, True, False], [True, False, False]])


def folder(where: Path, modules: Any, **modes: bool) -> Path:
    (where / "1_Pooling").mkdir()
    (where / "modules.json").write_text(json.dumps(modules), "utf-8")
    settings = {"word_embedding_dimension": 2} | {f"pooling_mode_{k}": v for k, v in modes.items()}
    (where / "1_Pooling" / "config.json").write_text(json.dumps(settings), "utf-8")
    return where


def test_the_mean_is_over_the_real_tokens() -> None:
    mean = Pooling(normalised=False)(X, REAL)
    torch.testing.assert_close(mean, torch.tensor([[2.0, 4], [3, 4]]), rtol=0, atol=0)


def test_each_row_is_divided_by_its_length() -> None:
    expected = torch.tensor([[2 / 20**0.5, 4 / 20**0.5], [0.6, 0.8]])
    torch.testing.assert_close(Pooling()(X, REAL), expected, rtol=0, atol=1e-7)


def test_minilms_folder_asks_for_the_mean_and_length_one(minilm_folder: Path) -> None:
    assert Pooling.read(minilm_folder) == Pooling(("mean_tokens",), normalised=True)


def test_a_folder_without_normalize_is_not_normalised(tmp_path: Path) -> None:
    where = folder(tmp_path, [TRANSFORMER, POOLING], mean_tokens=True, cls_token=False)
    assert Pooling.read(where) == Pooling(("mean_tokens",), normalised=False)


def test_another_way_than_the_mean_is_refused_when_asked_for(tmp_path: Path) -> None:
    modes = {"mean_tokens": True, "max_tokens": True}
    pooling = Pooling.read(folder(tmp_path, [TRANSFORMER, POOLING, NORMALIZE], **modes))
    with pytest.raises(ModelError, match="the pooling is mean_tokens, max_tokens; wanted mean_"):
        pooling(X, REAL)


def test_a_module_that_is_not_known_is_refused(tmp_path: Path) -> None:
    dense = {"path": "3_Dense", "type": "sentence_transformers.models.Dense"}
    with pytest.raises(ModelError, match=r"modules\.json lists Dense; known are Transformer, Pool"):
        Pooling.read(folder(tmp_path, [TRANSFORMER, POOLING, dense], mean_tokens=True))


@pytest.mark.parametrize(
    "path", ["../1_Pooling", "..", "/tmp", "a/b", "C:\\x", "C:x", "a\\b", ".", "a\0b"]
)
def test_a_module_outside_the_folder_is_refused(tmp_path: Path, path: str) -> None:
    where = folder(tmp_path, [TRANSFORMER, POOLING | {"path": path}], mean_tokens=True)
    with pytest.raises(FileError) as error:
        Pooling.read(where)
    assert str(error.value) == (
        f"{where / 'modules.json'} names {path!r}; wanted folders in its own folder"
    )


@pytest.mark.parametrize("modules", [{}, "text", None])
def test_a_list_that_is_none_is_refused(tmp_path: Path, modules: Any) -> None:
    with pytest.raises(FileError, match=r"modules\.json holds a \w+; wanted a list"):
        Pooling.read(folder(tmp_path, modules))


@pytest.mark.parametrize("modules", [[1], [{"type": "x.Pooling"}]])
def test_modules_without_a_type_or_a_path_are_refused(tmp_path: Path, modules: Any) -> None:
    with pytest.raises(ModelError, match="wanted a list of modules with a type and a path"):
        Pooling.read(folder(tmp_path, modules))
