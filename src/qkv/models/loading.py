"""Loading: a model is found, looked at, accounted for, and filled."""

from os import PathLike
from pathlib import Path
from typing import Any

import torch

from qkv.errors import FileError
from qkv.models.bert import BERT
from qkv.models.captioner import CAPTIONER
from qkv.models.classifier import CLASSIFIER
from qkv.models.family import Family, check_place, family_of, make
from qkv.models.formats.ctranslate2 import holds_ctranslate2, open_ctranslate2
from qkv.models.formats.folder import INDEX, WEIGHTS, open_folder
from qkv.models.formats.gguf_file import open_gguf
from qkv.models.formats.stored import Found
from qkv.models.gpt2 import GPT2
from qkv.models.llama import LLAMA
from qkv.models.marian import MARIAN
from qkv.models.named import find
from qkv.models.recurrent import RECURRENT
from qkv.models.vit import VIT
from qkv.models.whisper import WHISPER
from qkv.models.word_model import WORD_MODEL

FAMILIES: dict[str, Family[Any, Any]] = {
    family.name: family
    for family in (
        BERT,
        GPT2,
        LLAMA,
        MARIAN,
        VIT,
        WHISPER,
        CAPTIONER,
        CLASSIFIER,
        RECURRENT,
        WORD_MODEL,
    )
}
"""The families by the `model_type` of their config.json."""


def load(
    name_or_folder: str | PathLike[str],
    *,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
) -> Any:
    """Load a model by its name, from a folder, from a file, or from the Hugging Face hub.

    Args:
        name_or_folder: "minilm", "smollm2" or "whisper-tiny", from their installed packages;
            "en-es", which is here; the path of a folder with config.json and model.safetensors
            (or several of them with their index), of Whisper's folder of CTranslate2, of a .gguf
            file or a folder with one; or "owner/name" on the hub, with the extra `hub`. A folder
            that is called like a name is "./minilm".
        dtype: of the parameters, whatever the file holds.
        device: of the parameters.

    Where a file of safetensors holds what the model wants, dtype and all, it stays mapped and is
    read when it is used. It may be replaced by another one meanwhile (renamed over), not changed in
    place. Nothing is ever written to it.

    Returns:
        The model of its family, in evaluation mode: a `Bert`, `DecoderOnly` (GPT-2, Llama),
        `Marian`, `Whisper` or `Vit`; of what `qkv train` made also a `Captioner`,
        `Classifier`, `Recurrent` or `WordModel`.

    Raises:
        MissingPackageError: a package that is not installed; says how to install it.
        FileError: a path or a file that is not there or cannot be read as what it claims to be.
        ModelError: an architecture, a configuration or tensors that do not make a model.
        ArgumentError: a dtype without fractions, or a device that is not there.
    """
    check_place(dtype, device)
    found = look(find(name_or_folder))
    return make(family_of(found, FAMILIES), found, dtype, device)


def look(path: Path) -> Found:
    """Return what a folder or a file holds, whatever its format; no tensor is read.

    Raises:
        MissingPackageError: the package that reads the format is not installed.
        FileError: a file that is missing or broken.
        ModelError: a format that holds something else than a model that is known.
    """
    if path.is_file():
        return open_gguf(path)
    if (path / WEIGHTS).exists() or (path / INDEX).exists():
        return open_folder(path)
    if holds_ctranslate2(path):
        return open_ctranslate2(path)
    several = sorted(path.glob("*.gguf"))
    if len(several) > 1:
        names = ", ".join(file.name for file in several)
        raise FileError(f"{path} holds several GGUF files: {names}; give the path of one")
    return open_gguf(several[0]) if several else open_folder(path)
