"""What stands in a model's folder beside its weights."""

import json
from functools import cached_property
from pathlib import Path
from typing import Any

from qkv.disk import cannot_read
from qkv.errors import FileError
from qkv.models.text.tokenizer import Tokenizer


class Files:
    """The files of a folder that a family may ask for.

    Attributes:
        path: the folder.
    """

    def __init__(self, path: Path) -> None:
        """Look into a folder."""
        self.path = path

    def tokenizer(self) -> Tokenizer | None:
        """Return what cuts text into this model's tokens; None where the folder has nothing."""
        return self._tokenizer

    @cached_property
    def _tokenizer(self) -> Tokenizer | None:
        if (self.path / "source.spm").exists() and not (self.path / "tokenizer.json").exists():
            from qkv.models.text.marian_tokenizer import (
                MarianTokenizer,  # it reads JSON with this file
            )

            return MarianTokenizer.read(self.path)
        return Tokenizer.find(self.path)

    def json(self, name: str) -> dict[str, Any] | None:
        """Return what a JSON file holds; None where it is not there.

        Raises:
            FileError: it is there and holds no JSON object.
        """
        path = self.path / name
        if not path.exists():
            return None
        content: dict[str, Any] = read_json(path)
        return content


class Unwritten(Files):
    """The files of a model that no folder holds yet: a tokenizer, and nothing else.

    Args:
        tokenizer: what cuts text into the model's tokens.
    """

    def __init__(self, tokenizer: Tokenizer | None = None) -> None:
        """Hold it."""
        self._held = tokenizer

    def tokenizer(self) -> Tokenizer | None:
        """Return the tokenizer."""
        return self._held

    def json(self, name: str) -> dict[str, Any] | None:
        """There is none."""
        return None


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
        raise cannot_read(path, error) from error
    except (ValueError, RecursionError) as error:
        raise FileError(f"{path} is not JSON: {error}") from error
    if not isinstance(value, kind):
        raise FileError(f"{path} holds a {type(value).__name__}; wanted a {kind.__name__}")
    return value
