"""What is in a workbook as it was written, before anything recalculates it."""

import os
import re
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from openpyxl import load_workbook

from qkv import explain
from qkv.core import proof
from qkv.core.calculation import Calculation
from qkv.core.operations import Operation
from qkv.core.working import Working
from qkv.errors import ArgumentError, FileError, NameNotFoundError
from qkv.nn.attention import Attention, MaskedSelfAttention, MultiHeadAttention, SelfAttention
from qkv.show import checks, workbook
from qkv.show.sheets import LEFT, addresses, lay_out
from tests.show import libreoffice

WORDS = ["draw", "a", "map"]
ENCODINGS = torch.tensor([[1.16, 0.23], [0.57, 1.36], [4.41, -2.16]])
HOSTILE = ["=1+1", "<script>alert(1)</script>", "@SUM(A1)", "+1", "-2", "http://x.y", "&amp;", "7"]


def masked(tokens: list[str] = WORDS) -> Calculation:
    torch.manual_seed(42)
    return MaskedSelfAttention(2, mask=True).explain(ENCODINGS, tokens=tokens)


def two_heads() -> Calculation:
    torch.manual_seed(42)
    layer = MultiHeadAttention(2, num_heads=2, n_out=2)
    return layer.explain(ENCODINGS, mask=True, tokens=WORDS)


def product(rows: int, section: str = "", columns: int = 3) -> Calculation:
    w = Working("A product")
    x = w.given("x", torch.ones(rows, 3), symbol="X")
    w.step(Operation.PRODUCT_TRANSPOSED, f"{section}first", x, x, symbol="X Xᵀ")
    y = w.given("y", torch.ones(3, columns), symbol="Y")
    w.step(Operation.PRODUCT, "last/second", x, y, symbol="X Y")
    return w.finish()


def written(calculation: Calculation, folder: Path, **options: object):
    path = folder / "c.xlsx"
    workbook.write(calculation, path, **options)
    return load_workbook(path)


def cell(book, place, row: int, column: int):
    return book[place.sheet].cell(place.top + row + 1, LEFT + column + 1)


def test_beside_every_formula_stands_its_value(tmp_path):
    c = two_heads()
    workbook.write(c, tmp_path / "c.xlsx")
    shown = libreoffice.matrices(tmp_path / "c.xlsx", c)
    for name, value in proof.replay(c.steps).items():
        wanted = np.where(value == -np.inf, -1e30, value)
        np.testing.assert_allclose(shown[name], wanted, rtol=1e-15, err_msg=name)
    libreoffice.assert_agrees(tmp_path / "c.xlsx", c)


def test_every_computed_cell_is_a_formula_and_every_given_one_a_number(tmp_path):
    c = two_heads()
    book = written(c, tmp_path)
    for sheet in lay_out(c):
        for step, place in sheet.blocks:
            for i in range(place.height):
                for j in range(place.width):
                    kind = cell(book, place, i, j).data_type
                    assert kind == ("n" if step.is_input else "f"), (step.name, i, j)


def test_the_article_s_first_query_number_is_traced_to_the_cells_that_make_it(tmp_path):
    torch.manual_seed(42)
    c = SelfAttention(2).explain(ENCODINGS, tokens=WORDS)
    book = written(c, tmp_path)
    at = addresses(lay_out(c))
    query = cell(book, at["queries"], 0, 0)
    one, two = (cell(book, at["encodings"], 0, k).coordinate for k in (0, 1))
    three, four = (cell(book, at["WQ"], k, 0).coordinate for k in (0, 1))
    assert query.value == f"={one}*{three}+{two}*{four}"
    values = load_workbook(tmp_path / "c.xlsx", data_only=True)
    assert cell(values, at["queries"], 0, 0).value == pytest.approx(0.7621, abs=5e-5)
    assert cell(values, at["WQ"], 1, 0).value == pytest.approx(0.5869, abs=5e-5)
    assert cell(values, at["WQ"], 0, 1).value == pytest.approx(-0.1657, abs=5e-5)


def test_one_sheet_a_section_then_their_twins(tmp_path):
    names = ["inputs", "head 1", "head 2", "projection"]
    book = written(two_heads(), tmp_path)
    assert book.sheetnames == ["about", *names, *(f"PyTorch {name}" for name in names)]
    assert written(masked(), tmp_path).sheetnames == [
        "about", "calculation", "PyTorch calculation",
    ]  # fmt: skip


def test_the_twin_holds_what_pytorch_recorded_at_the_same_addresses(tmp_path):
    c = two_heads()
    book = written(c, tmp_path)
    for sheet in lay_out(c):
        for step, place in sheet.blocks:
            page = book[sheet.twin]
            got = page.cell(place.top + 1, LEFT + 1).value
            if step.is_input:
                assert got is None
            else:
                assert got == pytest.approx(max(step.value[0, 0], -1e30), rel=1e-15)
                corner = page.cell(place.top + place.height, LEFT + place.width).value
                assert corner == pytest.approx(max(step.value[-1, -1], -1e30), rel=1e-15)


def test_names_of_sheets_are_legal_short_and_unique(tmp_path):
    w = Working("Sections")
    sections = [
        "layer 1/head: [1]*?",
        "layer 1/head: [1]*!",
        "a" * 40,
        "a" * 39 + "b",
        "About",
        "/",
    ]
    for section in sections:
        x = w.given(f"{section}/x", torch.ones(2, 2), symbol="X")
        w.step(Operation.SQUARE, f"{section}/square", x, symbol="X²")
    names = written(w.finish(), tmp_path).sheetnames
    assert len(names) == 1 + 2 * len(sections) == len({name.casefold() for name in names})
    assert all(0 < len(name) <= 31 and not re.search(r"[\[\]:*?/\\]", name) for name in names)


@pytest.mark.parametrize("token", HOSTILE)
def test_text_from_outside_is_a_string_and_never_a_formula_or_link(tmp_path, token):
    c = masked([token, "a", "map"])
    book = written(c, tmp_path)
    for name in ("encodings", "weights"):
        place = addresses(lay_out(c))[name]
        label = book[place.sheet].cell(place.top + 1, 1)
        assert (label.value, label.data_type, label.hyperlink) == (token, "s", None)
    column = book[place.sheet].cell(place.top, LEFT + 1)
    assert (column.value, column.data_type) == (token, "s")


def test_titles_and_sentences_are_strings_too(tmp_path):
    w = Working("=cmd|'/c calc'!A1")
    x = w.given("=x", torch.ones(2, 2), symbol="=X", says="=1+1")
    w.step(Operation.SQUARE, "@y", x, symbol="=X²", says="+1")
    book = written(w.finish(), tmp_path)
    assert book["about"]["A1"].value == "=cmd|'/c calc'!A1"
    formulas = [
        c.value for page in book for row in page.iter_rows() for c in row if c.data_type == "f"
    ]
    assert not any(text in f for text in ("cmd", "=x", "1+1=") for f in formulas)
    assert {re.match(r"=(\w+|')", f)[1] for f in formulas} == {
        "'", "B9", "C6", "C7", "D6", "D7", "SUMPRODUCT", "COUNTIF", "IF", "MAX",
    }  # fmt: skip


def test_a_lone_surrogate_or_an_endless_token_does_not_stop_it(tmp_path):
    c = masked(["\udcff", "x" * 40_000, "\x07"])
    place = addresses(lay_out(c))["encodings"]
    book = written(c, tmp_path)
    labels = [book[place.sheet].cell(place.top + i, 1).value for i in (1, 2)]
    assert labels[0] == "?"
    assert labels[1] == "x" * 32_766 + "…"


def test_labels_and_checks_stay_in_view_and_it_prints_on_a_page(tmp_path):
    for page in written(two_heads(), tmp_path):
        assert page.page_setup.orientation == "landscape"
        assert page.sheet_properties.pageSetUpPr.fitToPage
        assert page.page_setup.fitToHeight == 0
        if page.title != "about":
            assert page.freeze_panes == "C3"


def test_minus_infinity_is_a_number_that_is_shown_as_minus_infinity(tmp_path):
    c = masked()
    blocked = cell(written(c, tmp_path), addresses(lay_out(c))["mask"], 0, 2)
    assert (blocked.value, blocked.number_format) == (-1e30, '[<=-1E+20]"-∞";0.0000')
    blocked = cell(written(c, tmp_path, minus_infinity=-1e23), addresses(lay_out(c))["mask"], 0, 2)
    assert blocked.value == -1e23
    shown = cell(written(c, tmp_path, places=2), addresses(lay_out(c))["encodings"], 0, 0)
    assert shown.number_format == "0.00"


def test_only_shares_have_a_colour_scale(tmp_path):
    c = masked()
    rules = written(c, tmp_path)["calculation"].conditional_formatting
    scaled = [str(r.sqref) for r in rules if any(x.type == "colorScale" for x in r.rules)]
    assert scaled == [addresses(lay_out(c))["weights"].whole()]


def test_checks_are_green_within_the_tolerance_and_red_beyond(tmp_path):
    c = masked()
    book = written(c, tmp_path)
    looks = {
        (str(rules.sqref), x.formula[0]): x.dxf.fill.bgColor.rgb
        for rules in book["calculation"].conditional_formatting
        for x in rules.rules
        if x.type == "expression"
    }
    computed = [place for step, place in lay_out(c)[0].blocks if not step.is_input]
    assert len(computed) == 11
    for place in computed:
        first, most = f"B{place.top + 1}", f"$B${place.top}"
        cells = f"{first}:B{place.top + 3}"
        assert book["calculation"][f"B{place.top}"].value.endswith(",tolerance)")
        assert looks[cells, f"IF(ISNUMBER({first}),{first}<={most},FALSE)"] == "FFC9E9CF"
        assert looks[cells, f"IF(ISNUMBER({first}),{first}>{most},ISERROR({first}))"] == "FFF6B7B0"
    assert re.fullmatch(r"about!\$B\$\d+", book.defined_names["tolerance"].attr_text)


def test_a_wrong_record_is_red_from_the_first_look(tmp_path):
    c = masked()
    for step in c:
        if step.name == "weights":
            step.value.setflags(write=True)
            step.value[1, 0] += 1e-3
    workbook.write(c, tmp_path / "c.xlsx")
    assert libreoffice.verdict(tmp_path / "c.xlsx") == (1, "of 33 rows")
    shown = libreoffice.row_checks(tmp_path / "c.xlsx", c)["weights"]
    assert shown[1] == pytest.approx(1e-3, rel=1e-3)


def test_a_step_s_tolerance_follows_the_precision_and_the_numbers_that_lead_to_it():
    w = Working("A small product and a large one")
    x = w.given("x", torch.tensor([[3.0, 2.0]]), symbol="X")
    large = w.given("large", torch.tensor([[537.0], [0.0]]), symbol="L")
    square = w.step(Operation.SQUARE, "square", x, symbol="X²")
    w.step(Operation.PRODUCT, "product", square, large, symbol="X² L")
    c = w.finish()
    allowed = checks.tolerances(c, frozenset(), 4)
    eps = float(np.finfo(np.float32).eps)
    for name, largest in {"square": 9, "product": 9 * 537}.items():
        assert 16 * eps * (1 + largest) <= allowed[name] < 2 * 16 * eps * (1 + largest), name


def test_what_is_filled_in_may_be_rounded_and_so_may_what_follows_but_nothing_else():
    c = masked()
    strict = checks.tolerances(c, frozenset(), 2)
    assert max(strict.values()) < 1e-4
    last = checks.tolerances(c, frozenset({"output"}), 2)
    assert last == strict | {"output": 1e-2}
    first = checks.tolerances(c, frozenset({"queries"}), 2)
    assert first["queries"] == 1e-2
    assert first["similarities"] > 1e-2  # queries are at most 0.005 off, keys up to 2.4 large
    assert (first["keys"], first["values"]) == (strict["keys"], strict["values"])


def test_a_wrong_weight_is_red_however_large_the_values_are(tmp_path):
    torch.manual_seed(42)
    c = explain(torch.randn(3, 2), torch.randn(4, 2), torch.tensor([[537.0]] * 4))
    for step in c:
        if step.name == "weights":
            step.value.setflags(write=True)
            step.value[1, 0] += 1e-3
    workbook.write(c, tmp_path / "c.xlsx")
    assert libreoffice.red(tmp_path / "c.xlsx", c)["weights"] == [1]
    book = load_workbook(tmp_path / "c.xlsx", data_only=True)
    place = addresses(lay_out(c))["weights"]
    assert book[place.sheet][place.differing].value == 1
    assert libreoffice.verdict(tmp_path / "c.xlsx")[0] == 1


def test_cells_to_fill_in_are_empty_and_what_follows_waits(tmp_path):
    c = two_heads()
    book = written(c, tmp_path, blank="similarities")
    values = load_workbook(tmp_path / "c.xlsx", data_only=True)
    at = addresses(lay_out(c))
    for head in ("head 1", "head 2"):
        place = at[f"{head}/similarities"]
        assert all(cell(book, place, i, j).value is None for i in range(3) for j in range(3))
        assert cell(values, at[f"{head}/scaled"], 0, 0).value == 0
        assert values[head].cell(place.top + 1, 2).value == "fill in"
    assert values["about"]["C6"].value == "fill in the violet cells"
    assert all(book[f"PyTorch head {h}"].sheet_state == "hidden" for h in (1, 2))


def test_blank_may_name_one_step_by_its_path(tmp_path):
    c = two_heads()
    book = written(c, tmp_path, blank="head 2/similarities")
    at = addresses(lay_out(c))
    assert cell(book, at["head 1/similarities"], 0, 0).value is not None
    assert cell(book, at["head 2/similarities"], 0, 0).value is None


@pytest.mark.parametrize(
    ("blank", "error", "says"),
    [
        ("similarity", NameNotFoundError, "no step is named so; there are: head 1/queries"),
        ("tput", NameNotFoundError, "blank is 'tput'"),
        ("encodings", ArgumentError, "blank is 'encodings', which is given; wanted a computed"),
    ],
)
def test_a_step_that_cannot_be_filled_in_is_refused(tmp_path, blank, error, says):
    with pytest.raises(error, match=re.escape(says)):
        workbook.write(two_heads(), tmp_path / "c.xlsx", blank=blank)
    assert list(tmp_path.iterdir()) == []


def test_more_than_128_tokens_are_refused_with_a_way_out(tmp_path):
    workbook.write(product(128), tmp_path / "fits.xlsx")
    with pytest.raises(ArgumentError, match=r"first has 129 rows.* fewer tokens \(in the command"):
        workbook.write(product(129), tmp_path / "c.xlsx")


def test_several_sections_beyond_20_000_cells_are_refused_with_a_way_out(tmp_path):
    workbook.write(product(100, columns=100), tmp_path / "fits.xlsx")  # 10,000 + 10,000 cells
    c = product(100, columns=101)
    with pytest.raises(ArgumentError, match=r"20,100 computed cells.*c\['last'\]\.to_excel"):
        workbook.write(c, tmp_path / "c.xlsx")
    assert os.listdir(tmp_path) == ["fits.xlsx"]
    c["last"].to_excel(tmp_path / "c.xlsx")  # what the message says to do


def test_one_section_may_hold_more(tmp_path):
    workbook.write(product(100, section="last/", columns=101), tmp_path / "c.xlsx")


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("c.txt", {}, "wanted a name that ends in .xlsx"),
        ("c.xlsx", {"minus_infinity": -1e9}, "minus_infinity is -1e+09; wanted -1e300 to -1e+22"),
        ("c.xlsx", {"minus_infinity": float("-inf")}, "minus_infinity is -inf"),
        ("c.xlsx", {"places": -1}, "places is -1; wanted 0 to 12"),
    ],
)
def test_an_option_that_cannot_be_meant_is_refused(tmp_path, name, options, says):
    with pytest.raises(ArgumentError, match=re.escape(says)):
        workbook.write(masked(), tmp_path / name, **options)
    assert list(tmp_path.iterdir()) == []


def test_a_path_that_cannot_be_written_is_named_and_nothing_is_left(tmp_path):
    missing = tmp_path / "missing" / "c.xlsx"
    with pytest.raises(FileError, match=re.escape(f"{missing} cannot be written: No such file")):
        workbook.write(masked(), missing)
    folder = tmp_path / "folder.xlsx"
    folder.mkdir()
    with pytest.raises(FileError, match=re.escape(f"{folder} cannot be written: it is a folder")):
        workbook.write(masked(), folder)
    assert list(tmp_path.iterdir()) == [folder]
    assert list(folder.iterdir()) == []


def test_an_older_workbook_stays_when_writing_fails(tmp_path, monkeypatch):
    path = tmp_path / "c.xlsx"
    path.write_bytes(b"older")

    def full(self: Path, data: bytes) -> int:
        with self.open("wb") as file:
            file.write(data[:10])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(FileError, match="No space left on device"):
        workbook.write(masked(), path)
    assert (path.read_bytes(), list(tmp_path.iterdir())) == (b"older", [path])


def test_a_head_of_a_real_size_takes_under_2_megabytes(tmp_path):
    torch.manual_seed(1)
    layer = MultiHeadAttention(384, num_heads=12, d_k=32, d_v=32, bias=True)
    words = torch.randn(64, 384)
    c = layer.explain(words, mask=True, head=3, tokens=[f"token{i}" for i in range(64)])
    workbook.write(c, tmp_path / "c.xlsx")
    assert (tmp_path / "c.xlsx").stat().st_size < 2_000_000
    with zipfile.ZipFile(tmp_path / "c.xlsx") as archive:
        text = archive.read("xl/worksheets/sheet2.xml").decode()
    assert text.count("<f>") > 30_000


def test_queries_and_keys_of_different_lengths_keep_their_labels(tmp_path):
    torch.manual_seed(2)
    c = Attention(2).explain(
        ENCODINGS, torch.randn(5, 2), tokens=WORDS, key_tokens=["un", "mapa", "para", "tu", "mano"]
    )
    place = addresses(lay_out(c))["weights"]
    page = written(c, tmp_path)[place.sheet]
    assert [page.cell(place.top + i, 1).value for i in (1, 2, 3)] == WORDS
    labels = [page.cell(place.top, LEFT + j).value for j in range(1, 6)]
    assert labels == ["un", "mapa", "para", "tu", "mano"]
