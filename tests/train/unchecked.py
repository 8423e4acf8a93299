"""The phrase book is read in millions of calls: here without the enforcement of shapes."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from jaxtyping import config

from qkv.train.translation.corpus import Corpus


@contextmanager
def unchecked() -> Iterator[None]:
    """As for a user."""
    before = config.jaxtyping_disable
    config.update("jaxtyping_disable", True)
    try:
        yield
    finally:
        config.update("jaxtyping_disable", before)


@pytest.fixture(autouse=True, scope="module")
def quickly_read() -> Iterator[None]:
    """Let `Corpus.open` read so."""
    opened = Corpus.open

    def open_(*arguments: Any, **named: Any) -> Corpus:
        with unchecked():
            return opened(*arguments, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Corpus, "open", open_)
        yield
