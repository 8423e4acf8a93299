"""Several processes that train one model: who takes which examples, and what they tell each other.

`torchrun` starts them and PyTorch's own engines join them: DistributedDataParallel keeps the whole
model in each, FSDP2 (`fully_shard`) a part of every parameter. Without torchrun there is one
process, and nothing of this runs.
"""

import gc
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, TypeVar, cast
from uuid import uuid4

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]  # but documented
from torch.nn.parallel import DistributedDataParallel

from qkv.errors import ArgumentError, QkvError, TrainingError
from qkv.train.order import Examples

Got = TypeVar("Got")

CPU = torch.device("cpu")

WAIT = timedelta(hours=1)
"""The others wait so long for the first process, which measures and writes alone."""

ELSEWHERE = "another process says this"
"""Noted on an error that nobody needs to read twice."""


@dataclass(frozen=True)
class World:
    """The processes that train one model.

    Attributes:
        rank: this one's number, from 0.
        size: how many there are.
        device: on which this one computes.
        restarted: whether torchrun started the processes again after one of them died.
        launch: what tells a run of torchrun, with all its starts, from any other; None without it.
    """

    rank: int = 0
    size: int = 1
    device: torch.device = CPU
    restarted: bool = False
    launch: str | None = None

    @property
    def first(self) -> bool:
        """Whether this process is the one that writes and tells."""
        return self.rank == 0

    def part(self, examples: Examples, number: int, parts: int) -> tuple[Examples, float]:
        """Return one of this process's parts of a batch, and whether it counts (1) or not (0).

        What has fewer examples than there are parts gives the first to all that have none: each
        process runs forward and backward as often as the others, which wait for it.
        """
        mine = examples[self.rank * parts + number :: self.size * parts]
        return (mine, 1.0) if len(mine) else (examples[:1], 0.0)

    def sum(self, value: float) -> float:
        """Return the sum of what every process gives."""
        if self.size == 1:
            return value
        total = torch.tensor(value, dtype=torch.float64, device=self.device)
        dist.all_reduce(total)
        return float(total)

    def from_first(self, value: Any) -> Any:
        """Return what the first process gives; numbers, text and what is made of them."""
        if self.size == 1:
            return value
        box = [value]
        dist.broadcast_object_list(box, src=0, device=self.device)
        return box[0]

    def from_all(self, value: Any) -> list[Any]:
        """Return what each process gives, in their order."""
        if self.size == 1:
            return [value]
        found: list[Any] = [None] * self.size
        dist.all_gather_object(found, value)
        return found

    def together(self, do: Callable[[], Got]) -> Got:
        """Let every process do the same; where one cannot, none goes on.

        Raises:
            QkvError: this process's own; or that another one stopped, and why.
        """
        failed: QkvError | None = None
        try:
            got = do()
        except QkvError as error:
            failed = error
        said = self.from_all("" if failed is None else str(failed))
        if not any(said):
            return got
        if failed is None:
            rank = next(rank for rank, what in enumerate(said) if what)
            failed = TrainingError(f"process {rank} stopped: {said[rank]}")
            failed.add_note(ELSEWHERE)
        elif str(failed) in said[: self.rank]:
            failed.add_note(ELSEWHERE)
        raise failed

    def by_first(self, do: Callable[[], Got]) -> Got:
        """Let the first process do something alone; what it gets, or its error, is everybody's."""
        if self.size == 1:
            return do()
        if not self.first:
            got, kind, message = self.from_first(None)
            if kind is not None:
                error = kind(message)
                error.add_note(ELSEWHERE)
                raise error
            return cast(Got, got)
        try:
            got = do()
        except Exception as error:
            kind = type(error) if isinstance(error, QkvError) else RuntimeError
            self.from_first((None, kind, f"the first process stopped: {error}"))
            raise
        self.from_first((got, None, ""))
        return got

    def wrap(self, model: nn.Module, *, shard: bool = False) -> nn.Module:
        """Return what is called in training: it adds up the gradients of all processes.

        Args:
            model: on this process's device unless it is sharded.
            shard: whether each process keeps a part of every parameter of `model` itself.

        Raises:
            ArgumentError: there is one process, and nobody to share with.
        """
        if shard:
            return self._share(model)
        if self.size == 1:
            return model
        return DistributedDataParallel(
            model, gradient_as_bucket_view=True, forward_sync_buffers=False
        )  # buffers: those of the first process are kept

    def check(self, *, shard: bool) -> None:
        """Raise ArgumentError where a model is to be shared, and there is nobody to share with."""
        if shard and self.size == 1:
            raise ArgumentError(
                "shard is True, but there is one process; wanted several: start them with "
                "torchrun --standalone --nproc-per-node N -m qkv train …"
            )

    def _share(self, model: nn.Module) -> nn.Module:
        """Shard the layers of every tower one by one, then what stands around them."""
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        self.check(shard=True)
        mesh = init_device_mesh(self.device.type, (self.size,))
        towers = getattr(model, "towers", {})
        for layer in (layer for tower in towers.values() for layer in tower.layers):
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        return model

    def adding_up(self, wrapped: nn.Module, last: bool) -> AbstractContextManager[Any]:
        """Within it, gradients of all processes are added up only in the last part of a batch."""
        if last or not isinstance(wrapped, DistributedDataParallel):
            return nullcontext()
        return wrapped.no_sync()

    def gather(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return tensors whole, to the first process; nothing that is whole already is copied."""
        found = {}
        for name, tensor in tensors.items():
            full = gathered(tensor)
            if self.first:  # the others help, and forget one tensor before the next
                found[name] = full
        return found

    @torch.no_grad()
    def scatter(self, tensors: Mapping[str, Tensor], places: Mapping[str, Tensor]) -> None:
        """Copy the first process's whole tensors into every process's, whole or sharded.

        Args:
            tensors: those of the first process; the other processes' tell only sizes.
            places: take them, by the same names.
        """
        for name, place in places.items():
            tensor = tensors[name]
            if self.size > 1:
                tensor = (
                    tensor.to(self.device, place.dtype)
                    if self.first
                    else torch.empty(tensor.shape, dtype=place.dtype, device=self.device)
                )
                tensor = _scattered(tensor, place)
            place.copy_(tensor)


def gathered(tensor: Tensor) -> Tensor:
    """Return a tensor as it is, or one that is sharded, with all its parts, on the CPU.

    All processes have to ask for what is sharded, in the same order.
    """
    gather = getattr(tensor, "full_tensor", None)  # a DTensor's
    return tensor.detach() if gather is None else cast(Tensor, gather()).detach().cpu()


def _scattered(tensor: Tensor, place: Tensor) -> Tensor:
    from torch.distributed.tensor import DTensor, distribute_tensor

    if isinstance(place, DTensor):
        return distribute_tensor(tensor, place.device_mesh, place.placements)
    dist.broadcast(tensor, src=0)
    return tensor


def said_elsewhere(error: BaseException) -> bool:
    """Whether an error of this process is one that another process says."""
    return ELSEWHERE in getattr(error, "__notes__", ())


@contextmanager
def world() -> Iterator[World]:
    """Join the processes that torchrun started; one process by itself is a world too.

    It computes on the GPU where there is one, each process of a machine on its own. After an error
    nobody is waited for: the process ends, and torchrun ends the others.

    Raises:
        ArgumentError: more processes on this machine than GPUs, or an environment that only looks
            like torchrun's.
    """
    size = _number("WORLD_SIZE", 1)
    restarts = _number("TORCHELASTIC_RESTART_COUNT", 0)
    device = _device(_number("LOCAL_RANK", 0))
    if size == 1:
        yield World(device=device, restarted=restarts > 0, launch=_launch())
        return
    _join("gloo" if device == CPU else "nccl", restarts)
    joined = World(dist.get_rank(), size, device, launch=_launch())
    # each machine counts only its own processes that died
    yield replace(joined, restarted=joined.sum(restarts) > 0)
    gc.collect()  # models that were joined hold the group, and its threads must not outlive Python
    dist.destroy_process_group()


def _device(local: int) -> torch.device:
    """Return the GPU of a process, by its number on this machine; the CPU where there is none."""
    if not torch.cuda.is_available():
        return CPU
    gpus = torch.cuda.device_count()
    if local >= gpus:
        raise ArgumentError(
            f"process {local} of this machine finds {gpus} GPUs; wanted one for each process: "
            f"--nproc-per-node {gpus}, or CUDA_VISIBLE_DEVICES= for all on the CPU"
        )
    device = torch.device("cuda", local)
    torch.cuda.set_device(device)
    return device


def _join(backend: str, restarts: int) -> None:
    """Meet the other processes, in a place of its own for each start.

    torchrun keeps one store for all starts on a machine, and what started first left its addresses
    there: who reads those waits for ever (pytorch/pytorch issue 135712). Several machines do not
    count their starts alike; there `TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1` makes a new store for
    each.
    """
    known = os.environ
    lacking = [name for name in ("MASTER_ADDR", "MASTER_PORT", "RANK") if name not in known]
    if lacking:
        raise ArgumentError(
            f"WORLD_SIZE is {known['WORLD_SIZE']}, but {', '.join(lacking)} is not set; wanted all "
            "of them, as torchrun sets them, or none"
        )
    store = _store()
    if store is None or known.get("GROUP_WORLD_SIZE") != "1":
        dist.init_process_group(backend, timeout=WAIT)
        return
    dist.init_process_group(
        backend, store=PrefixStore(f"start {restarts}", store), timeout=WAIT,
        rank=int(known["RANK"]), world_size=int(known["WORLD_SIZE"]),
    )  # fmt: skip


def _store() -> TCPStore | None:
    """Return what torchrun keeps from its first start to its last; None where there is no such."""
    known = os.environ
    if known.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return None
    return TCPStore(known["MASTER_ADDR"], int(known["MASTER_PORT"]), is_master=False)


def _number(name: str, otherwise: int) -> int:
    """Return a number that torchrun has put into the environment."""
    said = os.environ.get(name)
    if said is None:
        return otherwise
    if not said.isdecimal():
        raise ArgumentError(
            f"{name} is {said!r} in the environment; wanted a whole number, as torchrun says it, "
            f"or no such variable for a single process"
        )
    return int(said)


def _launch() -> str | None:
    """Return a name of this run of torchrun, which all its processes and starts find."""
    store = _store()
    if store is None:
        return os.environ.get("TORCHELASTIC_RUN_ID")
    return str(store.compare_set("qkv launch", "", uuid4().hex).decode())
