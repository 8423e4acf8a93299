"""The house's limits: lengths of files, of functions, and of the core; run by `make lint`."""

import ast
import io
import sys
import tokenize
from pathlib import Path

FILE_LINES = 400
FUNCTION_LINES = 50
CORE_LINES = 1500
"""Lines of code in core/: blank lines, comments and docstrings do not count."""

FORBIDDEN_NAMES = {"utils.py", "helpers.py", "common.py"}


def code_lines(source: str) -> int:
    """Count the lines that hold code."""
    ignored = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in ignored and token.type != tokenize.ENDMARKER:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if is_text and isinstance(node.value.value, str):
            lines.difference_update(range(node.lineno, (node.end_lineno or 0) + 1))
    return len(lines)


def faults(root: Path) -> list[str]:
    """Return what exceeds a limit, as lines for a person."""
    found, core = [], 0
    for path in sorted(root.rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        if path.name in FORBIDDEN_NAMES:
            found.append(f"{path}: a file is named after its concept, never {path.name}")
        if (length := len(source.splitlines())) > FILE_LINES:
            found.append(f"{path}: {length} lines, at most {FILE_LINES}")
        if path.parent.name == "core":
            core += code_lines(source)
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = (node.end_lineno or 0) - node.lineno + 1
                if length > FUNCTION_LINES:
                    found.append(
                        f"{path}:{node.lineno}: {node.name} has {length} lines, at most "
                        f"{FUNCTION_LINES}"
                    )
    if core > CORE_LINES:
        found.append(f"{root}/core: {core} lines of code, at most {CORE_LINES}")
    return found


if __name__ == "__main__":
    problems = faults(Path(__file__).parent.parent / "src" / "qkv")
    sys.stdout.write("".join(f"{problem}\n" for problem in problems))
    sys.exit(bool(problems))
