"""What torchrun starts in the tests of tasks: each of three for a few steps, in two processes."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from qkv.train.distributed import World, world
from qkv.train.events import Event, Stepped
from qkv.train.loop import train
from qkv.train.tasks.caption import Caption
from qkv.train.tasks.classify import Classify
from qkv.train.tasks.translate import Translate
from qkv.train.translation.systems import Sizes

SIZES = Sizes(vocabulary=400, width=16, layers=1, heads=2, hidden=24, dropout=0.0)


def tasks(data: Path) -> dict[str, Any]:
    """Three tasks: a recurrent network, a captioner, and a layer on top of a frozen encoder."""
    return {
        "translate": Translate.open([str(data / "pairs.tsv")], system="additive", sizes=SIZES),
        "caption": Caption.open(width=16, heads=2, held_out=5),
        "classify": Classify.open(
            [str(data / "texts.tsv")], model=str(data / "encoder"), frozen=True
        ),
    }


def losses(task: Any, out: Path, among: World) -> dict[str, Any]:
    """Train in double precision, and return what it was like."""
    told: list[Event] = []
    batch = {"caption": 8}.get(task.name, 300)
    settings = replace(
        task.usual, steps=4, batch=batch, warmup=0, measure_every=4, save_every=4,
        precision="float64", learning_rate=1e-2,
    )  # fmt: skip
    result = train(task, settings, out, world=among, listen=told.append)
    steps = [event.loss for event in told if isinstance(event, Stepped)]
    return {"losses": steps, "values": dict(result.values)}


def main() -> None:
    torch.set_num_threads(1)
    data, out = map(Path, sys.argv[1:])
    with world() as joined:
        for name, task in tasks(data).items():
            found = losses(task, out / name, joined)
            if joined.first:
                (out / f"{name}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
