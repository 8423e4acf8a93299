"""A script runs as Python would run it: what it prints, sees and raises, and how it ends."""

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from qkv.cli.own_script import INTERRUPTED, end_as, run_script, stdout_free


@pytest.fixture
def script(tmp_path, monkeypatch):
    """Write a script into a folder of its own, and stand beside it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()

    def write(code: str) -> Path:
        path = Path("folder") / "script.py"
        path.write_text(textwrap.dedent(code), "utf-8")
        return path

    return write


def code_of(ended) -> int:
    try:
        end_as(ended)
    except SystemExit as end:
        if isinstance(end.code, str):
            sys.stderr.write(f"{end.code}\n")  # as Python does when it ends
            return 1
        return end.code or 0
    return 0


SCRIPTS = {
    "it comes to its end": """
        import sys
        import beside
        print(__name__, __file__, sys.argv, sys.path[0], beside.X)
        print("told", file=sys.stderr)
        """,
    "it says its status": "import sys\nprint('x')\nsys.exit(7)",
    "it says none": "raise SystemExit",
    "it ends with a message": "import sys\nsys.exit('no such luck')",
    "it raises": """
        def inner(x):
            return 1 / x

        def outer():
            try:
                inner(0)
            except ZeroDivisionError as error:
                raise ValueError("[bold]x[/bold]") from error

        outer()
        """,
    "it raises what we take for our own": "raise OSError(28, 'No space left on device')",
    "it cannot be compiled": "x = (1,\nprint(x\n",
    "it asserts": "assert 1 == 2, 'numbers'",
    "it shows what it raises in its own way": """
        import sys
        sys.excepthook = lambda kind, error, frames: print("mine:", kind.__name__, error)
        raise KeyError("x")
        """,
    "it keeps its classes": """
        import pickle
        class Kept: pass
        print(type(pickle.loads(pickle.dumps(Kept()))) is Kept)
        """,
}


@pytest.mark.parametrize("code", SCRIPTS.values(), ids=SCRIPTS)
def test_it_prints_and_ends_as_under_python_itself(script, capsys, code):
    path = script(code)
    (path.parent / "beside.py").write_text("X = 'imported'")
    command = [sys.executable, str(path), "-n", "5", "--name=x"]
    wanted = subprocess.run(command, capture_output=True, text=True, check=False)
    before = sys.argv, list(sys.path), sys.modules["__main__"]
    code = code_of(run_script(path, ["-n", "5", "--name=x"]))
    out, err = capsys.readouterr()
    assert (code, out, err) == (wanted.returncode, wanted.stdout, wanted.stderr)
    assert (sys.argv, sys.path, sys.modules["__main__"]) == before


def test_what_ctrl_c_ends_is_shown_and_ends_with_130(script, capsys):
    code = code_of(run_script(script("raise KeyboardInterrupt"), []))
    assert code == INTERRUPTED
    assert capsys.readouterr().err.endswith("\nKeyboardInterrupt\n")


def test_a_stdout_that_the_script_turned_away_comes_back(script, capsys):
    path = script("import sys, io\nprint('before')\nsys.stdout = io.StringIO()\nprint('lost')")
    assert run_script(path, []) is None
    sys.stdout.write("after\n")
    assert capsys.readouterr().out == "before\nafter\n"


def test_stdout_can_be_kept_free_of_all_that_a_script_and_its_children_print(capfd):
    with stdout_free():
        sys.stdout.write("printed\n")
        subprocess.run([sys.executable, "-c", "print('by a child')"], check=True)
        sys.stdout.flush()
    sys.stdout.write("the report\n")
    out, err = capfd.readouterr()
    assert out == "the report\n"
    assert sorted(err.splitlines()) == ["by a child", "printed"]


def test_what_is_written_past_the_redirection_comes_to_stderr_too(capfd):
    code = "import sys; from qkv.cli.own_script import stdout_free\n"
    code += "with stdout_free(): sys.__stdout__.write('past\\n')\n"
    code += "sys.stdout.write('the report\\n')"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert capfd.readouterr() == ("the report\n", "past\n")


def test_stdout_that_is_no_file_is_kept_free_too(capsys):
    with stdout_free():
        sys.stdout.write("printed\n")
    sys.stdout.write("the report\n")
    assert capsys.readouterr() == ("the report\n", "printed\n")
