"""Kinds of heads in a grid, measures in a table: as wide as the terminal, paths as text."""

import pytest

from qkv.show.head_table import COLUMNS, SIGNS, grid, table
from qkv.weights.summary import HeadSummary


def summary(kind="broad", measure=0.61, path="encoder.layers.0.attention", **measures):
    every = {name: 0.125 + i for i, name in enumerate(COLUMNS)} | measures
    return HeadSummary(path=path, layer=0, head=0, kind=kind, measure=measure, **every)


def test_each_head_has_the_letter_of_its_kind_and_the_legend_counts_them():
    attentions = [
        ("1", [summary("previous token"), summary("broad")]),
        ("12", [summary("broad"), summary("focused")]),
    ]
    assert [line.plain for line in grid(attentions, 100)] == [
        "     1  2",
        " 1   P  B",
        "12   B  .",
        "",
        "P previous token 1   B broad 2   . focused 1",
    ]


def test_heads_that_do_not_fit_go_on_in_the_next_line():
    lines = [line.plain for line in grid([("1", [summary(kind) for kind in SIGNS] * 5)], 60)]
    assert max(map(len, lines[:4])) <= 60
    assert [line.split()[0] for line in lines[1:4]] == ["1", "F", "I"]
    assert "".join(lines[1:4]).replace(" ", "")[1:] == "PFISWNB.?" * 5


def test_the_table_shows_every_measure_below_its_name():
    told = [line.plain for line in table([("10.12", summary())], 100)]
    head, row = told
    assert head.split() == ["head", "kind", "measure", *COLUMNS.values()]
    numbers = [f"{0.125 + i:.2f}" for i in range(len(COLUMNS))]
    assert row.split() == ["10.12", "broad", "0.61", *numbers]
    ends = [head.index(above) + len(above) for above in COLUMNS.values()]
    assert all(row[:end].endswith(number) for end, number in zip(ends, numbers, strict=True))


def test_what_was_not_measured_has_no_column_and_paths_stand_where_there_is_room():
    unknown = dict.fromkeys(("separators", "same", "induction"))
    heads = [("1.1", summary(**unknown, path="[bold]x[/bold]\x1b[31m"))]
    head, row = (line.plain for line in table(heads, 160))
    assert "sep." not in head
    assert head.endswith("where")
    assert row.endswith("[bold]x[/bold]�[31m")


@pytest.mark.parametrize("width", [60, 61, 79, 80, 100, 160])
def test_columns_that_do_not_fit_are_named_below(width):
    told = [line.plain for line in table([("1.1", summary(path="x" * 200))], width)]
    assert max(map(len, told)) <= max(width, 67)
    shown = told[0].split()[3:]
    left_out = told[2].split("also: ")[1].split(", ") if len(told) > 2 else []
    assert [*shown, *left_out][: len(COLUMNS)] == list(COLUMNS.values())


def test_nothing_is_no_mistake():
    assert [line.plain.strip() for line in grid([], 100)] == ["", "", ""]
    assert len(list(table([], 100))) == 1
