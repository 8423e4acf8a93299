"""What torchrun starts in the tests: several trainings, and a process that dies in one."""

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch

from qkv.train.distributed import World, world
from qkv.train.events import Event, Stepped
from qkv.train.loop import train
from qkv.train.order import Examples
from tests.train.small_task import Rows, SmallTask, settings


class Dying(SmallTask):
    """One of the processes is killed in the middle of a step, or stops there with an error.

    This is so in one of torchrun's starts, and not in those that follow.
    """

    def __init__(
        self, start: int, rank: int, after: int, how: str, world: World, **options: Any
    ) -> None:
        super().__init__(**options)
        here = (int(os.environ["TORCHELASTIC_RESTART_COUNT"]), world.rank) == (start, rank)
        self.left = after if here else -1
        self.how = how

    def batch(self, examples: Examples) -> Rows:
        self.left -= 1
        if self.left == 0 and self.how == "error":
            raise OSError("the data cannot be read")
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().batch(examples)


def main() -> None:
    torch.set_num_threads(1)
    out, orders = Path(sys.argv[1]), json.loads(sys.argv[2])
    with world() as joined:
        for name, order in orders.items():
            told: list[Event] = []
            task = (
                Dying(*order["dies"], joined, **order.get("task", {}))
                if "dies" in order
                else SmallTask(**order.get("task", {}))
            )
            result = train(
                task, settings(**order["settings"]), out / name, world=joined,
                shard=order.get("shard", False), listen=told.append,
                resume=order.get("resume", False),
            )  # fmt: skip
            if joined.first and len(told) > 1:  # it was not at its end before
                losses = [event.loss for event in told if isinstance(event, Stepped)]
                about = {"losses": losses, "values": dict(result.values)}
                (out / f"{name}.json").write_text(json.dumps(about))


if __name__ == "__main__":
    main()
