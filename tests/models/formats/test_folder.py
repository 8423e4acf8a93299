"""Folders in Hugging Face's layout: pickles, broken files and several files."""

import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from qkv.errors import ModelError
from qkv.models import load
from qkv.models.formats.folder import INDEX
from tests.models.altering import refusal

Tiny = Callable[..., tuple[Path, Any]]


class Trap:
    """Leaves a file behind when it is unpickled."""

    def __init__(self, sprung: Path) -> None:
        self.sprung = sprung

    def __reduce__(self) -> Any:
        return Path.touch, (self.sprung,)


def legacy(content: object, path: Path) -> None:
    torch.save(content, path, _use_new_zipfile_serialization=False)


def plain(content: object, path: Path) -> None:
    path.write_bytes(pickle.dumps(content))


# --- pickles, never opened ------------------------------------------------------------------------


@pytest.mark.parametrize("save", [torch.save, legacy, plain])
@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "weights.pkl", "last.ckpt"])
def test_a_pickle_offered_as_weights_is_refused_and_never_opened(
    folder: Path, tmp_path: Path, save: Any, name: str
) -> None:
    sprung = tmp_path / "sprung"
    (folder / "model.safetensors").unlink()
    save({"weight": Trap(sprung)}, folder / name)
    assert refusal(folder) == (
        f"{folder} offers its weights as {name}: a pickle can run any code when it is opened, so "
        f"none is opened here; wanted the weights as model.safetensors"
    )
    assert refusal(folder / name).startswith(f"{folder / name} is named as a pickle is: a pickle")
    assert not sprung.exists()


@pytest.mark.parametrize("save", [torch.save, legacy, plain])
def test_a_pickle_renamed_is_refused_and_never_opened(
    folder: Path, tmp_path: Path, save: Any
) -> None:
    sprung, path = tmp_path / "sprung", folder / "model.safetensors"
    save({"weight": Trap(sprung)}, path)
    assert refusal(folder).startswith(f"{path} is a pickle under another name: a pickle can run")
    assert not sprung.exists()


def test_the_trap_does_spring_when_it_is_unpickled(tmp_path: Path) -> None:
    pickle.loads(pickle.dumps(Trap(tmp_path / "sprung")))
    assert (tmp_path / "sprung").exists()


def test_a_pickle_beside_safetensors_is_left_alone(folder: Path, tmp_path: Path) -> None:
    torch.save({"weight": Trap(tmp_path / "sprung")}, folder / "pytorch_model.bin")
    load(folder)
    assert not (tmp_path / "sprung").exists()


def test_safetensors_that_begin_like_a_pickle_are_read(folder: Path) -> None:
    path = folder / "model.safetensors"
    content = path.read_bytes()
    size = int.from_bytes(content[:8], "little")
    padding = (0x80 - size % 0x100) % 0x100  # the header's length then begins with the byte 0x80
    header = content[8 : 8 + size] + b" " * padding
    path.write_bytes(len(header).to_bytes(8, "little") + header + content[8 + size :])
    assert path.read_bytes()[0] == 0x80
    load(folder)


# --- files that are broken ------------------------------------------------------------------------


def test_a_folder_without_weights_says_what_is_there(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    assert refusal(folder) == f"{folder} holds no model.safetensors; there are: config.json"


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    assert refusal(tmp_path) == (
        f"{tmp_path / 'config.json'} is not there; wanted a model folder with config.json"
    )


@pytest.mark.parametrize("kept", [0, 5, 20, 1000, -1, -4])
def test_truncated_safetensors_are_refused(folder: Path, kept: int) -> None:
    path = folder / "model.safetensors"
    content = path.read_bytes()[:kept]
    path.write_bytes(content)
    message = refusal(folder)
    assert message.startswith(f"{path} is no whole safetensors file ({len(content)} bytes; ")
    assert message.endswith("); it may have been cut off: copy it again")


def test_a_pointer_in_place_of_the_weights_is_refused(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 90868376\n")
    assert refusal(folder) == (
        f"{path} is a Git LFS pointer, not the weights themselves; fetch it with git lfs pull"
    )


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_file_that_may_not_be_read_is_refused(folder: Path, name: str) -> None:
    (folder / name).chmod(0)
    assert refusal(folder).startswith(f"{folder / name} cannot be read: ")


@pytest.mark.parametrize("content", [b"", b"{", b"vocab_size: 3", b"\xff\xfe", b"[" * 100_000])
def test_a_configuration_that_is_not_json_is_refused(folder: Path, content: bytes) -> None:
    (folder / "config.json").write_bytes(content)
    assert refusal(folder).startswith(f"{folder / 'config.json'} is not JSON: ")


def test_a_configuration_that_is_a_folder_is_refused(folder: Path) -> None:
    (folder / "config.json").unlink()
    (folder / "config.json").mkdir()
    assert refusal(folder) == f"{folder / 'config.json'} cannot be read: Is a directory"


def test_a_configuration_that_is_no_object_is_refused(folder: Path) -> None:
    (folder / "config.json").write_text("[1, 2]")
    assert refusal(folder) == f"{folder / 'config.json'} holds a list; wanted a dict"


def test_a_tokenizer_that_cannot_be_read_is_refused(folder: Path) -> None:
    (folder / "tokenizer.json").write_text("{}")
    assert "tokenizer.json holds no tokenizer that can be read" in refusal(folder)


# --- several files --------------------------------------------------------------------------------


@pytest.fixture
def shards(folder: Path) -> Path:
    """The same folder, its weights in two files and an index."""
    path = folder / "model.safetensors"
    tensors = load_file(path)
    path.unlink()
    names = sorted(tensors)
    halves = {"first.safetensors": names[::2], "second.safetensors": names[1::2]}
    for name, keys in halves.items():
        save_file({key: tensors[key] for key in keys}, folder / name)
    index = {"weight_map": {key: name for name, keys in halves.items() for key in keys}}
    (folder / INDEX).write_text(json.dumps(index))
    return folder


def change_index(folder: Path, **changes: Any) -> None:
    content = json.loads((folder / INDEX).read_text())
    content["weight_map"].update(changes)
    (folder / INDEX).write_text(json.dumps(content))


def test_several_files_make_the_same_model_as_one(tiny: Tiny, request: Any) -> None:
    whole = load(request.getfixturevalue("folder")).state_dict()
    parts = load(request.getfixturevalue("shards")).state_dict()
    assert all(torch.equal(parts[name], whole[name]) for name in whole)


def test_hugging_faces_own_shards_are_read(folder: Path, tmp_path: Path) -> None:
    from transformers import BertModel

    whole = load(folder, dtype=torch.float64).state_dict()
    theirs = BertModel.from_pretrained(folder, dtype=torch.float64)
    theirs.save_pretrained(tmp_path / "parts", max_shard_size="20KB")
    assert len(list((tmp_path / "parts").glob("*.safetensors"))) > 2
    parts = load(tmp_path / "parts", dtype=torch.float64).state_dict()
    assert all(torch.equal(parts[name], whole[name]) for name in whole)


@pytest.mark.parametrize(
    "name",
    [
        "../first.safetensors", "/etc/first.safetensors", "a/first.safetensors", "a\\b.safetensors",
        "C:first.safetensors", "..", "", "first.bin", "a\0.safetensors", None, 3,
    ],
)  # fmt: skip
def test_a_file_outside_of_the_folder_is_refused(shards: Path, name: Any) -> None:
    (shards.parent / "first.safetensors").write_bytes((shards / "first.safetensors").read_bytes())
    change_index(shards, **{"embeddings.LayerNorm.bias": name})
    assert refusal(shards) == (
        f"{shards / INDEX} names {str(name)!r}; wanted safetensors in its own folder"
    )


def test_files_that_are_not_there_are_named(shards: Path) -> None:
    (shards / "second.safetensors").unlink()
    change_index(shards, x="third.safetensors")
    assert refusal(shards) == (
        f"{shards / INDEX} names second.safetensors, third.safetensors, which {shards} does not "
        "hold"
    )


def test_an_index_that_does_not_agree_with_its_files_is_refused(shards: Path) -> None:
    change_index(
        shards, absent="first.safetensors", **{"embeddings.LayerNorm.bias": "second.safetensors"}
    )
    assert refusal(shards, ModelError) == (
        f"{shards / INDEX} does not agree with its files: not there: absent in first.safetensors; "
        "not in the index: embeddings.LayerNorm.bias in first.safetensors"
    )


@pytest.mark.parametrize("content", ["{}", '{"weight_map": []}', '{"weight_map": {}}'])
def test_an_index_without_a_map_is_refused(shards: Path, content: str) -> None:
    (shards / INDEX).write_text(content)
    assert refusal(shards) == (
        f"{shards / INDEX} has no weight_map; wanted the file of each tensor"
    )


def test_a_broken_shard_is_refused(shards: Path) -> None:
    path = shards / "second.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    assert refusal(shards).startswith(f"{path} is no whole safetensors file (")
