"""The application as a whole."""

import subprocess
import sys

import pytest

import qkv as package
from qkv.cli import main
from qkv.errors import FileError, LinesError


def fresh(code: str) -> str:
    """Run Python in a process of its own, warnings as errors."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True
    )
    return done.stdout


def test_help_and_the_package_are_there_without_pytorch():
    loaded = fresh(
        "import sys; sys.argv = ['qkv', '--help']\n"
        "from qkv.cli.main import run\n"
        "try: run()\n"
        "except SystemExit: pass\n"
        "print([name for name in ('torch', 'numpy', 'transformers') if name in sys.modules])"
    )
    assert "explain" in loaded
    assert loaded.splitlines()[-1] == "[]"


def test_importing_the_package_imports_nothing_heavy():
    heavy = ("torch", "numpy", "rich", "typer", "xlsxwriter", "openpyxl", "matplotlib")
    loaded = fresh(f"import sys, qkv; print([n for n in {heavy} if n in sys.modules])")
    assert loaded.strip() == "[]"


def test_a_module_brings_no_screen_and_no_file_format_with_it():
    heavy = ("rich", "typer", "xlsxwriter", "openpyxl", "matplotlib", "tokenizers", "safetensors")
    loaded = fresh(
        "import sys; from qkv import MultiHeadAttention\n"
        f"print([n for n in {heavy} if n in sys.modules])"
    )
    assert loaded.strip() == "[]"


def test_the_public_names_are_sorted_and_all_of_them_can_be_had():
    assert package.__all__ == sorted(package.__all__)
    for name in package.__all__:
        assert getattr(package, name) is not None
    assert set(package.__all__) <= set(dir(package))


def test_a_name_that_is_not_there_is_an_attribute_error_that_lists_what_is():
    with pytest.raises(
        AttributeError, match=r"no attribute .SelfAtention.; it has .*SelfAttention"
    ):
        package.SelfAtention  # noqa: B018


def test_version_is_printed(qkv):
    assert qkv("--version") == (0, f"{package.__version__}\n", "")


def test_an_unknown_command_ends_with_2(qkv):
    ended = qkv("explane", "x")
    assert ended.code == 2
    assert "explane" in ended.err


@pytest.mark.parametrize(
    ("kind", "shown"),
    [
        (LinesError, "qkv: a.tsv:2: no tab\n     a.tsv:9: �[31m\n"),
        (FileError, "qkv: a.tsv:2: no tab�a.tsv:9: �[31m\n"),
    ],
)
def test_only_bad_lines_of_a_file_are_shown_in_several(qkv, monkeypatch, kind, shown):
    def refuse():
        raise kind("a.tsv:2: no tab\na.tsv:9: \x1b[31m")

    monkeypatch.setattr(main, "app", refuse)
    assert qkv() == (2, "", shown)
