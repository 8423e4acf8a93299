"""`qkv history`: tables, pictures and a workbook of five systems."""

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
from openpyxl import load_workbook

from qkv.models.translating import Translator
from qkv.models.writing.written import Written
from qkv.train.translation import history
from qkv.train.translation.history import History
from qkv.train.translation.systems import SYSTEMS
from tests.train.translation.test_history import FEW, SMALL, sentences


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "small.tsv"
    path.write_text("\n".join([*sentences(), *sentences(long=True)]), "utf-8")
    return path


@pytest.fixture
def small(monkeypatch):
    """The command as it is, with small systems that are trained for two steps."""
    monkeypatch.setattr(history, "USUAL", FEW)
    monkeypatch.setattr(history, "FEWEST", 3)
    monkeypatch.setattr("qkv.train.tasks.translate.Sizes", lambda: SMALL)


@pytest.fixture(scope="module")
def finished(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which every system is trained already."""
    out = tmp_path_factory.mktemp("finished") / "out"
    History(out, [str(data)], sizes=SMALL).run(FEW)
    return out


def check_tables(printed: str) -> None:
    lines = printed.splitlines()
    for heading in ("Held-out sentences", "chrF by words", "BLEU by words", "exact % by words"):
        (at,) = (i for i, line in enumerate(lines) if line.startswith(heading))
        assert [line.split()[0] for line in lines[at + 2 : at + 7]] == ["dictionary", *SYSTEMS]


@pytest.mark.slow
def test_the_history_is_told_drawn_and_calculated(qkv, small, data, tmp_path):
    out, pictures, book = tmp_path / "out", tmp_path / "pictures", tmp_path / "sky.xlsx"
    ended = qkv("history", "--out", out, "--data", data, "--plot", pictures, "--excel", book,
                "--sentence", "the cat sees the dog", "--steps", "3")  # fmt: skip
    assert ended.code == 0, ended.err
    check_tables(ended.out)
    assert [line.split(":")[0] for line in ended.out.splitlines() if ": " in line] == [*SYSTEMS]
    assert sorted(path.name for path in pictures.iterdir()) == [
        "additive.svg", "dot.svg", "transformer.svg",
    ]  # fmt: skip
    for path in pictures.iterdir():
        ElementTree.parse(path)
    sheets = load_workbook(book).sheetnames
    for system in ("additive", "dot", "transformer"):
        assert any(name.startswith(system) for name in sheets)
    record = json.loads((out / "seed-0" / "dot" / "training.json").read_text())
    assert [record["settings"][name] for name in ("steps", "measure_every", "warmup")] == [3, 3, 0]


@pytest.mark.slow
def test_json_holds_outcomes_summaries_and_the_sentence(qkv, small, data, finished):
    told = json.loads(qkv("history", "--out", finished, "--data", data, "--json").out)
    assert [one["system"] for one in told["systems"]] == ["dictionary", *SYSTEMS]
    assert [one["steps"] for one in told["outcomes"]] == [0, 2, 2, 2, 2]
    for name in ("additive", "dot", "transformer"):
        weights = told["sentence"][name]["alignment"]["weights"]
        assert all(sum(row) == pytest.approx(1, abs=1e-6) for row in weights)
    assert told["sentence"]["single"]["alignment"] is None


@pytest.mark.slow
def test_a_sentence_that_does_not_fit_costs_no_table(qkv, small, data, finished):
    ended = qkv("history", "--out", finished, "--data", data, "--sentence", "cat " * 200)
    assert ended.code == 2
    assert "tokens, the model takes 1 to 128" in ended.err
    check_tables(ended.out)


@pytest.mark.slow
def test_systems_that_write_nothing_looked_at_nothing(
    qkv, small, data, finished, tmp_path, monkeypatch
):
    translated = Translator.translate

    def translate(self, texts, **options):
        if isinstance(texts, str):
            return [Written((1,), "end", -1.0, "")]
        return translated(self, texts, **options)

    monkeypatch.setattr(Translator, "translate", translate)
    command = ("history", "--out", finished, "--data", data, "--plot", tmp_path / "pictures")
    ended = qkv(*command)
    assert ended.code == 0, ended.err
    check_tables(ended.out)
    assert ended.out.endswith("\nsingle:\nadditive:\ndot:\ntransformer:\n")
    assert not (tmp_path / "pictures").exists()
    ended = qkv(*command, "--excel", tmp_path / "sky.xlsx")
    assert ended.code == 2
    assert "excel has nothing to hold: no system made anything of 'the sky is blue'" in ended.err
    check_tables(ended.out)
    assert not (tmp_path / "sky.xlsx").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "--out is missing; wanted the folder that the systems go to"),
        (["--out", "file"], "out is 'file', which is a file; wanted a folder"),
        (["--out", "new", "--plot", "file"], "plot is 'file', which is a file"),
        (["--out", "new", "--excel", "a.csv"], "excel is 'a.csv'; wanted a name that ends in"),
        (["--out", "new", "--sentence", " ?"], "sentence is ' ?'; wanted a text"),
        (["--out", "new", "--seeds", "0"], "seeds is 0; wanted 1 or more"),
        (["--out", "new", "--steps", "0"], "steps is 0; wanted a whole number above 0"),
        (["--out", "new", "--data", "/no/such.tsv"], "/no/such.tsv"),
    ],
)
def test_a_mistake_is_one_line_and_nothing_is_written(
    qkv, tmp_path: Path, monkeypatch, arguments, message
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    ended = qkv("history", *arguments)
    assert (ended.code, ended.out) == (2, "")
    assert message in ended.err
    assert len(ended.err.splitlines()) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
