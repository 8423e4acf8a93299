"""A Calculation in the terminal; the golden text is what a reader of the article expects."""

import re
from pathlib import Path

import pytest
import torch

from qkv import Mask, MultiHeadAttention, SelfAttention
from qkv.core.calculation import Calculation
from qkv.show.terminal import Window, text

C = torch.tensor([[1.16, 0.23], [0.57, 1.36], [4.41, -2.16]])
GOLDEN = Path(__file__).parent / "golden"


def article(**options) -> Calculation:
    torch.manual_seed(42)
    return SelfAttention(2).explain(C, tokens=["draw", "a", "map"], **options)


def test_print_shows_every_step_of_draw_a_map_as_the_golden_text():
    assert str(article()) == (GOLDEN / "draw_a_map.txt").read_text(encoding="utf-8").rstrip("\n")


def test_blocked_entries_are_printed_as_minus_infinity():
    c = MultiHeadAttention(2).explain(C, mask=Mask.causal())
    lines = text(c["inputs"]).splitlines()
    assert lines[-3].split() == ["1", "0", "-∞", "-∞"]
    assert lines[-1].split() == ["3", "0", "0", "0"]


def test_of_a_large_matrix_the_corner_is_shown_and_what_was_left_out_is_said():
    c = SelfAttention(40).explain(torch.randn(30, 40))
    told = text(c, Window(width=60, rows=5))
    assert "… the corner of 30 × 40: 5 rows, 6 columns; all of it: c['encodings'], --json," in told
    named = re.findall(r"all of it: c\['(.+)'\]", told)
    assert named == [step.name for step in c if max(step.value.shape) > 5]
    assert all(c[name].shape == c.step(name).value.shape for name in named)


@pytest.mark.parametrize("width", [30, 60, 100])
def test_matrices_keep_to_the_width_of_the_terminal(width):
    c = SelfAttention(17, d_k=17, d_v=17).explain(torch.randn(13, 17))
    rows = [
        line for line in text(c, Window(width=width)).splitlines() if line[:2].strip().isdigit()
    ]
    assert rows
    assert max(map(len, rows)) <= width


def test_many_heads_fold_into_one_that_is_shown_and_the_others_named():
    c = MultiHeadAttention(6, num_heads=5).explain(torch.randn(4, 6))
    told = str(c)
    assert "── head 1 ──" in told
    assert "── head 5 (the same steps as head 1; print it with c['head 5'])" in told
    assert told.count("similarities") == 1


def test_tokens_are_text_whatever_they_hold():
    tokens = ["[bold]x[/bold]", "=1+1", "\x1b[31mred\n"]
    torch.manual_seed(42)
    told = str(SelfAttention(2).explain(C, tokens=tokens))
    assert "[bold]x[/bold]" in told
    assert "\x1b" not in told
    assert "=1+1" in told


def test_wide_characters_keep_the_columns_straight():
    torch.manual_seed(42)
    told = str(SelfAttention(2).explain(C, tokens=["日本", "é", "map"]))
    first, second = [line for line in told.splitlines() if line.startswith(("日本", "é"))][:2]
    assert first.index("1.1600") == second.index("0.5700") - 2  # two characters take four cells
