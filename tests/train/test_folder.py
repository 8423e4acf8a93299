"""The folder of a training: begun once, gone on with as it began, whole when a disk is not."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import qkv
from qkv.errors import ArgumentError, FileError
from qkv.train.checkpoint import Checkpoint
from qkv.train.distributed import World
from qkv.train.events import Event, Saved
from qkv.train.folder import TrainingFolder
from qkv.train.log import LOG, JsonLog
from qkv.train.loop import train
from tests.train.small_disk import fill, small_disk  # noqa: F401
from tests.train.small_task import SmallTask, settings


def begin(out: Path, task: SmallTask | None = None, **changes: Any) -> None:
    TrainingFolder(out, World()).open(task or SmallTask(), settings(**changes), resume=False)


def go_on(out: Path, task: SmallTask | None = None, **changes: Any) -> None:
    TrainingFolder(out, World()).open(task or SmallTask(), settings(**changes), resume=True)


def test_it_records_task_and_settings(tmp_path: Path) -> None:
    begin(tmp_path / "a" / "b")
    record = json.loads((tmp_path / "a" / "b" / "training.json").read_text())
    assert record["task"] == "small"
    assert record["about"]["model"] == {"n": 24, "tied": True, "dropout": 0.0}
    assert record["settings"]["betas"] == [0.9, 0.98]
    assert record["settings"]["steps"] == 24
    go_on(tmp_path / "a" / "b")


def test_a_folder_that_holds_something_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(FileError, match=r"is not empty; give another folder$"):
        begin(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_a_folder_that_was_begun_is_refused_without_resume(tmp_path: Path) -> None:
    begin(tmp_path)
    with pytest.raises(FileError, match=r"is not empty; give another folder, or --resume$"):
        begin(tmp_path)


def test_what_was_stopped_while_its_first_file_was_written_is_empty(tmp_path: Path) -> None:
    (tmp_path / ".training.json.17.partial").write_text("{")
    begin(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["training.json"]


@pytest.mark.parametrize("there", [True, False])
def test_there_is_nothing_to_go_on_with_in_an_empty_folder(there: bool, tmp_path: Path) -> None:
    out = tmp_path / "out"
    if there:
        out.mkdir()
    with pytest.raises(FileError, match=r"holds no training\.json: there is nothing to go on with"):
        go_on(out)
    assert out.exists() == there


def test_a_file_instead_of_a_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("mine")
    with pytest.raises(FileError, match=r"cannot be written: (File exists|Not a directory)"):
        begin(tmp_path / "out")


@pytest.mark.parametrize("text", ["{", "[1]", ""])
def test_a_record_that_is_none_is_named(text: str, tmp_path: Path) -> None:
    (tmp_path / "training.json").write_text(text)
    with pytest.raises(FileError, match=r"training\.json (cannot be read|holds a list)"):
        go_on(tmp_path)


def test_every_field_that_differs_is_named(tmp_path: Path) -> None:
    begin(tmp_path)
    other = SmallTask(62, dropout=0.5)
    with pytest.raises(ArgumentError) as caught:
        go_on(tmp_path, other, steps=30, clip=None, betas=(0.8, 0.98))
    assert str(caught.value) == (
        "what goes on has to be as it began: about.data.examples was 61 and is 62; "
        "about.model.dropout was 0.0 and is 0.5; settings.steps was 24 and is 30; "
        "settings.betas was [0.9, 0.98] and is [0.8, 0.98]; settings.clip was 1.0 and is None"
    )


def test_fields_that_one_of_them_lacks_are_named(tmp_path: Path) -> None:
    class More(SmallTask):
        def describe(self) -> dict[str, Any]:
            about = dict(super().describe())
            del about["model"]
            return about | {"new": 1}

    begin(tmp_path)
    with pytest.raises(
        ArgumentError, match=r"about\.new was None and is 1; about\.model\.n was 24"
    ):
        go_on(tmp_path, More())


def test_another_task_is_refused(tmp_path: Path) -> None:
    class Other(SmallTask):
        name = "other"

    begin(tmp_path)
    with pytest.raises(ArgumentError, match="task was 'small' and is 'other'"):
        go_on(tmp_path, Other())


def test_what_torchrun_starts_again_goes_on_by_itself_or_begins(tmp_path: Path) -> None:
    again = World(restarted=True, launch="a")
    TrainingFolder(tmp_path / "new", again).open(SmallTask(), settings(), resume=False)
    TrainingFolder(tmp_path / "new", again).open(SmallTask(), settings(), resume=False)
    with pytest.raises(ArgumentError, match=r"settings\.seed was 3 and is 4"):
        TrainingFolder(tmp_path / "new", again).open(SmallTask(), settings(seed=4), resume=False)


def test_what_torchrun_starts_again_with_resume_begins_nothing_in_a_wrong_folder(
    tmp_path: Path,
) -> None:
    for world in (World(launch="a"), World(restarted=True, launch="a")):
        with pytest.raises(FileError, match=r"holds no training\.json: there is nothing to go on"):
            TrainingFolder(tmp_path / "typo", world).open(SmallTask(), settings(), resume=True)


def test_what_another_run_of_torchrun_began_is_refused_at_every_start(tmp_path: Path) -> None:
    TrainingFolder(tmp_path, World(launch="a")).open(SmallTask(), settings(), resume=False)
    for other in (World(launch="b"), World(launch="b", restarted=True), World(launch="a")):
        with pytest.raises(FileError, match="is not empty; give another folder, or --resume"):
            TrainingFolder(tmp_path, other).open(SmallTask(), settings(), resume=False)
    TrainingFolder(tmp_path, World(launch="b")).open(SmallTask(), settings(), resume=True)
    go_on(tmp_path)


def test_what_was_stopped_while_it_was_written_is_swept_away(tmp_path: Path) -> None:
    begin(tmp_path)
    (tmp_path / ".model.safetensors.17.partial").write_bytes(b"half")
    (tmp_path / "mine.partial").write_text("mine")
    go_on(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine.partial", "training.json"]


def interrupted(out: Path, at_step: int, by: Any) -> str:
    """Train, do something to the disk when a checkpoint is complete, and return the error."""

    def listen(event: Event) -> None:
        if isinstance(event, Saved) and event.step == at_step:
            by()

    with pytest.raises(FileError) as caught:
        train(SmallTask(), settings(), out, listen=listen)
    return str(caught.value)


def good(out: Path, step: int) -> None:
    """The checkpoint of a step loads, so does the model, and nothing half-written lies about."""
    kept = Checkpoint.last(out)
    assert kept is not None
    assert kept.step == step
    assert [path.name for path in (out / "checkpoints").iterdir()] == [f"step-{step:08d}"]
    assert not list(out.rglob("*.partial"))
    qkv.load(out)


def test_a_full_disk_stops_training_and_the_old_checkpoint_is_good(
    small_disk: Path,  # noqa: F811
) -> None:
    out = small_disk / "out"
    # there is room for the model, not for the checkpoint
    said = interrupted(out, 12, lambda: fill(small_disk, but=100_000))
    assert "checkpoints/step-00000018 cannot be written: " in said
    assert "No space left on device" in said
    assert said.endswith("; the checkpoint of step 12 is good, to go on from (--resume)")
    good(out, 12)
    (small_disk / "filler").unlink()
    train(SmallTask(), settings(), out, resume=True)
    good(out, 24)


def test_a_disk_with_no_room_for_a_model_keeps_the_old_one(
    small_disk: Path,  # noqa: F811
) -> None:
    out = small_disk / "out"
    said = interrupted(out, 12, lambda: fill(small_disk))
    assert f"{out}/" in said
    assert "cannot be written: " in said
    assert "No space left on device" in said
    good(out, 12)


def test_what_hears_and_cannot_write_says_which_checkpoint_is_good(
    small_disk: Path,  # noqa: F811
) -> None:
    out = small_disk / "out"
    log = JsonLog(out / LOG)

    def listen(event: Event) -> None:
        if isinstance(event, Saved) and event.step == 6:
            fill(small_disk)
        for _ in range(40):  # more than the block that is its own already
            log(event)

    with pytest.raises(FileError) as caught:
        train(SmallTask(), settings(), out, listen=listen)
    assert str(caught.value) == (
        f"{out}/log.jsonl cannot be written: No space left on device; the checkpoint of step 6 is "
        "good, to go on from (--resume)"
    )
    good(out, 6)


def test_a_disk_that_becomes_read_only_keeps_the_old_checkpoint(
    small_disk: Path,  # noqa: F811
) -> None:
    out = small_disk / "out"

    def lock() -> None:
        subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)

    said = interrupted(out, 6, lock)
    assert "cannot be written: Read-only file system; the checkpoint of step 6 is good" in said
    good(out, 6)


def test_a_read_only_disk_is_refused_at_the_start(
    small_disk: Path,  # noqa: F811
) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with pytest.raises(FileError, match="out cannot be written: Read-only file system"):
        begin(small_disk / "out")


@pytest.fixture
def locked(tmp_path: Path) -> Iterator[Callable[[], None]]:
    """Take away the right to write into a folder `out`, to its very end."""
    if not hasattr(os, "geteuid") or os.geteuid() == 0:
        pytest.skip("root may write into any folder")
    out = tmp_path / "out"

    def lock() -> None:
        for folder in (out / "checkpoints", out):
            folder.chmod(0o555)

    yield lock
    for folder in (out, *out.glob("checkpoints")):
        folder.chmod(0o755)


def test_a_folder_that_becomes_read_only_keeps_the_old_checkpoint(
    tmp_path: Path, locked: Callable[[], None]
) -> None:
    out = tmp_path / "out"
    said = interrupted(out, 6, locked)
    assert "cannot be written: Permission denied; the checkpoint of step 6 is good" in said
    good(out, 6)


LIMITED = """
import resource, sys; sys.path[:0] = {path!r}
from pathlib import Path
import torch; torch.set_num_threads(1)
from qkv.errors import FileError
from qkv.train.events import Saved
from qkv.train.loop import train
from tests.train.small_task import SmallTask, settings

def limit(event):
    if isinstance(event, Saved) and event.step == 6:
        resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, 60_000))

try:
    train(SmallTask(), settings(), Path({out!r}), listen=limit)
except FileError as error:
    print(error)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="Windows limits no sizes of files")
def test_a_file_that_may_not_grow_keeps_the_old_checkpoint(tmp_path: Path) -> None:
    out = tmp_path / "out"
    script = LIMITED.format(path=sys.path, out=str(out))
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert "step-00000012 cannot be written: " in done.stdout, done.stderr
    assert "File too large" in done.stdout
    assert "the checkpoint of step 6 is good" in done.stdout
    good(out, 6)
