"""Runs the command line in this process, as a person would."""

import sys
from collections.abc import Callable
from typing import NamedTuple

import pytest


class Ended(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def qkv(monkeypatch, capsys) -> Callable[..., Ended]:
    """Run `qkv …` and return its exit code and what it printed."""
    from qkv.cli.main import run

    def call(*arguments: object) -> Ended:
        monkeypatch.setattr(sys, "argv", ["qkv", *map(str, arguments)])
        monkeypatch.setenv("COLUMNS", "100")
        code = 0
        try:
            run()
        except SystemExit as end:
            code = int(end.code or 0)
        return Ended(code, *capsys.readouterr())

    return call
