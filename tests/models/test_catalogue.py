"""What is installed, and what can be: told without PyTorch, and true."""

import json
import subprocess
import sys

import pytest

from qkv.models.catalogue import FAMILIES, catalogue
from qkv.models.formats.gguf_file import ARCHITECTURES
from qkv.models.loading import FAMILIES as KNOWN
from qkv.models.maps.architecture import map_of_original
from qkv.models.named import NAMED, Package


def test_the_families_are_those_that_load_knows():
    assert sorted(FAMILIES) == sorted(KNOWN)
    patterns = {kin.pattern for kin in FAMILIES.values()}
    assert map_of_original().pattern in patterns
    three = {"encoder only", "decoder only", "encoder and decoder"}
    assert patterns == {*three, "no transformer"}
    others = [name for name, kin in FAMILIES.items() if kin.pattern not in three]
    assert others == ["qkv_recurrent", "qkv_words"]


def test_what_is_told_of_families_and_formats_is_no_more_than_is_proved():
    told = catalogue()
    about = {kin["name"]: kin["about"] for kin in told["families"]}
    assert about["vit"].endswith("proved on random weights only")
    assert "TinyLlama" not in about["llama"]
    (gguf,) = (form["holds"] for form in told["formats"] if form["name"] == "GGUF")
    assert gguf == f"one .gguf file ({', '.join(ARCHITECTURES)})"


def test_every_named_model_is_told_with_all_that_is_known_of_it():
    told = catalogue()["models"]
    assert [model["name"] for model in told] == list(NAMED)
    for model, package in zip(told, NAMED.values(), strict=True):
        assert model["family"] in FAMILIES
        assert model["install"] == package.command
        assert (model["megabytes"], model["licence"]) == (package.megabytes, package.licence)
        assert model["installed"] == (package.find() is not None)
        assert (model["path"] is None) == (not model["installed"])


def test_a_package_that_is_absent_or_damaged_is_not_installed(monkeypatch):
    absent = Package("no_such_module_anywhere", "x", "x==1", "bert", 1, "MIT", "none")
    damaged = Package("json", "model", "x==1", "bert", 1, "MIT", "none")
    monkeypatch.setattr("qkv.models.catalogue.NAMED", {"absent": absent, "damaged": damaged})
    told = catalogue()["models"]
    assert [(m["installed"], m["path"]) for m in told] == [(False, None)] * 2


def test_a_format_whose_package_is_absent_is_told_with_what_installs_it(monkeypatch):
    monkeypatch.setattr("qkv.models.catalogue.find_spec", lambda name: None)
    told = {form["name"]: form for form in catalogue()["formats"]}
    assert {name for name, form in told.items() if not form["installed"]} == {
        "GGUF", "Hugging Face hub",
    }  # fmt: skip
    assert told["GGUF"]["install"] == "pip install 'qkv[gguf]'"


@pytest.mark.parametrize("more", ["", "; from qkv.models import catalogue as c; c.catalogue()"])
def test_asking_which_models_there_are_loads_no_pytorch(more):
    code = f"import sys, qkv.models{more}; print('torch' in sys.modules, 'numpy' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["False", "False"]


def test_the_catalogue_is_json():
    assert json.loads(json.dumps(catalogue())) == catalogue()


def test_the_room_offers_its_names_and_no_others():
    import qkv.models

    assert qkv.models.FAMILIES is KNOWN
    with pytest.raises(AttributeError, match="no attribute 'lode'; it has FAMILIES, load, look"):
        qkv.models.lode  # noqa: B018
