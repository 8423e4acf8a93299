"""The shipped tasks in two processes: every parameter is added up, the losses are those of one."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from qkv.models.bert import BERT, Bert, BertConfig
from qkv.models.saving import save_folder
from qkv.train.distributed import World
from qkv.train.vocabulary import trained_bpe
from tests.train.tasks.under_torchrun import losses, tasks

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("as_shipped")]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Pairs, labelled texts, and the folder of an encoder of random weights."""
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "pairs.tsv").write_text(
        "".join(f"the number {i} is here\tel número {i} está aquí\n" for i in range(60)), "utf-8"
    )
    texts = [f"{word} {i} is {word}" for i in range(40) for word in ("warm", "cold")]
    (folder / "texts.tsv").write_text("".join(f"{text}\t{text[:4]}\n" for text in texts), "utf-8")
    tokenizer = trained_bpe(texts, 280, special=("[CLS]", "[SEP]"), before=("[CLS]",),
                            after=("[SEP]",))  # fmt: skip
    config = BertConfig(tokenizer.size, 12, 1, 3, 20, 30)
    save_folder(Bert(config, tokenizer), BERT, folder / "encoder", tokenizer=tokenizer)
    return folder


def test_two_processes_give_the_losses_of_one(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "two"
    out.mkdir()
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
        "-m", "tests.train.tasks.under_torchrun", str(data), str(out),
    ]  # fmt: skip
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=240,
        cwd=Path(__file__).parents[3], env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for name, task in tasks(data).items():
        two = json.loads((out / f"{name}.json").read_text())
        one = losses(task, tmp_path / name, World())
        assert len(set(two["losses"])) == 4, name
        assert two["losses"] == pytest.approx(one["losses"], abs=1e-10), name
        assert two["values"] == pytest.approx(one["values"], abs=1e-6), name
