"""`qkv map`: the original, a folder, a picture, JSON, and what it refuses."""

import json
import subprocess
import sys
from io import BytesIO, TextIOWrapper
from pathlib import Path
from xml.etree import ElementTree

import pytest

from qkv.models.maps.architecture import map_of, map_of_original
from qkv.show.map import text
from tests.models.peers import peer


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A Marian of random weights: two towers."""
    path = tmp_path / "translator"
    peer("marian", path)
    return path


def test_without_a_model_it_draws_the_original_transformer(qkv):
    ended = qkv("map")
    assert (ended.code, ended.err) == (0, "")
    assert ended.out == text(map_of_original(), 100) + "\n"
    assert ended.out.startswith("The original transformer\n")


def test_a_folder_is_drawn_under_its_own_name(qkv, folder):
    ended = qkv("map", "--model", folder)
    assert (ended.code, ended.err) == (0, "")
    assert ended.out == text(map_of(folder), 100) + "\n"
    assert ended.out.startswith("translator\nmarian, encoder and decoder, ")


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp437"])
def test_a_terminal_without_the_letters_gets_ascii(monkeypatch, encoding):
    from qkv.cli.main import run

    page = BytesIO()
    monkeypatch.setattr(sys, "argv", ["qkv", "map"])
    monkeypatch.setattr(sys, "stdout", TextIOWrapper(page, encoding=encoding, newline=""))
    monkeypatch.setenv("COLUMNS", "60")
    with pytest.raises(SystemExit) as end:
        run()
    assert end.value.code == 0
    assert page.getvalue().decode(encoding) == text(map_of_original(), 60, plain=True) + "\n"


def test_a_picture_is_written_and_the_map_is_still_told(qkv, folder, tmp_path):
    picture = tmp_path / "map.svg"
    ended = qkv("map", "--model", folder, "--svg", picture)
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.startswith("translator\n")
    root = ElementTree.parse(picture).getroot()
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert list(tmp_path.glob("*.svg")) == [picture]


def test_json_is_the_record_as_it_is_documented(qkv, folder):
    ended = qkv("map", "--model", folder, "--json")
    assert (ended.code, ended.err) == (0, "")
    told = json.loads(ended.out)
    assert told == json.loads(json.dumps(map_of(folder).plain()))
    assert [tower["name"] for tower in told["towers"]] == ["encoder", "decoder"]
    assert told["parameters"] == sum(tower["parameters"] for tower in told["towers"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", "nothing"], "there is no model named 'nothing' and no folder of that path"),
        (["--svg", "map.png"], "svg is 'map.png'; wanted a name that ends in .svg"),
        (
            ["--svg", "no/such/map.svg"],
            "no/such/map.svg cannot be written: there is no folder no/such",
        ),
    ],
)
def test_what_cannot_be_meant_ends_with_2_and_one_message(qkv, arguments, message):
    ended = qkv("map", *arguments)
    assert ended.code == 2
    assert ended.out == ""
    assert ended.err.startswith(f"qkv: {message}")
    assert ended.err.count("\n") == 1


def test_a_folder_in_the_place_of_the_picture_is_refused(qkv, tmp_path):
    place = tmp_path / "map.svg"
    place.mkdir()
    ended = qkv("map", "--svg", place)
    assert (ended.code, ended.out) == (2, "")
    assert "it is a folder" in ended.err


def test_a_model_that_does_not_fit_leaves_no_picture(qkv, folder, tmp_path):
    config = folder / "config.json"
    config.write_text(config.read_text().replace('"d_model": 21', '"d_model": 42'))
    ended = qkv("map", "--model", folder, "--svg", tmp_path / "map.svg")
    assert (ended.code, ended.out) == (2, "")
    assert "does not fit config.json" in ended.err
    assert not (tmp_path / "map.svg").exists()


def test_a_named_model_is_drawn(qkv, minilm_folder):
    told = qkv("map", "--model", "minilm").out
    assert told.startswith("minilm\nbert, encoder only, 22,565,376 parameters\n")
    assert "12 heads, d_k 32" in told
    assert "cross-attention" not in told


@pytest.mark.slow
def test_a_map_loads_no_compiler_and_no_hugging_face(folder):
    code = (
        "import sys; sys.argv = ['qkv', 'map', *sys.argv[1:]]\n"
        "from qkv.cli.main import run\n"
        "try: run()\n"
        "except SystemExit: pass\n"
        "heavy = ('torch._dynamo', 'transformers', 'huggingface_hub', 'gguf')\n"
        "print([name for name in heavy if name in sys.modules])"
    )
    for arguments in ([], ["--model", folder]):
        run = [sys.executable, "-W", "error", "-c", code, *arguments]
        done = subprocess.run(run, capture_output=True, text=True, check=True)
        assert done.stdout.splitlines()[-1] == "[]"
