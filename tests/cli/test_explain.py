"""`qkv explain`: data on stdout, errors in one line on stderr, never a traceback."""

import json
import os
import shlex
import subprocess
import sys

import numpy as np
import pytest
from openpyxl import load_workbook

from qkv.core.fused import attention

RUN = [sys.executable, "-W", "error", "-c", "from qkv.cli.main import run; run()"]
BUFFERED = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
"""As a person's shell has it: what is left in a buffer is written when Python ends."""

ARTICLE = "draw a map"
SENTENCE = "the coffee spilled on the laptop and it stopped working"


def test_the_articles_words_end_in_the_articles_numbers_and_the_proof(qkv):
    ended = qkv("explain", ARTICLE)
    assert (ended.code, ended.err) == (0, "")
    assert "first number: 1.1600 × 0.5406 + 0.2300 × 0.5869 = 0.7621" in ended.out
    proof = ended.out[ended.out.index("The proof") :].splitlines()
    assert proof[2].split() == ["steps", "1", "fused", "1", "NumPy", "1", "hand", "1", "steps",
                                "2", "fused", "2", "NumPy", "2", "hand", "2"]  # fmt: skip
    assert proof[3].split()[:4] == ["draw", "1.0100", "1.0100", "1.0100"]
    assert "recorded against NumPy in float64" in ended.out
    assert "PyTorch's fused output against NumPy" in ended.out
    assert "by hand with 4 places: the result drifts by at most 3.8e-04" in ended.out
    assert "workbook" not in ended.out.splitlines()[-1]


def test_mask_heads_seed_and_places_reach_the_calculation(qkv):
    told = json.loads(
        qkv("explain", ARTICLE, "--mask", "--num-heads", 2, "--places", 2, "--json").out
    )
    values = {step["name"]: step["values"] for step in told["steps"]}
    assert values["inputs/mask"][0] == [0.0, "-inf", "-inf"]
    np.testing.assert_allclose(values["head 1/output"][0], [0.6038, 0.7434], atol=5e-5)
    assert told["proof"]["by_hand"]["places"] == 2
    other = json.loads(qkv("explain", ARTICLE, "--seed", 1, "--json").out)
    assert other["steps"][1]["values"] != told["steps"][2]["values"]


def test_json_tells_every_step_and_the_proof(qkv):
    told = json.loads(qkv("explain", "dogs chase cats", "--json").out)
    assert told["workbook"] is None
    assert told["proof"]["fused"] < 1e-5
    assert told["proof"]["difference"] <= told["proof"]["tolerance"]
    assert [step["name"] for step in told["steps"]][-2:] == ["weights", "output"]
    weights = told["steps"][-2]
    assert weights["rows"] == weights["columns"] == ["dogs", "chase", "cats"]
    np.testing.assert_allclose(np.sum(weights["values"], axis=1), 1, atol=1e-6)


@pytest.mark.parametrize(
    "name", ["desserts", "hotel", "self", "masked", "cross", "two-heads", "lookup"]
)
def test_every_example_is_shown_and_written(qkv, tmp_path, name):
    book = tmp_path / "book.xlsx"
    ended = qkv("explain", "--example", name, "--excel", book)
    assert ended.code == 0
    assert ended.out.rstrip().endswith(f"workbook: {book}")
    assert "about" in load_workbook(book).sheetnames


def test_a_thousand_words_are_shown_by_their_corner(qkv):
    ended = qkv("explain", "word " * 1000)
    assert ended.code == 0
    assert "… the corner of 1000 × 1000: 16 rows" in ended.out


def test_one_word_attends_to_itself(qkv):
    told = json.loads(qkv("explain", "alone", "--json").out)
    assert told["steps"][-2]["values"] == [[1.0]]


def test_a_window_reads_only_its_words(qkv):
    told = json.loads(qkv("explain", "a b c d e", "--tokens", "1:3", "--json").out)
    assert told["steps"][0]["rows"] == ["b", "c"]


def test_tokens_are_never_markup_and_never_formulas(qkv, tmp_path):
    tokens = ["=1+1", "[bold]x[/bold]", "<script>", "@SUM(A1)"]
    given, book = tmp_path / "given.json", tmp_path / "book.xlsx"
    given.write_text(json.dumps({"tokens": tokens, "encodings": [[1, 2]] * 4}))
    ended = qkv("explain", "--given", given, "--excel", book)
    assert ended.code == 0
    assert all(token in ended.out for token in tokens)
    cells = [cell for sheet in load_workbook(book) for row in sheet.iter_rows() for cell in row]
    as_text = {cell.value for cell in cells if cell.data_type == "s"}
    assert set(tokens) <= as_text
    formulas = [str(cell.value) for cell in cells if cell.data_type == "f"]
    assert formulas
    assert not [formula for formula in formulas if "1+1" in formula or "@" in formula]


def test_a_models_heads_are_ranked_and_the_pronoun_finds_its_noun(qkv, minilm_folder):
    ended = qkv("explain", SENTENCE, "--model", "minilm")
    assert ended.code == 0
    assert "72 heads" in ended.out
    it = next(line for line in ended.out.splitlines() if line.startswith("it  "))
    assert it.split()[1] == "laptop"
    assert "The proof" in ended.out


def test_one_head_of_a_model_is_shown_step_by_step(qkv, minilm_folder, tmp_path):
    book = tmp_path / "head.xlsx"
    ended = qkv(
        "explain", SENTENCE, "--model", minilm_folder, "--layer", 6, "--head", 6, "--excel", book
    )
    assert ended.code == 0
    assert "Layer 6: Self-attention, head 6 of 12" in ended.out
    assert "of 12 × 384" in ended.out
    assert book.stat().st_size < 2_000_000


def test_a_whole_layer_of_a_model_is_shown_and_proved(qkv, minilm_folder):
    ended = qkv("explain", SENTENCE, "--model", "minilm", "--layer", 4, "--whole")
    assert ended.code == 0
    assert "Layer 4: Encoder layer, 12 heads, post-norm" in ended.out
    assert "── head 2 (the same steps as head 1; print it with c['head 2'])" in ended.out
    assert "norm 2/output: recorded step by step, by PyTorch's fused kernel" in ended.out


def test_a_whole_layer_that_is_too_large_is_refused(qkv, minilm_folder, monkeypatch):
    monkeypatch.setattr("qkv.nn.explain_layer.MOST", 1_000_000)
    ended = qkv("explain", SENTENCE, "--model", "minilm", "--layer", 4, "--whole")
    assert (ended.code, ended.out) == (2, "")
    assert "a whole layer is written down up to 1,000,000: choose fewer tokens" in ended.err


def test_the_bridge_of_a_model_of_two_towers_is_shown(qkv, tmp_path, monkeypatch):
    from tests.explaining.test_families import marian, opened, speller

    model = opened(marian, tmp_path)[0].model
    model._tokenizer = speller()
    monkeypatch.setattr("qkv.explaining.inputs.load", lambda name: model)
    monkeypatch.setattr("qkv.explaining.inputs.find", lambda name: tmp_path)
    command = ("explain", "the sky is blue", "--model", "any", "--output", "el cielo es azul")
    ended = qkv(*command)
    assert ended.code == 0
    assert "5 tokens that look at 5, cross, all layers: 9 heads" in ended.out
    assert "Heads that link what is written with what was read" in ended.out
    assert "el → " in ended.out
    hint = next(line for line in ended.out.splitlines() if line.startswith("Every number of one"))
    assert hint.endswith(" --kind cross")
    told = json.loads(qkv(*command, "--kind", "decoder", "--json").out)
    assert told["heads"]["kind"] == "decoder"
    assert told["title"].startswith("Decoder layer")
    one = ("--layer", 2, "--head", 1, "--excel", tmp_path / "cross.xlsx")
    assert qkv(*command, *one, "--kind", "cross").code == 0
    assert qkv(*command, *one, "--kind", "bridge").err == (
        "qkv: kind is 'bridge'; this model has encoder, decoder, cross\n"
    )
    assert qkv(*command, "--layer", 2, "--whole").code == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([""], "text is ''; wanted at least one word"),
        ([], "wanted one of TEXT, --given FILE and --example NAME"),
        ([ARTICLE, "--example", "hotel"], "wanted one of TEXT"),
        (["--example", "motel"], "example is 'motel'; there are: desserts, hotel"),
        ([ARTICLE, "--head", "1"], "--layer and --head pick from a model"),
        ([ARTICLE, "--num-heads", "0"], "num_heads is 0; wanted 1 to 64"),
        ([ARTICLE, "--num-heads", "1000000000"], "num_heads is 1000000000; wanted 1 to 64"),
        ([ARTICLE, "--seed", "9" * 20], f"seed is {'9' * 20}; wanted 0 to 4294967295"),
        ([ARTICLE, "--seed", "-1"], "seed is -1; wanted 0 to 4294967295"),
        ([ARTICLE, "--places", "-1"], "places is -1; wanted 0 to 12"),
        ([ARTICLE, "--tokens", "9:12"], "tokens is '9:12', but the text has tokens 0:3"),
        ([ARTICLE, "--blank", "similarities"], "--blank leaves a step empty in the workbook"),
        ([ARTICLE, "--model", "/no/such/folder"], "/no/such/folder"),
        ([ARTICLE, "--model", "minilm", "--mask"], "--mask cannot go with --model"),
        ([ARTICLE, "--model", "minilm", "--seed", "1"], "--seed cannot go with --model"),
        ([ARTICLE, "--model", "minilm", "--num-heads", "1"], "--num-heads cannot go with --model"),
        ([ARTICLE, "--model", "minilm", "--head", "1"], "--head needs a layer"),
        ([ARTICLE, "--model", "minilm", "--whole"], "--whole needs a layer"),
        (
            [ARTICLE, "--model", "minilm", "--whole", "--layer", "1", "--head", "1"],
            "--whole shows all heads of a layer: leave --head away",
        ),
        ([ARTICLE, "--whole", "--layer", "1"], "--layer, --whole cannot go with TEXT"),
        ([ARTICLE, "--kind", "cross"], "--kind cannot go with TEXT"),
        ([ARTICLE, "--output", "a"], "--output cannot go with TEXT"),
        (["--example", "self", "--kind", "cross"], "--kind cannot go with --example"),
        (["--example", "self", "--model", "minilm"], "--model reads a TEXT"),
        (["--example", "self", "--tokens", "0:1"], "--tokens cannot go with --example"),
        (["--example", "self", "--mask"], "--mask cannot go with --example"),
        (["--example", "self", "--num-heads", "2"], "--num-heads cannot go with --example"),
        (["--given", "a.json", "--tokens", "0:1"], "--tokens cannot go with --given"),
        ([ARTICLE, "--excel", "book.xls"], "excel is 'book.xls'; wanted a name that ends in .xlsx"),
        ([ARTICLE, "--excel", "book"], "wanted a name that ends in .xlsx"),
        (["word " * 3000], "choose fewer tokens"),
        (["--given", "/no/such/file.json"], "/no/such/file.json is not there"),
        ([ARTICLE, "--excel", "/no/such/folder/book.xlsx"], "/no/such/folder/book.xlsx"),
        (["word " * 200, "--excel", "book.xlsx"], "--tokens"),
    ],
)
def test_a_users_mistake_is_one_line_and_ends_with_2(
    qkv, tmp_path, monkeypatch, arguments, message
):
    monkeypatch.chdir(tmp_path)
    ended = qkv("explain", *arguments)
    assert ended.code == 2
    assert message in ended.err
    assert ended.err.startswith("qkv: ")
    assert len(ended.err.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--layer", "9"], "layer is 9; there are layers 1 to 6"),
        (["--layer", "1", "--head", "13"], "head is 13; there are heads 1 to 12"),
        (["--kind", "cross"], "kind is 'cross'; this model has encoder"),
        (["--output", "a"], "output is 'a', but this model has no second text"),
    ],
)
def test_layers_and_heads_out_of_range_end_with_2(qkv, minilm_folder, arguments, message):
    ended = qkv("explain", SENTENCE, "--model", "minilm", *arguments)
    assert (ended.code, ended.out) == (2, "")
    assert message in ended.err


def test_an_option_that_is_no_number_ends_with_2(qkv):
    assert qkv("explain", ARTICLE, "--seed", "x").code == 2


def test_a_blank_step_is_left_for_a_person_to_fill(qkv, tmp_path):
    book = tmp_path / "sheet.xlsx"
    assert qkv("explain", ARTICLE, "--excel", book, "--blank", "similarities").code == 0
    assert qkv("explain", ARTICLE, "--excel", book, "--blank", "nothing").code == 2


def test_what_can_be_refused_early_is_refused_before_anything_is_computed(qkv, tmp_path):
    """The example is computed first of all, and would be refused if it were reached."""
    never = ("explain", "--example", "motel")
    assert "places is 99" in qkv(*never, "--places", 99).err
    assert "ends in .xlsx" in qkv(*never, "--excel", "book.ods").err
    assert "it is a folder" in qkv(*never, "--excel", _folder(tmp_path / "a.xlsx")).err
    assert "there is no folder" in qkv(*never, "--excel", tmp_path / "b" / "a.xlsx").err


def _folder(path):
    path.mkdir()
    return path


def test_the_proof_names_only_the_sources_that_it_shows(qkv):
    told = qkv("explain", "--example", "desserts").out
    assert "weights: recorded step by step, by NumPy in float64, by hand" in told
    told = qkv("explain", ARTICLE).out
    assert "by PyTorch's fused kernel, by NumPy in float64, by hand" in told


def test_nothing_is_printed_or_written_where_the_proof_fails(qkv, tmp_path, monkeypatch):
    def fused(*arguments, **options):
        return attention(*arguments, **options) + 0.01

    monkeypatch.setattr("qkv.nn.attending.attention", fused)
    ended = qkv("explain", ARTICLE, "--excel", tmp_path / "book.xlsx")
    assert (ended.code, ended.out) == (1, "")
    assert ended.err.startswith("qkv: the proof failed: output: the fused value is 1.00e-02 away")
    assert list(tmp_path.iterdir()) == []


def test_a_workbook_that_may_not_be_written_is_refused(qkv, tmp_path, monkeypatch):
    book = tmp_path / "book.xlsx"
    monkeypatch.setattr("os.access", lambda path, mode: path != tmp_path)
    assert "there is no permission to" in qkv("explain", ARTICLE, "--excel", book).err
    book.write_bytes(b"mine")
    monkeypatch.setattr("os.access", lambda path, mode: path != book)
    assert qkv("explain", ARTICLE, "--excel", book).code == 2
    assert book.read_bytes() == b"mine"


@pytest.mark.parametrize("columns", ["0", "1", "-5", "many"])
def test_a_terminal_of_no_width_still_shows_everything(columns):
    environment = os.environ | {"COLUMNS": columns}
    done = subprocess.run(
        [*RUN, "explain", "a b"], capture_output=True, text=True, check=True, env=environment
    )
    assert "by hand with 4 places" in done.stdout


def test_off_a_terminal_there_is_no_colour():
    done = subprocess.run([*RUN, "explain", "a b"], capture_output=True, text=True, check=True)
    assert "\x1b" not in done.stdout


@pytest.mark.parametrize(
    "command",
    [["explain", "a b"], ["explain", "word " * 300, "--json"], ["--help"], ["--version"]],
    ids=["little", "much", "help", "version"],
)
def test_a_reader_who_has_seen_enough_is_no_error(command):
    with subprocess.Popen(
        [*RUN, *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=BUFFERED
    ) as writing:
        writing.stdout.close()  # before a single letter is written
        assert (writing.stderr.read(), writing.wait()) == ("", 0)


def test_in_a_pipe_that_is_closed_the_whole_line_of_commands_succeeds():
    line = f"{shlex.join([*RUN, 'explain', 'word ' * 300, '--json'])} | head -c 10"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", line],
        capture_output=True,
        text=True,
        check=True,
        env=BUFFERED,
    )
    assert (done.stdout, done.stderr) == ('{"title": ', "")


def test_what_the_encoding_of_the_output_lacks_becomes_a_question_mark():
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    done = subprocess.run(
        [*RUN, "explain", "naïve 🙂"], capture_output=True, check=True, env=environment
    )
    assert b"?d_k = 1.4142" in done.stdout
    done = subprocess.run(
        [*RUN, "explain", "naïve 🙂", "--json"], capture_output=True, check=True, env=environment
    )
    assert json.loads(done.stdout)["steps"][0]["rows"] == ["naïve", "🙂"]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="only Linux has a disk always full")
@pytest.mark.parametrize("command", [["explain", "a b"], ["--help"]], ids=["explain", "help"])
def test_a_full_disk_is_named(command):
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [*RUN, *command], stdout=full, stderr=subprocess.PIPE, text=True, check=False,
            env=BUFFERED,
        )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr == "qkv: cannot write the output: No space left on device\n"


def test_a_closed_stdout_is_nobody_who_reads():
    line = f"{shlex.join([*RUN, 'explain', 'a b'])} >&-"
    done = subprocess.run(["sh", "-c", line], stderr=subprocess.PIPE, text=True, check=True)
    assert done.stderr == ""


def test_one_head_takes_one_model_and_one_run(qkv, minilm_folder, tmp_path, monkeypatch):
    from qkv.explaining import inputs
    from qkv.models.bert import Bert

    events, load, forward = [], inputs.load, Bert.forward
    monkeypatch.setattr(inputs, "load", lambda name: events.append("load") or load(name))

    def run(*arguments, **named):
        events.append("run")
        return forward(*arguments, **named)

    monkeypatch.setattr(Bert, "forward", run)
    command = ("explain", "the coffee spilled", "--model", "minilm", "--layer", 4, "--head", 7)
    assert qkv(*command, "--excel", tmp_path / "a.xlsx").code == 0
    assert events == ["load", "run"]
