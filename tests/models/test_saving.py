"""Saving: a folder that ours and Hugging Face's read as what was saved."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from qkv.errors import ArgumentError, FileError
from qkv.models import FAMILIES, load
from qkv.models.saving import save_folder
from tests.models.peers import CLASSES, peer
from tests.models.writers import byte_tokenizer

KINDS = ["llama", "marian", "vit"]


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_saved_loads_as_what_it_was(kind: str, tmp_path: Path) -> None:
    peer(kind, tmp_path / "theirs")
    model = load(tmp_path / "theirs", dtype=torch.float64)
    save_folder(model, FAMILIES[kind], tmp_path / "ours", dtype=torch.float64)
    again = load(tmp_path / "ours", dtype=torch.float64)
    assert again.config == model.config
    wanted = model.state_dict()
    assert again.state_dict().keys() == wanted.keys()
    assert all(torch.equal(tensor, wanted[name]) for name, tensor in again.state_dict().items())


@pytest.mark.parametrize("kind", KINDS)
def test_hugging_face_reads_it_as_what_it_was(kind: str, tmp_path: Path) -> None:
    import transformers

    theirs = peer(kind, tmp_path / "theirs")
    model = load(tmp_path / "theirs", dtype=torch.float64)
    save_folder(model, FAMILIES[kind], tmp_path / "ours", dtype=torch.float64)
    read = getattr(transformers, CLASSES[kind][1]).from_pretrained(
        tmp_path / "ours", dtype=torch.float64
    )
    wanted = theirs.state_dict()
    assert read.state_dict().keys() == wanted.keys()
    for name, tensor in read.state_dict().items():
        torch.testing.assert_close(tensor, wanted[name], atol=1e-6, rtol=1e-6)


def test_a_bert_is_saved_too(tiny: Callable[..., tuple[Path, Any]], tmp_path: Path) -> None:
    model = load(tiny()[0])
    save_folder(model, FAMILIES["bert"], tmp_path / "ours")
    again = load(tmp_path / "ours")
    for a, b in zip(model.parameters(), again.parameters(), strict=True):
        assert torch.equal(a, b)
    config = json.loads((tmp_path / "ours" / "config.json").read_text())
    assert (config["model_type"], config["hidden_act"]) == ("bert", "gelu")


def test_half_the_numbers_make_half_the_file(tmp_path: Path) -> None:
    peer("llama", tmp_path / "theirs")
    model = load(tmp_path / "theirs")
    for name, dtype in (("whole", torch.float32), ("half", torch.bfloat16)):
        save_folder(model, FAMILIES["llama"], tmp_path / name, dtype=dtype)
    tensors = load_file(tmp_path / "half" / "model.safetensors")
    assert {tensor.dtype for tensor in tensors.values()} == {torch.bfloat16}
    sizes = [(tmp_path / name / "model.safetensors").stat().st_size for name in ("whole", "half")]
    assert 1.7 < sizes[0] / sizes[1] < 2
    rows = load_file(tmp_path / "whole" / "model.safetensors")["model.embed_tokens.weight"]
    assert torch.equal(tensors["model.embed_tokens.weight"], rows.bfloat16())


def test_the_tokenizer_comes_along(tmp_path: Path) -> None:
    tokenizer = byte_tokenizer("t h", "th e")
    peer("llama", tmp_path / "theirs", vocab_size=300)
    save_folder(
        load(tmp_path / "theirs"), FAMILIES["llama"], tmp_path / "ours", tokenizer=tokenizer
    )
    text = "the weather in Łódź"
    assert load(tmp_path / "ours").tokenizer(text).ids == tokenizer(text).ids


def test_what_is_read_but_not_written_is_refused(tmp_path: Path) -> None:
    peer("gpt2", tmp_path / "theirs")
    with pytest.raises(ArgumentError, match="family is gpt2, which is read but not written here"):
        save_folder(load(tmp_path / "theirs"), FAMILIES["gpt2"], tmp_path / "ours")
    assert not (tmp_path / "ours").exists()


@pytest.mark.skipif(os.name != "posix", reason="modes of files")
def test_all_its_files_may_be_read_by_whom_other_files_may(tmp_path: Path) -> None:
    peer("llama", tmp_path / "theirs", vocab_size=300)
    model, out = load(tmp_path / "theirs"), tmp_path / "new" / "ours"
    before = os.umask(0o022)
    try:
        save_folder(model, FAMILIES["llama"], out, tokenizer=byte_tokenizer("t h"))
    finally:
        os.umask(before)
    modes = {path.name: path.stat().st_mode & 0o777 for path in out.iterdir()}
    names = ("config.json", "model.safetensors", "tokenizer.json")
    assert modes == dict.fromkeys(names, 0o644)


def test_weights_that_cannot_be_written_are_named(tmp_path: Path) -> None:
    peer("llama", tmp_path / "theirs")
    (tmp_path / "ours" / "model.safetensors").mkdir(parents=True)
    with pytest.raises(FileError, match=r"model\.safetensors cannot be written: it is a folder"):
        save_folder(load(tmp_path / "theirs"), FAMILIES["llama"], tmp_path / "ours")
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(FileError, match="file cannot be written: File exists"):
        save_folder(load(tmp_path / "theirs"), FAMILIES["llama"], tmp_path / "file")
