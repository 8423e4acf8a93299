"""A recording in a file, and back."""

import json
import os
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import safe_open, save_file

from qkv import disk
from qkv.errors import ArgumentError, FileError
from qkv.recording.calls.operands import Operands, Operation
from qkv.recording.files.storing import HEADER
from qkv.recording.recording import Recording
from qkv.recording.watching import watch
from tests.recording import small

IDS = torch.randint(5, 90, (2, 6), generator=torch.Generator().manual_seed(2))


def bert(implementation: str) -> Recording:
    model, mask = small.bert(implementation), torch.ones_like(IDS)
    mask[1, 4:] = 0
    with torch.no_grad(), watch(model, tokens=["[CLS]", "a", "b", "a", "b", "."]) as seen:
        model(IDS, attention_mask=mask)
    return seen


def text(model: str, **how: object) -> Recording:
    writer = getattr(small, model)()
    with torch.no_grad(), watch(writer) as seen:
        small.written(writer, IDS, 5, **how)
    return seen


def summaries() -> Recording:
    model = small.bert()
    with torch.no_grad(), watch(model, keep="summary", tokens=["a"] * 6) as seen:
        model(IDS)
        model(IDS[:, :4])
    return seen


KINDS: dict[str, Callable[[], Recording]] = {
    "written out": lambda: bert("eager"),
    "fused": lambda: bert("sdpa"),
    "a text": lambda: text("llama"),
    "a text over a cache of constant size": lambda: text("llama", cache_implementation="static"),
    "a text with a window": lambda: text("mistral"),
    "an encoder and a decoder": lambda: text("bart"),
    "reordered beams": lambda: text("llama", num_beams=3),
}


def same_tensor(a: torch.Tensor | None, b: torch.Tensor | None) -> None:
    assert (a is None) == (b is None)
    if a is not None and b is not None:
        assert a.dtype == b.dtype
        assert torch.equal(a, b)


def same_operations(a: tuple[Operation, ...], b: tuple[Operation, ...]) -> None:
    for one, other in zip(a, b, strict=True):
        for name in ("kind", "number", "limits", "dtype"):
            assert getattr(one, name) == getattr(other, name)
        same_tensor(one.operand and one.operand(), other.operand and other.operand())
        same_tensor(one.other and one.other(), other.other and other.other())


def same(a: Operands, b: Operands) -> None:
    for name in ("q", "k", "v", "output"):
        same_tensor(getattr(a, name), getattr(b, name))
    for name in ("sinks", "noise", "projection"):
        one, other = getattr(a, name), getattr(b, name)
        same_tensor(one and one(), other and other())
    for name in ("dropout", "empty_is_zero", "how", "same_source"):
        assert getattr(a, name) == getattr(b, name)
    same_operations(a.scores, b.scores)
    same_operations(a.after, b.after)


@pytest.mark.parametrize("kind", KINDS)
def test_everything_comes_back_bit_for_bit(kind: str, tmp_path: Path) -> None:
    seen = KINDS[kind]()
    seen.save(tmp_path / "seen.safetensors")
    again = Recording.load(tmp_path / "seen.safetensors")
    assert repr(again) == repr(seen)
    assert again.tokens == seen.tokens
    assert [len(run) for run in again.runs] == [len(run) for run in seen.runs]
    for one, other in zip(seen, again, strict=True):
        assert (one.place, one.run, one.index) == (other.place, other.run, other.index)
        same(one.operands, other.operands)
    for one, other in zip(seen.joined(), again.joined(), strict=True):
        same(one.operands, other.operands)
        assert max(one.error_eps, other.error_eps) < 16


def test_a_loaded_recording_answers_and_is_saved_again(tmp_path: Path) -> None:
    seen = bert("sdpa")
    seen.save(tmp_path / "one")
    again = Recording.load(tmp_path / "one")
    assert repr(again.table()) == repr(seen.table())
    assert again.compare(seen).same
    again.save(tmp_path / "two")
    assert (tmp_path / "two").read_bytes() == (tmp_path / "one").read_bytes()


def test_summaries_and_means_come_back(tmp_path: Path) -> None:
    seen = summaries()
    seen.save(tmp_path / "seen")
    again = Recording.load(tmp_path / "seen")
    assert repr(again) == repr(seen)
    assert again.table().heads == seen.table().heads
    assert again.find("broad") == seen.find("broad")
    for one, other in zip(seen, again, strict=True):
        assert one.summary is not None
        for part in fields(one.summary):
            same_tensor(getattr(one.summary, part.name), getattr(other.summary, part.name))


def test_a_part_is_saved_alone(tmp_path: Path) -> None:
    seen = bert("sdpa")
    seen.select("*.1.*").save(tmp_path / "part")
    assert Recording.load(tmp_path / "part").paths == ("encoder.layer.1.attention.self",)
    seen.save(tmp_path / "whole")
    assert os.path.getsize(tmp_path / "part") < os.path.getsize(tmp_path / "whole")


def test_what_calls_share_is_written_once(tmp_path: Path) -> None:
    model, ids = small.llama(), torch.randint(5, 90, (1, 4))
    sizes = []
    for steps in (4, 8):
        with torch.no_grad(), watch(model) as seen:
            small.written(model, ids, steps)
        seen.save(tmp_path / "seen")
        with safe_open(tmp_path / "seen", "pt") as file:
            sizes.append(sum(file.get_tensor(name).nbytes for name in file.keys()))  # noqa: SIM118
    rows = 4 * 2 * (32 + 32 + 16 + 16) * 4  # new rows of q, output, k and v in two layers
    assert sizes[1] - sizes[0] <= rows


def test_a_file_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(FileError, match="folder cannot be written: it is a folder"):
        bert("sdpa").save(tmp_path / "folder")
    with pytest.raises(FileError, match="seen cannot be written: No such file"):
        bert("sdpa").save(tmp_path / "nowhere" / "seen")
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


@pytest.mark.skipif(os.name != "posix", reason="modes of files")
@pytest.mark.parametrize("umask", [0o022, 0o077, 0o002])
def test_a_file_may_be_read_by_whom_other_files_may(umask: int, tmp_path: Path) -> None:
    before = os.umask(umask)
    try:
        bert("sdpa").save(tmp_path / "seen")
    finally:
        os.umask(before)
    assert (tmp_path / "seen").stat().st_mode & 0o777 == 0o666 & ~umask


def test_an_older_file_survives_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "seen"
    bert("sdpa").save(file)
    before = file.read_bytes()

    def full(part: Path, target: Path) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(disk.os, "replace", full)
    with pytest.raises(FileError, match="no space left"):
        bert("eager").save(file)
    assert file.read_bytes() == before
    assert list(tmp_path.iterdir()) == [file]


def test_what_is_no_recording_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="is not there; wanted a file that"):
        Recording.load(tmp_path / "nothing")
    (tmp_path / "text").write_text("attention")
    with pytest.raises(FileError, match="is no whole safetensors file"):
        Recording.load(tmp_path / "text")
    save_file({"weight": torch.ones(2)}, tmp_path / "model")
    with pytest.raises(FileError, match="is a safetensors file, but holds no recording"):
        Recording.load(tmp_path / "model")


def test_half_a_file_is_refused(tmp_path: Path) -> None:
    bert("sdpa").save(tmp_path / "seen")
    whole = (tmp_path / "seen").read_bytes()
    (tmp_path / "half").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(FileError, match="is no whole safetensors file"):
        Recording.load(tmp_path / "half")


def _view(number: int, value: object) -> Callable[[Any], None]:
    def change(header: Any) -> None:
        header["views"][0][number] = value

    return change


def _last(name: str, value: object) -> Callable[[Any], None]:
    def change(header: Any) -> None:
        header["generations"][0]["last"][name] = value

    return change


def _top(name: str, value: object) -> Callable[[Any], None]:
    def change(header: Any) -> None:
        header[name] = value

    return change


def _inner(part: str, name: str, value: object) -> Callable[[Any], None]:
    def change(header: Any) -> None:
        header[part][0][name] = value

    return change


DAMAGE: dict[str, Callable[[Any], None]] = {
    "another version": _top("version", 2),
    "no calls": _top("calls", None),
    "a tensor beyond its piece": _view(1, 10**9),
    "a tensor before its piece": _view(1, -1),
    "steps backwards": _view(3, [-1, -1, -1, -1]),
    "axes without steps": _view(3, [1]),
    "a piece that is none": _view(0, "99999"),
    "text for numbers": _view(2, "abc"),
    "a tensor that is none": _last("q", 99999),
    "queries with three axes": _last("q", 10),
    "an unknown operation": _last("scores", [{"kind": "exec"}]),
    "no scores": _last("scores", 3),
    "an order of calls that are none": _top("order", [77]),
    "what was kept of nothing": _top("keep", "everything"),
    "a path that is a number": _inner("calls", "place", [3, "m.py", 4]),
    "a run that is a text": _inner("calls", "run", "first"),
    "an operation of the name 5": _last("how", 5),
    "a source that is neither": _last("same_source", "yes"),
    "more dropout than there is": _last("dropout", 7),
    "true for a number": _last("q", True),
    "no tokens": _top("tokens", []),
    "tokens of unequal lengths": _top("tokens", [["a"], ["a", "b"]]),
    "no generations": _top("generations", []),
    "a call of another generation": _inner("generations", "calls", [1]),
    "a call twice": _top("order", [0, 0]),
    "a first key that is none": _inner("generations", "first", 10**9),
    "fewer keys than none": _inner("generations", "used", -5),
    "queries without a number": _view(2, [0, 0, 0, 0]),
    "a fill of nothing": _last("scores", [{"kind": "fill"}]),
    "a mask of another size": _last("scores", [{"kind": "add", "operand": 0}]),
    "a mask that is code": _last("scores", [{"kind": "function"}]),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_recording_is_refused(damage: str, tmp_path: Path) -> None:
    bert("eager").save(tmp_path / "seen")
    with safe_open(tmp_path / "seen", "pt") as file:
        header = json.loads(file.metadata()[HEADER])
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    if damage == "queries with three axes":
        header["views"][10][2:] = [[1, 1, 1], [1, 1, 1]]
    DAMAGE[damage](header)
    save_file(tensors, tmp_path / "damaged", {HEADER: json.dumps(header)})
    with pytest.raises(FileError, match="holds a recording that cannot be read: "):
        Recording.load(tmp_path / "damaged")


def test_a_tensor_that_the_file_does_not_hold_is_refused(tmp_path: Path) -> None:
    """One number with steps of 0 would be a matrix of any size."""
    bert("eager").save(tmp_path / "seen")
    with safe_open(tmp_path / "seen", "pt") as file:
        header = json.loads(file.metadata()[HEADER])
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    last = header["generations"][0]["last"]
    for name in ("q", "output"):
        header["views"][last[name]][2][2], header["views"][last[name]][3][2] = 10**9, 0
    last["scores"] = []
    save_file(tensors, tmp_path / "damaged", {HEADER: json.dumps(header)})
    with pytest.raises(FileError, match="claims 1000000000 rows, and the file has one"):
        Recording.load(tmp_path / "damaged")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="pipes")
def test_nothing_but_a_plain_file_is_replaced(tmp_path: Path) -> None:
    seen, pipe = bert("sdpa"), tmp_path / "pipe"
    os.mkfifo(pipe)
    (tmp_path / "to pipe").symlink_to(pipe)
    for name in ("pipe", "to pipe"):
        with pytest.raises(FileError, match="it is a device, a pipe or a socket"):
            seen.save(tmp_path / name)
        assert pipe.is_fifo()
        with pytest.raises(FileError, match="is no file"):
            Recording.load(tmp_path / name)
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    with pytest.raises(FileError, match="circle cannot be written"):
        seen.save(tmp_path / "circle")
    assert {path.name for path in tmp_path.iterdir()} == {"pipe", "to pipe", "circle"}


@pytest.mark.skipif(os.name != "posix", reason="links")
def test_behind_a_link_the_file_is_replaced_and_the_link_stays(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    file, link = tmp_path / "there" / "seen", tmp_path / "link"
    link.symlink_to(file)
    bert("sdpa").save(link)
    assert link.is_symlink()
    assert file.is_file()
    assert Recording.load(link).paths == Recording.load(file).paths


@pytest.mark.usefixtures("as_shipped")
def test_a_name_that_no_file_can_have_is_refused() -> None:
    seen = bert("sdpa")
    for name in ("", "a\0b", "\udcff.safetensors"):
        with pytest.raises(FileError, match="names no file"):
            seen.save(name)
        with pytest.raises(FileError, match="names no file"):
            Recording.load(name)
    with pytest.raises(FileError, match="it is a folder"):
        seen.save(".")
    for value in (None, 3, b"seen"):
        with pytest.raises(ArgumentError, match="wanted a path"):
            seen.save(value)  # type: ignore[arg-type]
        with pytest.raises(ArgumentError, match="wanted a path"):
            Recording.load(value)  # type: ignore[arg-type]
