"""What a workbook gives back: the inputs, as they were or as a person has changed them."""

import zipfile

import numpy as np
import pytest
import torch
from openpyxl import load_workbook

from qkv.errors import FileError
from qkv.nn.attention import Attention, MultiHeadAttention, SelfAttention
from qkv.show.reading import read_inputs
from qkv.show.sheets import LEFT, addresses, lay_out
from tests.show import libreoffice

WORDS = ["draw", "=a", "<b>", "4"]


@pytest.fixture
def calculation():
    torch.manual_seed(3)
    layer = MultiHeadAttention(3, num_heads=2, d_k=5, d_v=2, n_out=3, bias=True)
    return layer.explain(torch.randn(4, 3), mask=True, tokens=WORDS)


def edited(path, change):
    book = load_workbook(path)
    change(book)
    book.save(path)


def assert_same(inputs, calculation, rtol=1e-15):
    given = {step.name: step for step in calculation if step.operation == "given"}
    assert list(inputs.values) == list(given)
    assert {"inputs/encodings", "inputs/mask", "head 2/WK", "head 1/bQ"} <= set(given)
    for name, step in given.items():
        np.testing.assert_allclose(inputs.values[name], step.value, rtol=rtol, err_msg=name)
        assert inputs.rows[name] == step.rows, name


def test_every_given_matrix_comes_back_as_the_calculation_holds_it(tmp_path, calculation):
    calculation.to_excel(tmp_path / "c.xlsx", minus_infinity=-1e23)
    inputs = read_inputs(tmp_path / "c.xlsx")
    assert_same(inputs, calculation)
    assert inputs.values["head 2/WK"].shape == (5, 3)
    assert inputs.values["inputs/mask"][0, 1] == -np.inf
    assert inputs.rows["inputs/encodings"] == tuple(WORDS)


def test_constants_come_back_apart_from_the_matrices(tmp_path):
    torch.manual_seed(3)
    c = SelfAttention(3, scale=0.3, softcap=5.0).explain(torch.randn(2, 3))
    c.to_excel(tmp_path / "c.xlsx")
    at = addresses(lay_out(c))
    edited(tmp_path / "c.xlsx", lambda book: _put(book, at["cap"], 7.5))
    inputs = read_inputs(tmp_path / "c.xlsx")
    assert inputs.constants == {"scale": pytest.approx(0.3), "cap": 7.5}
    assert list(inputs.values) == ["encodings", "WQ", "WK", "WV"]


def test_the_constants_of_every_head_come_back(tmp_path, calculation):
    calculation.to_excel(tmp_path / "c.xlsx")
    constants = read_inputs(tmp_path / "c.xlsx").constants
    assert constants == pytest.approx({"head 1/√d_k": 5**0.5, "head 2/√d_k": 5**0.5})


def _put(book, place, value):
    book[place.sheet].cell(place.top + 1, LEFT + 1).value = value


def test_float32_inputs_come_back_exactly(tmp_path, calculation):
    calculation.to_excel(tmp_path / "c.xlsx")
    got = read_inputs(tmp_path / "c.xlsx").values["head 1/WQ"].astype(np.float32)
    assert (got == calculation["head 1/WQ"].astype(np.float32)).all()


def test_they_come_back_after_libreoffice_saved_the_workbook(tmp_path, calculation):
    libreoffice.soffice()
    calculation.to_excel(tmp_path / "c.xlsx")
    (saved,) = libreoffice.recalculated(tmp_path / "c.xlsx")
    assert_same(read_inputs(saved), calculation, rtol=1e-14)  # it writes 15 digits


def test_changed_cells_come_back_changed(tmp_path, calculation):
    calculation.to_excel(tmp_path / "c.xlsx")
    at = addresses(lay_out(calculation))

    def change(book):
        for name, row, column, value in (
            ("inputs/encodings", 1, 2, 7.5),
            ("inputs/mask", 0, 3, 0),
            ("inputs/mask", 3, 0, -1e21),
            ("head 2/WK", 2, 4, -3),  # printed transposed: row 2, column 4 is WK[4, 2]
        ):
            place = at[name]
            book[place.sheet].cell(place.top + row + 1, LEFT + column + 1).value = value
        book["inputs"].cell(at["inputs/encodings"].top + 1, 1).value = 12

    edited(tmp_path / "c.xlsx", change)
    inputs = read_inputs(tmp_path / "c.xlsx")
    assert inputs.values["inputs/encodings"][1, 2] == 7.5
    assert inputs.values["inputs/mask"][0, 3] == 0
    assert inputs.values["inputs/mask"][3, 0] == -np.inf
    assert inputs.values["head 2/WK"][4, 2] == -3
    assert inputs.rows["inputs/encodings"] == ("12", *WORDS[1:])


def test_keys_and_queries_of_different_lengths_come_back(tmp_path):
    torch.manual_seed(3)
    c = Attention(3).explain(torch.randn(2, 3), torch.randn(5, 3), tokens=["un", "mapa"])
    c.to_excel(tmp_path / "c.xlsx")
    inputs = read_inputs(tmp_path / "c.xlsx")
    assert list(inputs.values) == ["query encodings", "key encodings", "WQ", "WK", "WV"]
    np.testing.assert_allclose(inputs.values["key encodings"], c["key encodings"], rtol=1e-15)


@pytest.mark.parametrize(
    ("value", "says"),
    [(None, "is empty"), ("seven", "holds 'seven'"), (True, "holds True")],
)
def test_a_cell_without_a_number_is_named(tmp_path, calculation, value, says):
    calculation.to_excel(tmp_path / "c.xlsx")

    def change(book):
        book["head 2"]["D6"].value = value

    edited(tmp_path / "c.xlsx", change)
    message = rf"c\.xlsx: D6 of sheet 'head 2' \(head 2/WQ\) {says}; wanted a number"
    with pytest.raises(FileError, match=message):
        read_inputs(tmp_path / "c.xlsx")


def test_a_renamed_sheet_is_named(tmp_path, calculation):
    calculation.to_excel(tmp_path / "c.xlsx")

    def change(book):
        book["head 2"].title = "second"

    edited(tmp_path / "c.xlsx", change)
    with pytest.raises(FileError, match=r"no sheet 'head 2'.* it has: about, inputs, head 1"):
        read_inputs(tmp_path / "c.xlsx")


def test_a_workbook_of_somebody_else_is_refused(tmp_path):
    from openpyxl import Workbook

    book = Workbook()
    book.save(tmp_path / "theirs.xlsx")
    with pytest.raises(FileError, match="no sheet 'about', so it is no workbook of ours"):
        read_inputs(tmp_path / "theirs.xlsx")
    book.create_sheet("about")["A1"] = "about what"
    book.save(tmp_path / "theirs.xlsx")
    with pytest.raises(FileError, match="no table of inputs on its sheet 'about'"):
        read_inputs(tmp_path / "theirs.xlsx")


def test_what_is_no_workbook_is_refused(tmp_path):
    with pytest.raises(FileError, match=r"absent\.xlsx cannot be read: No such file"):
        read_inputs(tmp_path / "absent.xlsx")
    with pytest.raises(FileError, match=r"cannot be read: Is a directory"):
        read_inputs(tmp_path)
    (tmp_path / "text.xlsx").write_text("not a workbook")
    with pytest.raises(FileError, match=r"text\.xlsx is not a workbook"):
        read_inputs(tmp_path / "text.xlsx")
    with zipfile.ZipFile(tmp_path / "other.xlsx", "w") as archive:
        archive.writestr("hello.txt", "hello")
    with pytest.raises(FileError, match=r"other\.xlsx is not a workbook"):
        read_inputs(tmp_path / "other.xlsx")


def test_a_truncated_workbook_is_refused(tmp_path, calculation):
    calculation.to_excel(tmp_path / "c.xlsx")
    data = (tmp_path / "c.xlsx").read_bytes()
    (tmp_path / "c.xlsx").write_bytes(data[: len(data) // 2])
    with pytest.raises(FileError, match="is not a workbook"):
        read_inputs(tmp_path / "c.xlsx")
