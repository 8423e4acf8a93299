"""`python -m qkv` is the command `qkv`: `torchrun -m qkv train …` starts it several times."""

from qkv.cli.main import run

if __name__ == "__main__":
    run()
