"""What reaches stdout, whatever stdout is."""

import json
import sys
from io import BytesIO, TextIOWrapper

import pytest
from rich.text import Text

from qkv.cli.screen import Page, can_spell, json_of, write, write_json


@pytest.fixture
def stdout(monkeypatch):
    """Make stdout speak an encoding, and return what was written to it."""

    def speak(encoding: str) -> BytesIO:
        page = BytesIO()
        monkeypatch.setattr(sys, "stdout", TextIOWrapper(page, encoding=encoding, newline=""))
        return page

    return speak


def test_letters_that_stdout_lacks_are_known_before_and_become_question_marks(stdout):
    page = stdout("latin-1")
    assert can_spell("×é")
    assert not can_spell("→")
    write("× → é\n")
    assert page.getvalue().decode("latin-1") == "× ? é\n"


@pytest.mark.parametrize(("encoding", "spelled"), [("utf-8", '"→"'), ("ascii", '"\\u2192"')])
def test_json_is_whole_in_every_encoding(stdout, encoding, spelled):
    page = stdout(encoding)
    write_json({"a": "→"})
    told = page.getvalue().decode(encoding)
    assert spelled in told
    assert json.loads(told) == {"a": "→"}


def test_what_is_no_finite_number_is_null_in_json():
    nan, inf = float("nan"), float("inf")
    told = json.loads(json_of({"a": nan, "b": [inf, (-inf, 1.5)], "c": {"d": nan}}))
    assert told == {"a": None, "b": [None, [None, 1.5]], "c": {"d": None}}


@pytest.mark.parametrize(("columns", "width"), [("0", 60), ("59", 60), ("97", 97), ("999", 160)])
def test_a_page_is_as_wide_as_the_terminal_within_reason(stdout, monkeypatch, columns, width):
    monkeypatch.setenv("COLUMNS", columns)
    page, told = Page(), stdout("utf-8")
    assert page.width == width
    page.add(Text("long " * 100), Text("  second  "))
    page.write()
    first, second = told.getvalue().decode().splitlines()
    assert first == ("long " * 100).rstrip()
    assert second == "  second"


def test_nothing_is_written_where_nobody_reads(monkeypatch):
    monkeypatch.setattr(sys, "stdout", None)
    assert can_spell("→")
    write("lost")
