"""Configurations and tensors, accounted for both ways before anything is loaded."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
from safetensors.torch import load_file

from qkv.errors import ArgumentError, ModelError
from qkv.models import FAMILIES, family, load
from qkv.models.family import Family, account, configure
from qkv.models.formats.files import Files
from qkv.models.formats.stored import Found, Stored
from tests.models.altering import change_config, change_weights, refusal

LAYER = "encoder.layer.1.attention"


# --- where parameters may be ----------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.int32, torch.bool])
def test_a_dtype_without_fractions_is_refused(folder: Path, dtype: torch.dtype) -> None:
    assert refusal(folder, ArgumentError, dtype=dtype) == (
        f"dtype is {dtype}; wanted one with fractions, such as torch.float32"
    )


def test_a_device_that_is_not_there_is_refused(folder: Path) -> None:
    message = refusal(folder, ArgumentError, device="abacus")
    assert message.startswith("device is 'abacus', which cannot be used: ")


# --- configurations that make no model ------------------------------------------------------------


@pytest.mark.parametrize("name", ["gpt7", "", None, 7, ["bert"]])
def test_an_architecture_that_is_not_known_is_refused(folder: Path, name: Any) -> None:
    change_config(folder, model_type=name)
    assert refusal(folder, ModelError) == (
        f"{folder / 'config.json'} says model_type {name!r}; known: {', '.join(FAMILIES)}"
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
    assert refusal(folder, ModelError) == (
        f"{folder / 'config.json'} makes no bert: num_heads=4 cannot share n_embed=21 evenly"
    )


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

    monkeypatch.setattr(family, "fill", never)
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


def test_of_many_missing_tensors_the_first_are_named_and_all_are_counted(folder: Path) -> None:
    change_weights(folder, lambda tensors: [tensors.pop(n) for n in list(tensors) if "1" in n])
    message = refusal(folder, ModelError)
    assert message.count("encoder.layer.1.") == 16
    change_weights(folder, lambda tensors: [tensors.pop(n) for n in list(tensors) if "0" in n])
    message = refusal(folder, ModelError)
    assert message.count("encoder.layer.") == 20
    assert message.endswith(" and 12 more (32 in all)")


# --- sizes that cannot be meant -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("num_hidden_layers", 10**9, "but there are 39 tensors in all"),
        ("num_hidden_layers", 40, "but there are 39 tensors in all"),
        ("vocab_size", 10**12, "but the tensors hold 9618 numbers in all"),
        ("intermediate_size", 2**24 + 1, "but the tensors hold 9618 numbers in all"),
    ],
)
def test_absurd_sizes_are_refused_before_anything_is_built(
    folder: Path, monkeypatch: pytest.MonkeyPatch, key: str, value: int, message: str
) -> None:
    tensors = load_file(folder / "model.safetensors")
    numbers = sum(tensor.numel() for tensor in tensors.values())
    message = message.replace("39", str(len(tensors))).replace("9618", str(numbers))
    if key == "num_hidden_layers" and value == 40:
        value = len(tensors) + 1

    def never(*_: Any) -> None:
        raise AssertionError("something was built")

    monkeypatch.setitem(FAMILIES, "bert", replace(FAMILIES["bert"], build=never))
    change_config(folder, **{key: value})
    assert refusal(folder, ModelError) == (
        f"{folder / 'config.json'} makes no bert: {key} is {value}, {message}"
    )


def test_sizes_that_no_memory_could_hold_are_refused(tmp_path: Path) -> None:
    def huge(*_: Any) -> Any:
        return torch.nn.Linear(2**40, 2**40)

    with pytest.raises(ModelError, match=r"config\.json makes no small: .*overflow"):
        family.make(replace(SMALL, build=huge), found(tmp_path, {}), torch.float32, "cpu")


@pytest.mark.parametrize(
    "error",
    [
        TypeError("why\nmore"),
        ValueError("why"),
        ArgumentError("why"),
        KeyError(),
        ModelError("why"),
    ],
)
def test_whatever_a_build_refuses_is_a_models_error(tmp_path: Path, error: Exception) -> None:
    def refuse(*_: Any) -> Any:
        raise error

    with pytest.raises(ModelError) as raised:
        family.make(replace(SMALL, build=refuse), found(tmp_path, {}), torch.float32, "cpu")
    said = {KeyError: "KeyError"}.get(type(error), "why")
    before = "" if isinstance(error, ModelError) else f"{tmp_path / 'config.json'} makes no small: "
    assert str(raised.value) == before + said


# --- a vocabulary that does not fit ---------------------------------------------------------------


def test_a_tokenizer_with_more_tokens_than_the_table_is_refused(folder: Path) -> None:
    words = {"[UNK]": 0} | {f"word{i}": i for i in range(1, 101)}
    rules = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="[UNK]"))
    rules.save(str(folder / "tokenizer.json"))
    load(folder)  # 101 tokens, 101 rows
    rules.add_tokens(["more"])
    rules.save(str(folder / "tokenizer.json"))
    assert refusal(folder, ModelError) == (
        f"the tokenizer of {folder} has tokens up to 101; the model's table has 101 rows "
        "(vocab_size)"
    )


# --- tables ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Config:
    size: int = 3
    end_id: int | Sequence[int] | None = None
    rope: Mapping[str, Any] | None = None
    name: str = "n"
    tied: bool = False


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Parameter(torch.zeros(1, 3))
        self.part = torch.nn.Sequential(torch.nn.Linear(3, 2, bias=False))


def apart(name: str, stored: Stored) -> list[tuple[str, Stored]]:
    if name != "fused":
        return [(name, stored)]
    return [("one.0.weight", stored.rows(0, 2)), ("token", stored.rows(2, 3))]


def found(path: Path, config: dict[str, Any], *tensors: tuple[str, torch.Tensor]) -> Found:
    source = {
        name: Stored(f"its {name}", tuple(tensor.shape), "F32", lambda tensor=tensor: tensor)
        for name, tensor in tensors
    }
    return Found(config, path / "config.json", path / "weights", source, Files(path))


SMALL = Family(
    name="small", config=Config, assumes={}, build=lambda config, files: Model(),
    tensors={"one.*": "part.*", "token": "first"}, spelling={}, unused=(), unpack=apart,
)  # fmt: skip


def test_a_fused_tensor_fills_a_module_and_a_single_parameter(tmp_path: Path) -> None:
    tensor = torch.randn(3, 3)
    model = family.make(SMALL, found(tmp_path, {}, ("fused", tensor)), torch.float64, "cpu")
    assert torch.equal(model.part[0].weight, tensor[:2].double())
    assert torch.equal(model.first, tensor[2:].double())


def test_a_tensor_is_named_as_its_file_names_it(tmp_path: Path) -> None:
    tensors = ("token", torch.zeros(3)), ("more", torch.zeros(2))
    with pytest.raises(ModelError) as error:
        account(SMALL, Model(), found(tmp_path, {}, *tensors))
    assert str(error.value) == (
        f"{tmp_path / 'weights'} does not fit config.json: missing: one.0.weight; surplus: its "
        "more; unfit: its token is (3,) of F32, wanted (1, 3) of floats"
    )


@pytest.mark.parametrize(
    "given",
    [{"end_id": 0}, {"end_id": [0, 2]}, {"end_id": None}, {"rope": {"a": 1}}, {"tied": True}],
)
def test_what_json_may_say_is_taken(tmp_path: Path, given: dict[str, Any]) -> None:
    assert configure(SMALL, found(tmp_path, given)) == Config(**given)


def test_what_json_may_not_say_is_named(tmp_path: Path) -> None:
    given = {"size": None, "end_id": -1, "rope": [], "name": 3, "tied": 1}
    with pytest.raises(ModelError) as error:
        configure(SMALL, found(tmp_path, given))
    assert str(error.value) == (
        f"{tmp_path / 'config.json'} makes no small: size is None, wanted a whole number above 0; "
        "end_id is -1, wanted a whole number, 0 or more or a list or null; "
        "rope is [], wanted an object or null; name is 3, wanted a text; "
        "tied is 1, wanted true or false"
    )
