"""Models filled in place: every number where it belongs, and no memory beside."""

import copy
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from qkv.errors import FileError, ModelError
from qkv.models import load, look
from qkv.models.fill import Memory, Undrawn, fill
from qkv.models.formats.stored import Stored, plain
from tests.models.altering import change_weights

PEAK = """
import sys, torch
import qkv.models
def resident(key):
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(key)) * 1024
qkv.models.load(sys.argv[1])
before = resident("VmRSS")
open("/proc/self/clear_refs", "w").write("5")
model = qkv.models.load(sys.argv[2])
all(float(p.detach().sum()) for p in model.parameters())  # what stays in its file is read once
size = sum(p.numel() * p.element_size() for p in model.parameters())
print((resident("VmHWM") - before) / size)
"""
"""The first model, which has a tokenizer too, brings what is loaded once: the libraries."""


def given(**tensors: torch.Tensor) -> dict[str, Stored]:
    return {
        name: Stored(name, tuple(tensor.shape), "F64", lambda tensor=tensor: tensor)
        for name, tensor in tensors.items()
    }


@pytest.mark.parametrize("stored", [torch.float16, torch.bfloat16, torch.float64])
def test_any_floats_in_the_file_become_the_dtype_that_is_asked_for(
    folder: Path, stored: torch.dtype
) -> None:
    values = load(folder, dtype=torch.float64).state_dict()

    def store(tensors: dict[str, Any]) -> None:
        tensors.update({name: tensor.to(stored) for name, tensor in tensors.items()})

    change_weights(folder, store)
    for name, parameter in load(folder).state_dict().items():
        assert torch.equal(parameter, values[name].to(stored).float())


def test_a_loaded_model_does_not_change_when_its_file_is_replaced_or_removed(folder: Path) -> None:
    model = load(folder, dtype=torch.float64)
    before = {name: parameter.clone() for name, parameter in model.state_dict().items()}
    path = folder / "model.safetensors"
    (folder / "other").write_bytes(b"\x01" * path.stat().st_size)
    os.replace(folder / "other", path)
    shutil.rmtree(folder)
    assert all(
        torch.equal(parameter, before[name]) for name, parameter in model.state_dict().items()
    )


def test_a_file_does_not_change_with_the_model_that_lies_in_it(folder: Path) -> None:
    before = (folder / "model.safetensors").read_bytes()
    model, twin = (load(folder, dtype=torch.float64) for _ in range(2))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1.0)
    assert (folder / "model.safetensors").read_bytes() == before
    for name, parameter in twin.state_dict().items():
        assert torch.equal(model.state_dict()[name], parameter + 1.0)


def test_what_lies_in_the_file_as_it_is_wanted_is_not_copied(folder: Path) -> None:
    found = look(folder)
    memory = Memory(torch.float64, "cpu")
    stored = next(one for one in found.source.values() if len(one.shape) == 2)
    lying = memory.of(torch.Size(stored.shape), stored)
    assert lying is not None
    assert torch.equal(lying, stored.read())
    assert memory.of(torch.Size(stored.shape[::-1]), stored) is None
    assert memory.of(torch.Size(stored.shape), stored.rows(0, 1)) is None
    assert memory.of(torch.Size(stored.shape), stored.transposed().transposed()) is not None
    assert Memory(torch.float32, "cpu").of(torch.Size(stored.shape), stored) is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_parameters_of_any_dtype_hold_the_files_numbers(folder: Path, dtype: torch.dtype) -> None:
    before = load(folder, dtype=torch.float64).state_dict()
    for name, parameter in load(folder, dtype=dtype).state_dict().items():
        assert parameter.dtype == dtype
        assert torch.equal(parameter, before[name].to(dtype))


def test_parameters_can_be_saved_copied_and_trained(folder: Path, tmp_path: Path) -> None:
    model = load(folder)
    save_file(model.state_dict(), tmp_path / "saved.safetensors")
    saved = load_file(tmp_path / "saved.safetensors")
    twin = copy.deepcopy(model)
    model.double()
    for name, parameter in twin.named_parameters():
        assert parameter.requires_grad
        assert parameter.is_leaf
        assert parameter.data_ptr() % 64 == 0, name
    for name, value in twin.state_dict().items():
        assert torch.equal(saved[name], value)
        assert torch.equal(model.state_dict()[name], value.double())


def test_parameters_do_not_overlap() -> None:
    memory = Memory(torch.float32, "cpu")
    shapes = [(5,), (7, 3), (1 << 23, 2), (), (3000, 3000), (2,)]
    rooms = [memory.room(torch.Size(shape)) for shape in shapes]
    for i, room in enumerate(rooms):
        room.fill_(i)
    assert all(bool((room == i).all()) for i, room in enumerate(rooms))
    assert [room.shape for room in rooms] == [torch.Size(shape) for shape in shapes]


def test_a_parameter_that_two_modules_share_stays_one() -> None:
    with torch.device("meta"):
        model = nn.ModuleDict({"a": nn.Linear(3, 2, bias=False), "b": nn.Linear(3, 2, bias=False)})
    model["b"].weight = model["a"].weight
    weight = torch.randn(2, 3).double()
    fill(model, given(**{"a.weight": weight, "b.weight": weight}), torch.float32, "cpu")
    assert model["a"].weight is model["b"].weight
    assert torch.equal(model["a"].weight, weight.float())


def test_a_buffer_that_is_kept_is_filled_and_one_that_is_not_is_refused() -> None:
    with torch.device("meta"):
        model = nn.Module()
        model.register_buffer("kept", torch.zeros(3))
    fill(model, given(kept=torch.ones(3).double()), torch.float32, "cpu")
    assert torch.equal(model.kept, torch.ones(3))
    model.register_buffer("lost", torch.zeros(3, device="meta"), persistent=False)
    with pytest.raises(ModelError, match="lost: buffers that no file holds cannot be filled"):
        fill(model, {}, torch.float32, "cpu")


def test_a_file_that_is_cut_off_meanwhile_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "numbers"
    path.write_bytes(b"\0" * 23)
    for dtype in (torch.float32, torch.float64):  # read in place, and by blocks
        model = nn.Linear(3, 2, bias=False, device="meta")
        with pytest.raises(FileError, match="numbers was cut off"):
            fill(model, {"weight": plain("weight", (2, 3), "F32", path, 0)}, dtype, "cpu")


def test_nothing_is_drawn_while_a_model_is_built() -> None:
    before = torch.get_rng_state()
    with Undrawn():
        layer = nn.Linear(3, 2)
        assert nn.init.normal_(tensor=layer.weight) is layer.weight
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.slow
def test_loading_imports_no_compiler(folder: Path, smollm2_file: Path) -> None:
    """What PyTorch computes on the meta device may load all of it, for seconds."""
    code = (
        "import sys, qkv.models; qkv.models.load(sys.argv[1]);"
        "sys.exit('torch._dynamo' in sys.modules)"
    )
    for place in (folder, smollm2_file):
        subprocess.run([sys.executable, "-c", code, str(place)], check=True)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="only Linux tells")
def test_loading_takes_little_more_memory_than_the_weights(
    minilm_folder: Path, smollm2_file: Path
) -> None:
    for place in (minilm_folder, smollm2_file):
        run = subprocess.run(
            [sys.executable, "-c", PEAK, "en-es", str(place)],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert 0.9 < float(run.stdout) <= 1.2, place
