"""`qkv watch`: a model's attention and a script's, and what it refuses."""

import itertools
import json
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import openpyxl
import pytest
import torch

from qkv import Recording
from qkv.explaining.model import ModelText
from tests.explaining.test_families import marian, opened, speller
from tests.models.conftest import smollm2_file as smollm2_file  # noqa: PLC0414

TEXT = "the coffee spilled on the laptop and it stopped working"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "wanted a TEXT and --model, or a script, or a recording"),
        (["a text"], "'a text' is no script (.py) and no recording (.safetensors); for a text say"),
        (["a text", "--head", "1.1"], "'a text' is no script"),
        (["--model", "minilm"], "wanted a TEXT and --model, or a script, or a recording"),
        (["a", "b", "--model", "minilm"], "wanted one TEXT, got 2: put it into quotes"),
        (["no.py"], "no.py is not there; wanted a Python script"),
        (["folder.py"], "folder.py is not there; wanted a Python script"),
        (["--all", "script.py"], "--all cannot go with a script: say --model too"),
        (["--max-tokens", "3", "script.py"], "--max-tokens cannot go with a script"),
        (["--output=x", "script.py"], "--output cannot go with a script"),
        (["--tokens", "1:2", "script.py"], "--tokens cannot go with a script"),
        (["x.safetensors", "--tokens", "1:2"], "--tokens cannot go with a recording"),
        (["x.safetensors", "y.safetensors"], "wanted one recording, got 2 names"),
        (["x.safetensors"], "x.safetensors is not there; wanted a file that Recording.save wrote"),
        (["a", "--model", "minilm", "--head", "3"], "head is '3'; wanted an attention and a head"),
        (["a", "--model", "minilm", "--head", "0.1"], "head is '0.1'; wanted"),
        (["a", "--model", "minilm", "--head", "1.x"], "head is '1.x'; wanted"),
        (["a", "--model", "minilm", "--head", "1.²"], "head is '1.²'; wanted"),
        (
            ["a", "--model", "minilm", "--excel", "x.xlsx"],
            "--excel writes the workbook of one head",
        ),
        (["a", "--model", "minilm", "--head", "1.1", "--excel", "x.xls"], "ends in .xlsx"),
        (["--head", "1.1", "--excel", "no/x.xlsx", "script.py"], "there is no folder no"),
        (["a", "--model", "minilm", "--save", "x.pt"], "save is 'x.pt'; wanted a name that ends"),
        (["a", "--model", "minilm", "--only", " "], "only is ' '; wanted a pattern of paths"),
        (["a", "--model", "minilm", "--max-tokens", "0"], "max_tokens is 0; wanted 1 to"),
        (["a", "--model", "minilm", "--max-tokens", "2", "--output", "x"], "--max-tokens lets the"),
        (["a", "--model", "/no/such"], "there is no model named '/no/such'"),
        (["", "--model", "minilm"], "TEXT is ''; wanted a text"),
        (["--model", "minilm", "-", "-"], "wanted one TEXT, got 2"),
    ],
)
def test_a_users_mistake_is_told_before_anything_runs(
    qkv, tmp_path, monkeypatch, arguments, message
):
    (tmp_path / "folder.py").mkdir()
    (tmp_path / "script.py").write_text("raise SystemExit('it ran')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("qkv.models.named._packaged", lambda name: tmp_path)
    ended = qkv("watch", *arguments)
    assert (ended.code, ended.out) == (2, "")
    assert message in ended.err
    assert ended.err.startswith("qkv: ")
    assert len(ended.err.splitlines()) == 1


def test_mistakes_need_no_pytorch():
    code = (
        "import sys; sys.argv = ['qkv', 'watch', 'a', '--model', 'minilm', '--head', 'x']\n"
        "from qkv.cli.main import run\n"
        "try: run()\n"
        "except SystemExit as end: print(end.code, 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "2 False\n"


@pytest.fixture
def script(tmp_path, monkeypatch):
    """Write a script, and stand beside it."""
    monkeypatch.chdir(tmp_path)

    def write(code: str) -> Path:
        (tmp_path / "script.py").write_text(textwrap.dedent(code), "utf-8")
        return Path("script.py")

    return write


ENCODER = """
    import sys
    import torch
    from torch import nn

    torch.manual_seed(int(sys.argv[1]))
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    x = torch.randn(3, 7, 32)
    padding = torch.arange(7) >= torch.tensor([[7], [5], [4]])
    with torch.no_grad():
        for _ in range(2):
            y = encoder(x, src_key_padding_mask=padding)
    print("mean", y.mean().item())
    """


def test_every_head_of_a_model_is_measured_and_its_attention_proved(qkv, minilm):
    ended = qkv("watch", "--model", "minilm", TEXT)
    assert (ended.code, ended.err) == (0, "")
    lines = ended.out.splitlines()
    assert lines[0] == "minilm: 12 tokens, 6 attentions, 72 heads"
    assert [line.split() for line in lines[2:8]] == [
        [str(i + 1), f"encoder.layers.{i}.attention"] for i in range(6)
    ]
    assert "self-attention, 12 heads of 32; 12 queries look at 12 keys" in ended.out
    assert "mask: all open; scale 0.1768" in ended.out
    assert "recomputed" in ended.out
    assert "NOT" not in ended.out
    grid = ended.out.split("What the heads are\n")[1].splitlines()[1:7]
    assert [len(line.split()) for line in grid] == [13] * 6
    assert max(map(len, lines)) <= 100


def test_json_gives_the_heads_as_the_recording_measures_them(qkv, minilm):
    told = json.loads(qkv("watch", TEXT, "--model", "minilm", "--json").out)
    read = ModelText.read(TEXT, "minilm")
    weights = [read.weights(layer) for layer in range(1, 7)]
    assert len(told["heads"]) == 72
    for head in told["heads"]:
        p = weights[head["attention"] - 1][head["number"] - 1]
        entropy = -(p * np.log(p)).sum(1).mean()
        assert head["entropy"] == pytest.approx(entropy, abs=1e-5)  # float32 beside float64
        assert head["previous"] == pytest.approx(np.diagonal(p, -1).mean(), abs=1e-5)
        assert head["separators"] == pytest.approx(p[:, [0, -1]].sum(1).mean(), abs=1e-5)
    assert [one["path"] for one in told["attentions"]] == [
        f"encoder.layers.{i}.attention" for i in range(6)
    ]
    assert all(one["error_eps"] <= 16 for one in told["attentions"])
    assert len(told["links"]) == 72
    assert (told["model"], told["written"], told["head"]) == ("minilm", None, None)
    assert told["tokens"]["encoder"][1:4] == ["the", "coffee", "spilled"]
    # the ranking is that of `qkv explain`
    best = read.heads().first
    assert (told["links"][0]["attention"], told["links"][0]["head"]) == (best.layer, best.head)
    assert told["links"][0]["share"] == pytest.approx(best.linking, abs=1e-5)


def cells_of(workbook: Path) -> set:
    """All that stands in the cells of a workbook."""
    sheets = openpyxl.load_workbook(workbook)
    return {cell.value for sheet in sheets for row in sheet.iter_rows() for cell in row}


def test_all_gives_every_head_a_line(qkv, minilm):
    table = qkv("watch", "--model", "minilm", TEXT, "--all").out.split("Every head\n")[1]
    names = [line.split()[0] for line in table.splitlines()[1:73]]
    assert names == [f"{a}.{h}" for a in range(1, 7) for h in range(1, 13)]


def test_one_head_is_drawn_told_and_written(qkv, tmp_path, minilm):
    files = tmp_path / "head.xlsx", tmp_path / "seen.safetensors"
    ended = qkv("watch", "--model", "minilm", TEXT, "--head", "4.10", "--excel", files[0],
                "--save", files[1])  # fmt: skip
    assert (ended.code, ended.err) == (0, "")
    assert f"workbook of head 4.10: {files[0]}" in ended.out
    assert f"recording: {files[1]}" in ended.out
    assert "Head 4.10   queries × keys: 12 × 12" in ended.out
    dense = ModelText.read(TEXT, "minilm").weights(4)[9]
    picture = ended.out.split("12 × 12\n\n")[1].splitlines()[1:13]
    shades = " ░▒▓█"
    for line, row in zip(picture, dense, strict=True):
        cells = line[8:].ljust(12 * 6)
        wanted = (np.sqrt(row / dense.max()) * 4 + 0.5).astype(int)
        assert cells == "".join(shades[level] * 6 for level in wanted)
    again = Recording.load(files[1])["encoder.layers.3.attention"]
    torch.testing.assert_close(
        again.weights.dense()[0, 9].double(), torch.from_numpy(dense), atol=1e-5, rtol=0
    )
    cells = cells_of(files[0])
    assert "encoder.layers.3.attention, head 10 of 12" in cells
    q = Recording.load(files[1])["encoder.layers.3.attention"].q[0, 9]
    numbers = {round(cell, 6) for cell in cells if isinstance(cell, float)}
    assert {round(float(x), 6) for x in q.flatten()} <= numbers
    told = qkv("watch", "--model", "minilm", TEXT, "--head", "4.10", "--json")
    head = json.loads(told.out)["head"]
    np.testing.assert_allclose(head["weights"], dense, atol=1e-5)
    assert head["queries"] == head["keys"]
    assert head["keys"][2:4] == ["coffee", "spilled"]


def test_a_head_that_is_not_there_is_refused_and_nothing_written(qkv, tmp_path, minilm):
    file = tmp_path / "seen.safetensors"
    for head, message in (
        ("7.1", "the attentions are 1 encoder.layers.0.attention, 2 encoder"),
        ("6.13", "heads 1 to 12"),
    ):
        ended = qkv("watch", "--model", "minilm", "a b", "--head", head, "--save", file)
        assert (ended.code, ended.out) == (2, "")
        assert message in ended.err
    assert not file.exists()


def test_of_a_text_only_the_chosen_tokens_are_read(qkv, minilm):
    told = json.loads(qkv("watch", "--model", "minilm", TEXT, "--tokens", "1:4", "--json").out)
    assert told["tokens"]["encoder"] == ["[CLS]", "coffee", "spilled", "on", "[SEP]"]
    assert told["attentions"][0]["keys"] == 5


def test_a_head_too_large_for_a_workbook_is_refused_with_what_helps(qkv, tmp_path, minilm):
    ended = qkv("watch", "--model", "minilm", "so " * 150, "--head", "1.3", "--excel",
                tmp_path / "head.xlsx")  # fmt: skip
    assert (ended.code, ended.out) == (2, "")
    assert "head 1.3 has 152 × 152 weights; a workbook takes 128 tokens at most" in ended.err
    assert "of a TEXT with --tokens 10:40" in ended.err


def test_a_recording_is_told_as_what_it_recorded(qkv, tmp_path, minilm):
    file = tmp_path / "seen.safetensors"
    told = json.loads(qkv("watch", "--model", "minilm", TEXT, "--save", file, "--head", "4.10",
                          "--json").out)  # fmt: skip
    again = json.loads(qkv("watch", file, "--head", "4.10", "--json").out)
    assert again["recording"] == "Bert"
    for part in ("attentions", "heads"):
        assert len(again[part]) == len(told[part])
        for one, other in zip(again[part], told[part], strict=True):
            assert one == pytest.approx(other, abs=1e-6, nan_ok=True)
    assert again["head"] == told["head"]
    text = qkv("watch", file, "--head", "4.10", "--excel", tmp_path / "head.xlsx").out
    assert "Attention in Bert: 6 calls of 6 attentions" in text
    assert "The clearest 3 of each kind" in text
    assert "Head 4.10   queries × keys: 12 × 12" in text
    assert "coffee" in cells_of(tmp_path / "head.xlsx")
    text = qkv("watch", file, "--only", "*.3.*", "--all").out
    assert "6 calls" not in text
    assert "Every head" in text
    ended = qkv("watch", file, "--only", "decoder*")
    assert (ended.code, ended.out) == (2, "")
    assert "no module matches 'decoder*'" in ended.err


def test_only_the_modules_that_are_asked_for_are_recorded(qkv, minilm):
    ended = qkv("watch", "--model", "minilm", "a b", "--only", "*.3.*")
    assert ended.out.startswith("minilm: 4 tokens, 1 attention, 12 heads\n")
    ended = qkv("watch", "--model", "minilm", "a b", "--only", "decoder*")
    assert (ended.code, ended.out) == (2, "")
    assert "only='decoder*' matches none" in ended.err


def test_what_no_decoder_can_do_is_refused(qkv, minilm):
    ended = qkv("watch", "--model", "minilm", "a b", "--max-tokens", "3")
    assert (ended.code, ended.out) == (2, "")
    assert "--max-tokens lets a decoder write on, such as smollm2; minilm is none" in ended.err


def test_a_generation_is_one_matrix(qkv, smollm2_file):
    ended = qkv("watch", "The capital of France is", "--model", "smollm2", "--max-tokens", 4,
                "--json")  # fmt: skip
    told = json.loads(ended.out)
    assert told["written"].startswith(" Paris.")
    tokens = told["tokens"]["decoder"]
    assert tokens[:6] == ["The", "capital", "of", "France", "is", "Paris"]
    assert len(told["attentions"]) == 30
    for one in told["attentions"]:
        assert (one["calls"], one["heads"], one["kv_heads"]) == (4, 9, 3)
        assert (one["queries"], one["keys"], one["mask"]) == (8, 8, "causal")
        assert one["error_eps"] <= 16
    assert len(tokens) == 8


def test_of_two_towers_each_side_has_its_own_tokens(qkv, tmp_path, monkeypatch):
    reading = opened(marian, tmp_path)[0]
    reading.model._tokenizer = speller()
    monkeypatch.setattr("qkv.explaining.inputs.load", lambda name: reading.model)
    monkeypatch.setattr("qkv.explaining.inputs.find", lambda name: tmp_path)
    command = ("watch", "the sky is blue", "--model", tmp_path, "--output", "el cielo azul")
    told = json.loads(qkv(*command, "--json").out)
    source, target = ["the", "sky", "is", "blue", "</s>"], ["<s>", "el", "cielo", "azul"]
    assert told["tokens"] == {"encoder": source, "decoder": target}
    number = next(
        one["attention"] for one in told["attentions"] if one["path"].endswith("layers.1.cross")
    )
    ended = qkv(*command, "--head", f"{number}.2", "--excel", tmp_path / "cross.xlsx", "--json")
    assert (ended.code, ended.err) == (0, "")
    head = json.loads(ended.out)["head"]
    assert (head["queries"], head["keys"]) == (target, source)
    rows = qkv(*command, "--head", f"{number}.2").out.split("queries × keys: 4 × 5\n\n")[1]
    assert rows.splitlines()[0].split() == source
    assert [row.split()[0] for row in rows.splitlines()[1:5]] == target
    assert {*source, *target} <= cells_of(tmp_path / "cross.xlsx")
    assert qkv(*command).code == 0


def test_a_script_runs_as_it_is_and_its_attention_is_told(qkv, script):
    path = script(ENCODER)
    wanted = subprocess.run(
        [sys.executable, path, "5"], capture_output=True, text=True, check=True
    ).stdout
    ended = qkv("watch", path, "5")
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.startswith(wanted)
    report = ended.out.removeprefix(wanted)
    assert "Attention in script.py: 4 calls of 2 attentions" in report
    assert "  1  TransformerEncoder.layers.0" in report
    assert "script.py:13, " in report
    assert "4 heads of 8; 7 queries look at 7 keys, 3 examples at once" in report
    assert "mask: 0 to 3 keys hidden" in report
    assert report.count("recomputed") == 1
    assert "NOT" not in report


def test_with_json_stdout_is_one_object_and_the_script_speaks_on_stderr(qkv, script):
    ended = qkv("watch", "--json", "--head", "2.4", script(ENCODER), "5")
    told = json.loads(ended.out)
    assert ended.err.startswith("mean ")
    assert told["script"] == "script.py"
    assert [one["calls"] for one in told["attentions"]] == [2, 2]
    assert np.array(told["head"]["weights"]).sum(1) == pytest.approx(np.ones(7), abs=1e-5)


def test_a_head_that_is_not_there_does_not_cost_what_a_script_took_long_to_do(qkv, script):
    path = script(ENCODER)
    command = ("watch", "--head", "3.1", "--save", "seen.safetensors")
    ended = qkv(*command, path, "5")
    assert ended.code == 2
    assert "4 calls of 2 attentions" in ended.out
    assert "the attentions are 1 TransformerEncoder.layers.0, 2 Trans" in ended.err
    assert len(Recording.load("seen.safetensors")) == 4
    ended = qkv(*command, "--json", path, "5")
    told = json.loads(ended.out)
    assert (ended.code, told["head"], told["saved"]) == (2, None, "seen.safetensors")
    assert len(told["attentions"]) == 2


def test_of_what_runs_often_the_first_call_is_drawn_and_said_to_be(qkv, script):
    told = qkv("watch", "--head", "2.1", script(ENCODER), "5").out
    assert "queries × keys: 7 × 7, the first example, the first of 2 calls" in told


def test_training_is_told_as_self_attention(qkv, script):
    path = script("""
        import torch
        from torch import nn

        layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
        optimizer = torch.optim.SGD(layer.parameters(), 0.1)
        for _ in range(3):
            layer(torch.randn(2, 7, 32)).square().mean().backward()
            optimizer.step()
        """)
    told = json.loads(qkv("watch", "--json", path).out)
    (attention,) = told["attentions"]
    assert (attention["path"], attention["calls"]) == ("TransformerEncoderLayer.self_attn", 3)
    assert attention["kind"] == "self"


def test_options_behind_a_script_are_its_own(qkv, script):
    path = script("import sys; print(sys.argv)")
    ended = qkv("watch", path, "--json", "--model", "x", "--help")
    assert ended.out == "['script.py', '--json', '--model', 'x', '--help']\n"


@pytest.mark.parametrize(
    ("end", "code", "last"),
    [
        ("sys.exit(7)", 7, ""),
        ("raise ValueError('mine')", 1, "ValueError: mine\n"),
        ("raise KeyboardInterrupt", 130, "KeyboardInterrupt\n"),
        ("encoder(x[..., 1:])", 1, ""),
        ("x[0] @ x[0]", 1, ""),
    ],
)
def test_however_a_script_ends_what_was_recorded_is_told(qkv, script, end, code, last):
    ended = qkv("watch", script(f"{ENCODER}\n    {end}\n"), "5")
    assert ended.code == code
    assert "4 calls of 2 attentions" in ended.out
    assert ended.err.endswith(last)
    if code == 1:
        assert ended.err.startswith("Traceback (most recent call last):\n")
        assert ended.err.splitlines()[1].endswith('/script.py", line 16, in <module>')
    assert "qkv/recording" not in ended.err
    assert "own_script" not in ended.err


@pytest.mark.parametrize("end", ["", "sys.exit()", "sys.exit(0)", "raise SystemExit"])
def test_a_head_that_is_not_there_is_an_error_where_the_script_ended_well(qkv, script, end):
    ended = qkv("watch", "--head", "99.1", script(f"{ENCODER}\n    {end}\n"), "5")
    assert ended.code == 2
    assert "99" in ended.err


def test_where_nothing_attends_what_came_nearest_is_told_and_the_status_kept(qkv, script):
    path = script("""
        import torch
        x = torch.randn(5, 5)
        print((x.softmax(-1) @ torch.randn(5, 3)).shape)
        raise SystemExit(4)
        """)
    ended = qkv("watch", path)
    assert (ended.code, ended.out) == (4, "torch.Size([5, 3])\n")
    assert ended.err.startswith("qkv: no attention of script.py was recorded.")
    ended = qkv("watch", "--json", path)
    told = json.loads(ended.out)
    assert told["attentions"] == []
    assert "no attention" in told["missed"]
    assert {"script", "attentions", "head", "notes", "workbook", "saved"} < told.keys()


def test_of_a_long_run_the_first_calls_are_kept_and_all_counted(qkv, script, monkeypatch):
    monkeypatch.setattr("qkv.cli.watched_script.BUDGET", 0)
    ended = qkv("watch", "--save", "seen.safetensors", script(ENCODER), "5")
    assert "4 calls of 2 attentions" in ended.out
    assert len(Recording.load("seen.safetensors")) == 2


def test_a_module_that_is_called_several_times_in_a_run_is_several_attentions(qkv, script):
    path = script("""
        import torch
        from torch import nn
        from torch.nn.functional import scaled_dot_product_attention

        class Shared(nn.Module):
            def __init__(self):
                super().__init__()
                self.inner = nn.MultiheadAttention(8, 2, batch_first=True)

            def forward(self, x):
                for _ in range(3):
                    x = self.inner(x, x, x)[0]
                return x

        model = Shared()
        for _ in range(4):
            model(torch.randn(2, 5, 8)).square().mean().backward()
        for _ in range(7):
            q = torch.randn(1, 2, 5, 8)
            scaled_dot_product_attention(q, q, q, is_causal=True)
        """)
    told = json.loads(qkv("watch", "--json", path).out)["attentions"]
    assert [(one["path"], one["calls"]) for one in told] == [
        *((f"Shared.inner[{i}]", 4) for i in range(3)), ("(in no module)", 7),
    ]  # fmt: skip
    assert [one["mask"] for one in told] == ["all open"] * 3 + ["causal"]
    assert "Attention in script.py: 19 calls of 4 attentions" in qkv("watch", path).out


def test_numbers_that_are_none_are_said_to_be_none(qkv, script):
    path = script("""
        import torch
        from torch.nn.functional import scaled_dot_product_attention

        q = torch.randn(1, 2, 5, 8)
        k = q.clone()
        k[0, 0, 3] = float("nan")
        scaled_dot_product_attention(q, k, q)
        """)
    assert "not recomputed: there is NaN or ∞ in it" in qkv("watch", path).out
    (told,) = json.loads(qkv("watch", "--json", path).out)["attentions"]
    assert told["error"] is None


def test_what_a_terminal_would_obey_is_shown_as_text(qkv, script, tmp_path):
    path = tmp_path / "[bold]\x1b[31mx.py"
    path.write_text(textwrap.dedent(ENCODER), "utf-8")
    told = qkv("watch", path, "5").out
    assert "\x1b" not in told
    assert "[bold]�[31mx.py" in told


PAGE = (Path(__file__).parents[2] / "docs" / "watch_command.md").read_text("utf-8")
NUMBER = re.compile(r"\d+\.\d+")
LINE = re.compile(r"(?<=\.py:)\d+")


def shown(command: str) -> str:
    """What the page shows below a command."""
    block = PAGE.split(f"    {command}\n\n")[1]
    lines = itertools.takewhile(lambda line: not line or line.startswith("    "), block.split("\n"))
    return textwrap.dedent("\n".join(lines)).strip("\n")


def compare(printed: str, page: str) -> None:
    """Raise where they differ in more than a last place: machines round differently."""
    for ours, told in zip(printed.strip("\n").split("\n"), page.split("\n"), strict=True):
        if ours.strip().startswith("recomputed"):
            assert told.strip().startswith("recomputed")
            continue
        one, other = LINE.sub("#", ours), LINE.sub("#", told)  # source files grow
        assert NUMBER.sub("#", one) == NUMBER.sub("#", other)
        numbers = ([float(x) for x in NUMBER.findall(line)] for line in (one, other))
        np.testing.assert_allclose(*numbers, atol=0.0101)


def test_the_page_shows_what_is_printed(qkv, minilm, smollm2_file, tmp_path, monkeypatch):
    compare(qkv("watch", "--model", "minilm", TEXT).out,
            shown(f'qkv watch --model minilm "{TEXT}"'))  # fmt: skip
    sentence = "The capital of France is"
    compare(qkv("watch", "--model", "smollm2", sentence, "--head", "3.5").out,
            shown(f'qkv watch --model smollm2 "{sentence}" --head 3.5'))  # fmt: skip
    monkeypatch.chdir(tmp_path)
    code = re.search(r"```python\n(import argparse.*?)```", PAGE, re.DOTALL)[1]
    Path("classify.py").write_text(code, "utf-8")
    compare(qkv("watch", "classify.py", "--sentences", "3").out,
            shown("qkv watch classify.py --sentences 3"))  # fmt: skip
