"""`torch.compile` makes one graph of every module, `torch.export` one program; both are equal."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("compiling.py")
ALL = [
    "no mask", "causal", "causal and padding", "all padding", "window, grouped", "documents",
    "unequal widths", "soft cap", "trained bias", "single heads", "export",
]  # fmt: skip
GENERATED = ["causal and padding", "soft cap"]


def differences(folder: Path, backend: str, *cases: str) -> dict[str, float | str]:
    """Run the script in a process of its own, where nothing enforces shapes."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", SCRIPT, backend, *cases],
        env={**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(folder)},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def assert_equal(report: dict[str, float | str], cases: list[str]) -> None:
    assert list(report) == cases
    wrong = {n: found for n, found in report.items() if isinstance(found, str) or not found < 1e-5}
    assert not wrong


def test_every_module_is_one_graph(tmp_path: Path) -> None:
    assert_equal(differences(tmp_path, "eager"), ALL)


@pytest.mark.slow
def test_the_compilers_own_code_gives_the_same(tmp_path: Path) -> None:
    if not (shutil.which("c++") or shutil.which("g++")) and not os.environ.get(
        "QKV_REQUIRE_COMPILER"
    ):
        pytest.skip("no C++ compiler here: graphs were traced, but no code was generated")
    assert_equal(differences(tmp_path, "inductor", *GENERATED), GENERATED)
