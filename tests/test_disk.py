"""The disk: whatever happens, a file is whole and nothing else is left."""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import get_ident

import pytest
import torch
from safetensors import safe_open

from qkv import disk
from qkv.disk import make_folder, reason, settle, whole, write_tensors, write_whole
from qkv.errors import FileError

POSIX = pytest.mark.skipif(os.name != "posix", reason="links and modes of files")
FULL = pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device is always full here")
TOLD = pytest.mark.skipif(
    not Path("/proc/self/fd").exists(), reason="only Linux tells what is open"
)


def partial_of(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}-{get_ident()}.partial")


@contextmanager
def mask(umask: int) -> Iterator[None]:
    before = os.umask(umask)
    try:
        yield
    finally:
        os.umask(before)


# A file of its own.


def test_a_file_is_as_it_was_until_the_new_one_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    write_whole(path, b"old")
    with whole(path) as partial:
        partial.write_bytes(b"new")
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_what_fails_leaves_nothing_and_the_old_file(error: BaseException, tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    write_whole(path, b"old")
    wanted = FileError if isinstance(error, OSError) else KeyboardInterrupt

    def fail() -> None:
        with whole(path) as partial:
            partial.write_bytes(b"ne")
            raise error

    with pytest.raises(wanted) as caught:
        fail()
    if wanted is FileError:
        assert str(caught.value) == f"{path} cannot be written: No space left on device"
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_that_gets_no_name_leaves_nothing_and_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x"
    write_whole(path, b"old")

    def refuse(a: Path, b: Path) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(disk.os, "replace", refuse)
    with pytest.raises(FileError, match="x cannot be written: Permission denied"):
        write_whole(path, b"new")
    assert (path.read_bytes(), list(tmp_path.iterdir())) == (b"old", [path])


@FULL
def test_a_full_device_is_named(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    write_whole(path, b"old")
    partial_of(path).symlink_to("/dev/full")
    with pytest.raises(FileError, match="cannot be written: No space left on device"):
        write_whole(path, b"new")
    assert path.read_bytes() == b"old"


def test_a_file_goes_into_no_folder_that_is_not_there(tmp_path: Path) -> None:
    path = tmp_path / "nowhere" / "x"
    with pytest.raises(FileError, match="x cannot be written: No such file"):
        write_whole(path, b"new")
    assert list(tmp_path.iterdir()) == []


def test_two_that_write_one_file_do_not_mix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, names = tmp_path / "x", []
    for process, thread in ((41, 7), (43, 7), (43, 8)):
        monkeypatch.setattr(disk.os, "getpid", lambda number=process: number)
        monkeypatch.setattr(disk, "get_ident", lambda number=thread: number)
        with whole(path) as partial:
            partial.write_bytes(b"its own")
        names.append(partial.name)
    assert names == [".x.41-7.partial", ".x.43-7.partial", ".x.43-8.partial"]


# What is there already.


@POSIX
@pytest.mark.parametrize("there", [True, False])
def test_behind_a_link_the_file_is_replaced_and_the_link_stays(there: bool, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    file, link = tmp_path / "folder" / "x", tmp_path / "link"
    link.symlink_to(file)
    if there:
        file.write_bytes(b"old")
    write_whole(link, b"new")
    assert link.is_symlink()
    assert (file.read_bytes(), file.is_symlink()) == (b"new", False)
    assert list(file.parent.iterdir()) == [file]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="pipes")
def test_nothing_but_a_plain_file_is_replaced(tmp_path: Path) -> None:
    pipe, link, circle = (tmp_path / name for name in ("pipe", "to pipe", "circle"))
    os.mkfifo(pipe)
    link.symlink_to(pipe)
    circle.symlink_to(circle)
    for path in (pipe, link):
        with pytest.raises(FileError, match="be written: it is a device, a pipe or a socket; want"):
            write_whole(path, b"new")
    with pytest.raises(FileError, match="circle cannot be written: Too many levels"):
        write_whole(circle, b"new")
    with pytest.raises(FileError, match="cannot be written: it is a folder; wanted the name of a"):
        write_whole(tmp_path, b"new")
    assert pipe.is_fifo()
    assert sorted(tmp_path.iterdir()) == [circle, pipe, link]


# When it is on the disk.


@TOLD
def test_files_and_names_are_on_the_disk_before_and_after_a_file_gets_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    replace, fsync = os.replace, os.fsync
    name = lambda opened: Path(f"/proc/self/fd/{opened}").resolve().name  # noqa: E731
    monkeypatch.setattr(
        disk.os, "replace", lambda a, b: (done.append(f"{a.name} → {b.name}"), replace(a, b))
    )
    monkeypatch.setattr(disk.os, "fsync", lambda at: (done.append(name(at)), fsync(at)))
    write_whole(tmp_path / "x", b"new")
    partial = partial_of(tmp_path / "x").name
    assert done == [partial, f"{partial} → x", tmp_path.name]


@POSIX
@pytest.mark.parametrize(("number", "passes"), [(22, True), (13, True), (5, False)])
def test_a_folder_whose_disk_knows_no_waiting_is_let_be_and_a_broken_one_is_not(
    number: int, passes: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "x").write_bytes(b"")

    def refuse(opened: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(disk.os, "fsync", refuse)
    if passes:
        settle(tmp_path)
    else:
        with pytest.raises(OSError, match=os.strerror(number)):
            settle(tmp_path)
    with pytest.raises(OSError, match=os.strerror(number)):
        settle(tmp_path / "x")


# Tensors.


@POSIX
@pytest.mark.parametrize("umask", [0o022, 0o077, 0o002])
def test_tensors_may_be_read_by_whom_other_files_may(umask: int, tmp_path: Path) -> None:
    with mask(umask), whole(tmp_path / "x") as partial:
        write_tensors(partial, {"a": torch.ones(3)})
    assert (tmp_path / "x").stat().st_mode & 0o777 == 0o666 & ~umask


@pytest.mark.parametrize("about", [None, {"said": "ñ"}])
def test_tensors_are_read_back_with_what_is_said_of_them(
    about: dict[str, str] | None, tmp_path: Path
) -> None:
    tensors = {"a": torch.randn(5, 3), "b": torch.arange(7), "c": torch.zeros(0, 2)}
    write_tensors(tmp_path / "x", tensors, about)
    with safe_open(tmp_path / "x", "pt") as file:
        assert file.metadata() == about
        assert sorted(file.keys()) == sorted(tensors)
        for name, tensor in tensors.items():
            assert torch.equal(file.get_tensor(name), tensor)


def test_tensors_that_cannot_be_written_leave_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x"
    write_whole(path, b"old")
    from safetensors import SafetensorError
    from safetensors import torch as written

    def full(tensors: object, path: Path, about: object) -> None:
        Path(path).write_bytes(b"ha")
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(written, "save_file", full)
    with (
        pytest.raises(FileError, match=r"x cannot be written: I/O error: No space left on device"),
        whole(path) as partial,
    ):
        write_tensors(partial, {"a": torch.ones(3)})
    assert (path.read_bytes(), list(tmp_path.iterdir())) == (b"old", [path])


# Folders, and why not.


def test_a_folder_is_made_with_those_around_it_and_may_be_there(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    make_folder(folder)
    make_folder(folder)
    assert folder.is_dir()
    (folder / "x").write_bytes(b"")
    for path in (folder / "x", folder / "x" / "y"):
        with pytest.raises(FileError, match=r"cannot be written: (File exists|Not a directory)"):
            make_folder(path)


def test_the_reason_is_what_the_system_says_or_the_error_or_its_kind() -> None:
    assert reason(OSError(28, "No space left on device")) == "No space left on device"
    assert reason(ValueError("told")) == "told"
    assert reason(MemoryError()) == "MemoryError"


@POSIX
def test_a_file_keeps_who_may_read_it(tmp_path: Path) -> None:
    path = tmp_path / "private"
    path.write_bytes(b"old")
    path.chmod(0o600)
    write_whole(path, b"new")
    assert path.read_bytes() == b"new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize("name", ["x" * 255, "数" * 85])
def test_a_name_may_be_as_long_as_a_folder_takes(name: str, tmp_path: Path) -> None:
    write_whole(tmp_path / name, b"new")
    assert [one.name for one in tmp_path.iterdir()] == [name]


def test_what_is_written_says_itself_what_is_wrong_with_it(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="a part is broken"), whole(tmp_path / "x"):
        raise FileError("a part is broken")
    assert not list(tmp_path.iterdir())
