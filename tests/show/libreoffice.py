"""LibreOffice recalculates our workbooks: the proof that the formulas, not the stored values, hold.

`assert_recalculates(calculation, tmp_path)` is the whole of it; the parts serve tests that edit.
"""

import os
import re
import shutil
import subprocess
import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from openpyxl import load_workbook
from openpyxl.worksheet.worksheet import Worksheet

from qkv.core import proof
from qkv.core.calculation import Calculation
from qkv.core.operations import BLOCKED
from qkv.core.recompute import Array
from qkv.show import checks, workbook
from qkv.show.sheets import HEAD, LEFT, lay_out

POISON = "999"
RELATIVE = 1e-9

_ALWAYS_RECALCULATE = """<?xml version="1.0" encoding="UTF-8"?>
<oor:items xmlns:oor="http://openoffice.org/2001/registry"
 xmlns:xs="http://www.w3.org/2001/XMLSchema" xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance">
<item oor:path="/org.openoffice.Office.Calc/Formula/Load">
<prop oor:name="OOXMLRecalcMode" oor:op="fuse"><value>0</value></prop></item>
</oor:items>
"""

_FORMULA = re.compile(r"<c ([^>]*)>(<f>.*?</f>)<v>.*?</v></c>", re.DOTALL)


def soffice() -> str:
    """Return the command; without it the test is skipped, or fails where it must be there."""
    found = shutil.which("soffice")
    if found is None:
        if os.environ.get("QKV_REQUIRE_LIBREOFFICE") == "1":
            pytest.fail("QKV_REQUIRE_LIBREOFFICE=1, but there is no soffice")
        pytest.skip("LibreOffice is not installed: workbooks were not recalculated")
    return found


def poison(path: Path) -> int:
    """Put 999 beside every formula of a workbook, in place; return how many there were."""
    poisoned = 0

    def replaced(found: re.Match[str]) -> str:
        attributes = re.sub(r'\s*t="\w+"', "", found[1])
        return f"<c {attributes}>{found[2]}<v>{POISON}</v></c>"

    with zipfile.ZipFile(path) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in parts.items():
            if name.startswith("xl/worksheets/sheet"):
                text = data.decode()
                assert text.count("<f") - text.count("<formula") == len(_FORMULA.findall(text))
                text, count = _FORMULA.subn(replaced, text)
                poisoned += count
                data = text.encode()  # noqa: PLW2901
            archive.writestr(name, data)
    return poisoned


def recalculated(*paths: Path) -> list[Path]:
    """Have LibreOffice open, recalculate and save workbooks, all in one run."""
    home = paths[0].parent / "libreoffice"
    profile, out = home / "profile", home / "saved"
    (profile / "user").mkdir(parents=True, exist_ok=True)
    (profile / "user" / "registrymodifications.xcu").write_text(_ALWAYS_RECALCULATE)
    command = [
        soffice(), f"-env:UserInstallation={profile.as_uri()}", "--headless", "--norestore",
        "--convert-to", "xlsx:Calc MS Excel 2007 XML", "--outdir", str(out), *map(str, paths),
    ]  # fmt: skip
    ran = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    saved = [out / path.name for path in paths]
    missing = [path.name for path in saved if not path.exists()]
    assert not missing, f"LibreOffice did not save {missing}: {ran.stdout} {ran.stderr}"
    return saved


def matrices(path: Path, calculation: Calculation) -> dict[str, Array]:
    """Return every step's matrix as its cells show it; an error in a cell is NaN."""
    book = load_workbook(path, data_only=True)
    return {
        step.name: _numbers(book[place.sheet], place.top, LEFT, place.height, place.width).T
        if place.transposed
        else _numbers(book[place.sheet], place.top, LEFT, place.height, place.width)
        for sheet in lay_out(calculation)
        for step, place in sheet.blocks
    }


def row_checks(path: Path, calculation: Calculation) -> dict[str, list[object]]:
    """Return what the checks of every computed step show, row by row."""
    book = load_workbook(path, data_only=True)
    return {
        step.name: [book[place.sheet].cell(place.top + i + 1, 2).value for i in range(place.rows)]
        for sheet in lay_out(calculation)
        for step, place in sheet.blocks
        if not step.is_input
    }


def tolerances(path: Path, calculation: Calculation) -> dict[str, float]:
    """Return how far a row of each computed step may be, as the cell above its checks says."""
    book = load_workbook(path, data_only=True)
    return {
        step.name: book[place.sheet][place.allowed].value
        for sheet in lay_out(calculation)
        for step, place in sheet.blocks
        if not step.is_input
    }


def red(path: Path, calculation: Calculation) -> dict[str, list[int]]:
    """Return which rows of every computed step are red: beyond the tolerance, or an error."""
    most = tolerances(path, calculation)
    return {
        name: [i for i, x in enumerate(shown) if not isinstance(x, int | float) or x > most[name]]
        for name, shown in row_checks(path, calculation).items()
    }


def verdict(path: Path) -> tuple[float, str]:
    """Return what the first sheet says: rows that differ, and in words."""
    page = load_workbook(path, data_only=True)["about"]
    found = {row[0].value: row for row in page.iter_rows() if row[0].value}
    differ = found["rows that differ"]
    return differ[1].value, differ[2].value


def assert_recalculates(calculation: Calculation, tmp_path: Path) -> None:
    """Poison every formula of a workbook, recalculate it, and compare each number with NumPy."""
    assert_all_recalculate({"calculation": calculation}, tmp_path)


def assert_all_recalculate(calculations: Mapping[str, Calculation], tmp_path: Path) -> None:
    """Do so for several workbooks in one run of LibreOffice."""
    soffice()
    paths = {name: tmp_path / f"{name}.xlsx" for name in calculations}
    for name, calculation in calculations.items():
        workbook.write(calculation, paths[name])
        cells = sum(s.value.size + len(s.value) for s in calculation if not s.is_input)
        assert poison(paths[name]) >= cells, f"{name}: a computed cell or check has no formula"
    saved = recalculated(*paths.values())
    for (name, calculation), path in zip(calculations.items(), saved, strict=True):
        assert_equals_numpy(path, calculation, name)
        assert_agrees(path, calculation, name)


def assert_equals_numpy(path: Path, calculation: Calculation, name: str = "") -> None:
    """Compare every cell with the recomputation in float64, to 1e-9 of the number itself."""
    shown = matrices(path, calculation)
    for step, expected in proof.replay(calculation.steps).items():
        got = np.where(shown[step] <= BLOCKED, -np.inf, shown[step])
        wanted = np.where(expected <= BLOCKED, -np.inf, expected)
        noise = 1e-12 * np.abs(wanted[np.isfinite(wanted)]).max(initial=0.0)
        np.testing.assert_allclose(
            got, wanted, rtol=RELATIVE, atol=noise, err_msg=f"{name}: {step}"
        )


def assert_agrees(path: Path, calculation: Calculation, name: str = "") -> None:
    """Assert that every check is a number within the tolerance and that the first sheet says so."""
    differ, says = verdict(path)
    assert (differ, says) == (0, "every row agrees with PyTorch"), f"{name}: {differ}, {says}"
    allowed = checks.tolerances(calculation, frozenset(), 4)
    assert tolerances(path, calculation).items() <= allowed.items()
    for step, shown in row_checks(path, calculation).items():
        assert all(isinstance(x, int | float) and 0 <= x <= allowed[step] for x in shown), (
            name, step, shown,
        )  # fmt: skip
    for sheet in load_workbook(path, data_only=True):
        if not sheet.title.startswith("PyTorch") and sheet.title != "about":
            assert sheet.cell(2, 2).value == 0, (name, sheet.title)
            assert sheet.max_row > HEAD


def _numbers(page: Worksheet, top: int, left: int, height: int, width: int) -> Array:
    rows = page.iter_rows(top + 1, top + height, left + 1, left + width, values_only=True)
    return np.array([[x if isinstance(x, int | float) else np.nan for x in row] for row in rows])
