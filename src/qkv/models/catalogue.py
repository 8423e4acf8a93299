"""Which models there are and which can be: known without PyTorch, and without opening one."""

from dataclasses import dataclass
from importlib.util import find_spec

from qkv.models.kin import FAMILIES
from qkv.models.named import NAMED


@dataclass(frozen=True)
class Format:
    """How a model may lie on disk.

    Attributes:
        name: of the format.
        holds: the files by which it is known.
        package: what reads it and is not always installed; None where nothing is missing.
        command: what installs that package.
    """

    name: str
    holds: str
    package: str | None = None
    command: str | None = None

    @property
    def installed(self) -> bool:
        """Whether it can be read here."""
        return self.package is None or find_spec(self.package) is not None


FORMATS = (
    Format("Hugging Face folder", "config.json and model.safetensors"),
    Format("sharded folder", "config.json, model.safetensors.index.json and its files"),
    Format("GGUF", "one .gguf file (llama, gpt2)", "gguf", "pip install 'qkv[gguf]'"),
    Format("CTranslate2 folder", "config.json and model.bin (whisper)"),
    Format(
        "Hugging Face hub", "owner/name, fetched when it is asked for",
        "huggingface_hub", "pip install 'qkv[hub]'",
    ),
)  # fmt: skip


def catalogue() -> dict[str, list[dict[str, object]]]:
    """Return the models with a name, the families and the formats, as JSON has them."""
    return {"models": _models(), "families": _families(), "formats": _formats()}


def _models() -> list[dict[str, object]]:
    found = []
    for name, package in NAMED.items():
        place = package.find()
        there = place is not None and place.exists()
        found.append(
            {
                "name": name,
                "family": package.family,
                "megabytes": package.megabytes,
                "licence": package.licence,
                "about": package.about,
                "installed": there,
                "path": str(place) if there else None,
                "install": package.command,
            }
        )
    return found


def _families() -> list[dict[str, object]]:
    return [
        {"name": name, "pattern": kin.pattern, "about": kin.about} for name, kin in FAMILIES.items()
    ]


def _formats() -> list[dict[str, object]]:
    return [
        {"name": f.name, "holds": f.holds, "installed": f.installed, "install": f.command}
        for f in FORMATS
    ]
