"""A model for a command: of the family that it needs, found before PyTorch is imported."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from qkv.cli.progress import waiting
from qkv.errors import ArgumentError
from qkv.models.named import NAMED, find

IS = {
    "bert": "an encoder: it embeds text and cannot write any",
    "gpt2": "a decoder: it writes text on",
    "llama": "a decoder: it writes text on",
    "marian": "an encoder and a decoder: it translates text",
    "whisper": "an encoder of sound and a decoder of text: it writes down what is said",
    "vit": "an encoder of pictures: it says what they show",
    "qkv_classifier": "a classifier: it says which label a text has",
    "qkv_recurrent": "a recurrent network: it translates text",
    "qkv_words": "a model of words: it tells the next one",
}
"""What a model of each family does."""


class Wanted(NamedTuple):
    """What a command needs.

    Attributes:
        families: those that can do it.
        such_as: says so to a person.
    """

    families: Sequence[str]
    such_as: str

    def check(self, name: str, family: str) -> None:
        """Refuse a model of another family."""
        if family not in self.families:
            what = IS.get(family, f"of the family {family}")
            raise ArgumentError(f"{name} is {what}; wanted {self.such_as}")


def where(name: str, wanted: Wanted) -> Path:
    """Find a model; of one that has a name the family is known at once.

    Raises:
        ArgumentError: it is of another family than the command needs.
        MissingPackageError, FileError: it is not there.
    """
    if name in NAMED:
        wanted.check(name, NAMED[name].family)
    return find(name)


def opened(name: str, path: Path, wanted: Wanted) -> Any:
    """Load a model that was found; one of another family is refused before its weights are read.

    Raises:
        ArgumentError: it is of another family than the command needs.
        ModelError, FileError, MissingPackageError: it cannot be loaded.
    """
    with waiting(f"loading {name}"):
        import torch

        from qkv.models import FAMILIES, look
        from qkv.models.family import family_of, make

        found = look(path)
        family = family_of(found, FAMILIES)
        wanted.check(name, family.name)
        return make(family, found, torch.float32, "cpu")
