"""The command `qkv`: one file a command, nothing that the library could not do.

Data goes to stdout, progress and errors to stderr. Exit codes: 0 done, 1 a proof failed, 2 the
user's mistake. PyTorch is imported by the command that needs it, so `--help` is instant.
"""


def printable(text: str) -> str:
    """Return text in one line; names of files may hold what a terminal would obey."""
    return "".join(c if c.isprintable() else "�" for c in text)
