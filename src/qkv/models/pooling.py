"""From one row a token to one row a text, as a sentence encoder's folder says."""

from dataclasses import dataclass
from pathlib import Path, PureWindowsPath
from typing import Any

from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import normalize

from qkv.errors import FileError, ModelError
from qkv.models.formats.files import read_json

PREFIX = "pooling_mode_"


@dataclass(frozen=True)
class Pooling:
    """The mean of a text's tokens, then length 1      Reimers and Gurevych 2019, section 3

    Attributes:
        modes: how tokens become one row, as the folder writes it; only the mean is computed.
        normalised: whether each row is divided by its length.
    """

    modes: tuple[str, ...] = ("mean_tokens",)
    normalised: bool = True

    @classmethod
    def read(cls, folder: Path) -> "Pooling":
        """Read modules.json and the pooling's own config.json; without them the mean, length 1.

        Raises:
            FileError: one of them cannot be read, or a module lies outside the folder.
            ModelError: modules.json lists modules that are not known here.
        """
        path = folder / "modules.json"
        if not path.exists():
            return cls()
        modules = _modules(path)
        unknown = sorted(modules.keys() - {"Transformer", "Pooling", "Normalize"})
        if unknown:
            raise ModelError(f"{path} lists {', '.join(unknown)}; known are Transformer, Pooling, "
                             f"Normalize")  # fmt: skip
        normalised = "Normalize" in modules
        if "Pooling" not in modules:
            return cls(normalised=normalised)
        settings = read_json(folder / modules["Pooling"] / "config.json")
        on = (key for key, value in settings.items() if key.startswith(PREFIX) and value)
        return cls(tuple(key.removeprefix(PREFIX) for key in on), normalised)

    def __call__(
        self, x: Float[Tensor, "batch tokens n_embed"], real: Bool[Tensor, "batch tokens"]
    ) -> Float[Tensor, "batch n_embed"]:
        """Return one row a text; `real` is False for padding.

        Raises:
            ModelError: the folder asks for another way than the mean.
        """
        self.check()
        total = x.masked_fill(~real[..., None], 0).sum(dim=-2)
        mean = total / real.sum(dim=-1, keepdim=True)
        return normalize(mean, dim=-1) if self.normalised else mean

    def check(self) -> None:
        """Raise ModelError where the folder asks for another way than the mean."""
        if self.modes != ("mean_tokens",):
            raise ModelError(f"the pooling is {', '.join(self.modes)}; wanted mean_tokens")


def _modules(path: Path) -> dict[str, str]:
    """Name and folder of each module."""
    listed: Any = read_json(path, list)
    try:
        found = {str(m["type"]).rpartition(".")[2]: str(m["path"]) for m in listed}
    except (KeyError, TypeError) as error:
        raise ModelError(f"{path}: wanted a list of modules with a type and a path") from error
    outside = sorted(place for place in found.values() if place and not _plain_name(place))
    if outside:
        raise FileError(
            f"{path} names {', '.join(map(repr, outside))}; wanted folders in its own folder"
        )
    return found


def _plain_name(name: str) -> bool:
    """Whether it is the name of a folder, and no path, on any system."""
    if name == ".." or ":" in name or "\0" in name:
        return False
    return PureWindowsPath(name).name == name and Path(name).name == name
