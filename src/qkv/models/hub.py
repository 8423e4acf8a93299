"""A model of the Hugging Face hub: looked at there, and fetched only if it can be loaded."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from glob import escape
from pathlib import Path

from qkv.errors import FileError, ModelError, QkvError
from qkv.models.kin import FAMILIES

CONFIG, WEIGHTS = "config.json", "model.safetensors"
BESIDE = re.compile(r"[^/]+\.(json|spm|txt)|\d+_\w+/config\.json")
"""What is fetched beside the weights: no pickle and no code. A sentence encoder has its pooling
in a folder with a number."""
PICKLES = (".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt")


def fetch(name: str, nothing: str) -> Path:
    """Fetch a model, or what is new in it, into the hub's own cache; return its folder.

    Where the hub cannot be reached, what was fetched before is taken.

    Args:
        name: "owner/name".
        nothing: what to say first where there is no such model.

    Raises:
        FileError: there is no such model, it offers no weights that are read here, or it cannot
            be fetched.
        ModelError: a family that is not known.
    """
    from huggingface_hub import hf_hub_download, list_repo_files, snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    with _said(name, nothing):
        try:
            files = list_repo_files(name)
        except Exception as error:
            try:  # with the configuration there, what else was asked for is there too
                return Path(snapshot_download(name, local_files_only=True, allow_patterns=[CONFIG]))
            except LocalEntryNotFoundError:
                if isinstance(error, HfHubHTTPError):
                    raise error from None
                raise
        weights = _weights(name, files)
        if weights[0].endswith(".safetensors"):  # a GGUF file says by itself what it is
            if CONFIG not in files:
                raise FileError(f"{name} on the Hugging Face hub holds no {CONFIG}")
            _check_family(name, Path(hf_hub_download(name, CONFIG)))
        wanted = [*filter(BESIDE.fullmatch, files), *weights]
        return Path(snapshot_download(name, allow_patterns=[escape(file) for file in wanted]))


def _weights(name: str, files: list[str]) -> list[str]:
    """Choose the weights: safetensors; where there are none, the one GGUF file."""
    if WEIGHTS in files:
        return [WEIGHTS]
    roots = sorted(file for file in files if "/" not in file)
    safe = [file for file in roots if file.endswith(".safetensors")]
    gguf = [file for file in roots if file.endswith(".gguf")]
    if not safe and len(gguf) > 1:
        raise FileError(
            f"{name} on the Hugging Face hub holds several GGUF files: {', '.join(gguf)}; fetch "
            "one by `hf download`, and give its path"
        )
    if not safe and not gguf:
        pickles = [file for file in roots if Path(file).suffix in PICKLES]
        what = f"only {', '.join(pickles)}, which is not read from there" if pickles else "no file"
        raise FileError(
            f"{name} on the Hugging Face hub offers {what}; wanted {WEIGHTS} or a .gguf file"
        )
    return safe or gguf


def _check_family(name: str, path: Path) -> None:
    from qkv.models.formats.files import read_json  # brings libraries that a list does without

    family = read_json(path).get("model_type")
    if not isinstance(family, str) or family not in FAMILIES:
        raise ModelError(
            f"{name} on the Hugging Face hub says model_type {family!r}; known: "
            f"{', '.join(FAMILIES)}"
        )


@contextmanager
def _said(name: str, nothing: str) -> Iterator[None]:
    """Say as a FileError whatever goes wrong, whichever client the hub's package uses."""
    from huggingface_hub.errors import (
        GatedRepoError,
        LocalEntryNotFoundError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
    )

    try:
        yield
    except QkvError:
        raise
    except GatedRepoError as error:
        reason = "its owner asks for a licence to be accepted there first"
        raise FileError(f"{name} on the Hugging Face hub is gated: {reason}") from error
    except RepositoryNotFoundError as error:
        raise FileError(f"{nothing}; nor is it on the Hugging Face hub") from error
    except (LocalEntryNotFoundError, OfflineModeIsEnabled) as error:
        reason = "it cannot be reached, and the model was not fetched before"
        raise FileError(f"{nothing}; as for the Hugging Face hub, {reason}") from error
    except Exception as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise FileError(f"{name} cannot be fetched from the Hugging Face hub: {reason}") from error
