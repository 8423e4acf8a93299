"""The formula of one cell, operation by operation; LibreOffice computes them in another file."""

import re

import numpy as np
import pytest

from qkv.core.calculation import Step
from qkv.core.operations import INPUTS, SELECTING, Operation
from qkv.show.formulas import FORMULAS, check, formula
from qkv.show.sheets import Place

X = Place("head 1", top=4, rows=3, columns=2)  # C5:D7
Y = Place("head 1", top=9, rows=2, columns=3)  # C10:E11
ROW = Place("head 1", top=20, rows=1, columns=2)
COLUMN = Place("head 1", top=25, rows=3, columns=1)
NUMBER = Place("head 1", top=30, rows=1, columns=1)
WIDE = Place("head 1", top=40, rows=3, columns=5)  # C41:G43
TALL = Place("head 1", top=50, rows=5, columns=3)  # C51:E55


def step(operation: Operation, selection: tuple[int, ...] = ()) -> Step:
    return Step("s", "S", operation, (), np.zeros((1, 1)), ("1",), ("1",), "", selection)


@pytest.mark.parametrize(
    ("operation", "operands", "cell", "wanted"),
    [
        (Operation.TRANSPOSE, [X], (1, 2), "=D7"),
        (Operation.PRODUCT, [X, Y], (0, 1), "=C5*D10+D5*D11"),
        (Operation.PRODUCT, [WIDE, TALL], (2, 1), "=MMULT(C43:G43,D51:D55)"),
        (Operation.PRODUCT_TRANSPOSED, [X, X], (0, 2), "=C5*C7+D5*D7"),
        (Operation.PRODUCT_TRANSPOSED, [WIDE, WIDE], (0, 2), "=SUMPRODUCT(C41:G41,C43:G43)"),
        (Operation.ADD, [X, X], (1, 1), "=D6+D6"),
        (Operation.ADD, [X, ROW], (1, 1), "=D6+D21"),
        (Operation.SUBTRACT, [X, COLUMN], (1, 1), "=D6-C27"),
        (Operation.MULTIPLY, [X, NUMBER], (2, 1), "=D7*C31"),
        (Operation.DIVIDE, [X, COLUMN], (2, 0), "=IF(AND(C7=0,C28=0),0,C7/C28)"),
        (Operation.ROW_MAXIMUM, [X], (1, 0), "=IF(MAX(C6:D6)<=-1E+20,0,MAX(C6:D6))"),
        (Operation.ROW_SUM, [X], (2, 0), "=SUM(C7:D7)"),
        (Operation.ROW_MEAN, [X], (2, 0), "=SUM(C7:D7)/2"),
        (Operation.EXPONENTIAL, [X, COLUMN], (1, 1), "=IF(D6<=-1E+20,0,EXP(D6-C27))"),
        (Operation.SQUARE, [X], (0, 1), "=D5*D5"),
        (Operation.SQUARE_ROOT, [X], (0, 1), "=SQRT(D5)"),
        (Operation.TANH, [X], (0, 1), "=TANH(D5)"),
        (Operation.SIGMOID, [X], (0, 0), "=IF(C5>=0,1/(1+EXP(-C5)),EXP(C5)/(1+EXP(C5)))"),
        (Operation.RELU, [X], (0, 1), "=MAX(0,D5)"),
        (Operation.ERF, [X], (0, 1), "=ERF(D5)"),
        (Operation.CONCATENATE, [X, WIDE], (1, 1), "=D6"),
        (Operation.CONCATENATE, [X, WIDE], (1, 2), "=C42"),
        (Operation.ROTATE_HALVES, [Place("head 1", 4, 3, 4)], (0, 1), "=-F5"),
        (Operation.ROTATE_HALVES, [Place("head 1", 4, 3, 4)], (0, 2), "=C5"),
        (Operation.ROTATE_PAIRS, [Place("head 1", 4, 3, 4)], (0, 2), "=-F5"),
        (Operation.ROTATE_PAIRS, [Place("head 1", 4, 3, 4)], (0, 3), "=E5"),
    ],
)
def test_a_cell_of_an_operation_is_this_formula(operation, operands, cell, wanted):
    assert formula(step(operation), operands, *cell) == wanted


def test_a_selection_takes_the_columns_or_rows_it_names():
    assert formula(step(Operation.COLUMNS, (4, 0)), [WIDE], 1, 0) == "=G42"
    assert formula(step(Operation.ROWS, (2, 1)), [WIDE], 0, 3) == "=F43"


def test_every_computed_operation_has_a_formula_and_no_other_has():
    assert set(FORMULAS) | SELECTING == set(Operation) - INPUTS
    assert not set(FORMULAS) & (SELECTING | INPUTS)


def test_a_weight_printed_transposed_is_read_down_its_columns():
    printed = Place("head 1", top=60, rows=3, columns=5, transposed=True)  # C61:E65
    assert printed.whole() == "C61:E65"
    assert (printed.height, printed.width) == (5, 3)
    wanted = "=MMULT(C41:G41,E61:E65)"
    assert formula(step(Operation.PRODUCT_TRANSPOSED), [WIDE, printed], 0, 2) == wanted
    short = Place("head 1", top=60, rows=3, columns=2, transposed=True)
    wanted = "=C5*E61+D5*E62"
    assert formula(step(Operation.PRODUCT_TRANSPOSED), [X, short], 0, 2) == wanted


def test_cells_of_another_sheet_are_addressed_by_its_quoted_name():
    there = Place("Ann's head", top=4, rows=3, columns=5).seen_from("head 1")
    wanted = "=SUM('Ann''s head'!C6:G6)"
    assert formula(step(Operation.ROW_SUM), [there], 1, 0) == wanted


def test_dividing_by_a_constant_needs_no_guard():
    root = Place("head 1", top=30, rows=1, columns=1, nonzero=True)
    assert formula(step(Operation.DIVIDE), [X, root], 2, 1) == "=D7/C31"


def test_long_sums_over_cells_to_fill_in_are_spelled_out_since_mmult_refuses_empty_ones():
    empty = Place("head 1", top=40, rows=3, columns=5, blank=True)
    got = formula(step(Operation.PRODUCT), [empty, TALL], 0, 0)
    assert got == "=C41*C51+D41*C52+E41*C53+F41*C54+G41*C55"


def test_a_check_is_the_largest_distance_of_a_row():
    recorded = Place("PyTorch head 1", top=4, rows=3, columns=2).seen_from("head 1")
    wanted = "=SUMPRODUCT(MAX(ABS(C6:D6-'PyTorch head 1'!C6:D6)))"
    assert check(X, recorded, 1) == wanted


def test_a_check_of_cells_to_fill_in_says_so_until_the_row_is_full():
    empty = Place("head 1", top=4, rows=3, columns=2, blank=True)
    assert check(empty, X, 0).startswith('=IF(COUNT(C5:D5)<2,"fill in",SUMPRODUCT(')


def test_only_functions_that_all_spreadsheets_share_are_used():
    allowed = {
        "SUM", "SUMPRODUCT", "MMULT", "MAX", "EXP", "SQRT", "TANH", "IF", "AND", "ABS", "ERF",
        "COUNT",
    }  # fmt: skip
    square = Place("head 1", top=4, rows=6, columns=6)
    texts = [check(square, square, 0, blocks=True), check(Place("a", 4, 2, 2, blank=True), X, 0)]
    for operation in FORMULAS:
        for count in (1, 2):
            try:
                texts.append(formula(step(operation), [square] * count, 1, 1))
            except TypeError:
                continue
    used = {name for text in texts for name in re.findall(r"([A-Z.]+)\(", text)}
    assert used == allowed
    assert not any("SUM(EXP" in text for text in texts)
