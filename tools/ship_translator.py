"""Put a trained translator into the package: `python tools/ship_translator.py FOLDER "COMMAND"`.

FOLDER is what `qkv train translate` has written, COMMAND what was typed. What is measured is the
folder as it was saved, in half precision, on the sentences that its training held out. The model,
its vocabulary and the record of its training are taken over, the checkpoint and the log are not.
"""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from qkv.models import load
from qkv.train.tasks.translate import Translate

MODEL = Path(__file__).parents[1] / "src/qkv/models/spanish"
FILES = ("config.json", "model.safetensors", "tokenizer.json")
MOST, LEAST = 8_000_000, 0.95


@torch.no_grad()
def measured(folder: Path, record: Mapping[str, Any]) -> dict[str, float]:
    """Measure what lies in a folder; stop where the data is not that of its training."""
    told = record["about"]
    task = Translate.open(
        list(told["data"]["sets"]), seed=told["data"]["split"], system=told["system"]
    )
    if json.loads(json.dumps(task.describe()))["data"] != told["data"]:
        sys.exit(f"{folder} was trained on other data than is read now: train it again")
    return dict(task.measure(load(folder)))


def main(folder: Path, command: str) -> None:
    """Measure and check the model, and copy it."""
    record = json.loads((folder / "training.json").read_text("utf-8"))
    values = measured(folder, record)
    exact = values.get("exact phrasebook", values["exact"])  # what is joined has more to get wrong
    files = {name: (folder / name).read_bytes() for name in FILES}
    told = {"command": command, **record, "measured": values}
    files["training.json"] = f"{json.dumps(told, indent=2, ensure_ascii=False)}\n".encode()
    size = sum(map(len, files.values()))
    if exact < LEAST or size > MOST:
        sys.exit(f"{exact:.1%} exact in {size:,} bytes; wanted {LEAST:.0%} in {MOST:,} at most")
    MODEL.mkdir(exist_ok=True)
    for name, content in files.items():
        (MODEL / name).write_bytes(content)
    print(f"{exact:.1%} exact on held-out sentences, {size:,} bytes, in {MODEL}")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(Path(sys.argv[1]), sys.argv[2])
