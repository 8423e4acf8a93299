"""Writing with SmolLM2-135M: ours beside Hugging Face, and one token beside its bare products.

    python -m benchmarks.generate --runs 3 --json generate.json

Both have the same weights, the same prompt of 128 tokens, and write 128 tokens greedily with
nothing to end them. Before anything is timed the texts are compared: in float32 they have to be
the same; in bfloat16, where tokens are often equally good, the share before they part is told. A
step is one token that follows a prompt. Its floor is what cannot be left out: the products of all
weights with one row, each in the layout and by the call that is fastest here.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

if not __package__:  # run as a file: the checkout's root stands in for this folder
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks.pairing import (
    Bar,
    Pace,
    Timing,
    bar_record,
    interleave,
    timing_table,
    write_json,
)
from qkv import load
from qkv.core.laid import Laid
from qkv.core.product import linear
from qkv.models.decoder_only import DecoderOnly
from qkv.models.llama import LLAMA
from qkv.models.loading import look
from qkv.models.named import find
from qkv.models.writing.generate import write
from qkv.models.writing.sampling import Sampling

OURS, THEIRS, FLOOR = "ours", "Hugging Face", "floor"
PROMPT = NEW = 128
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
FASTER = {("float32", 1): 1.5, ("bfloat16", 1): 1.4, ("float32", 8): 1.2, ("bfloat16", 8): 1.2}
"""Tokens a second, as a multiple of Hugging Face's at least."""

ABOVE_FLOOR = 1.3
TEXTS = (
    "Attention is a short calculation. Every word asks a question, every word holds a key, and "
    "what a word takes from another depends on how well the two fit. ",
    "The hotel stands above the harbour. In the morning the fishermen come back, and the cook goes "
    "down with a basket to see what the night has brought. ",
)


@dataclass(frozen=True)
class Writers:
    """The two models in one dtype, with the same weights."""

    ours: DecoderOnly
    theirs: Any

    @classmethod
    def load(cls, dtype: torch.dtype) -> "Writers":
        """Read the installed file, and give Hugging Face's model the same numbers.

        From a GGUF file it would multiply by packed weights, which are other numbers.
        """
        from transformers import LlamaConfig, LlamaForCausalLM

        found = look(find("smollm2"))
        ours = load("smollm2", dtype=dtype)
        ours.rules = replace(ours.rules, ends=frozenset())
        with torch.device("meta"):
            theirs = LlamaForCausalLM(LlamaConfig(**found.config)).to(dtype)
        state = {LLAMA.source(name): p.contiguous() for name, p in ours.state_dict().items()}
        state["lm_head.weight"] = state["model.embed_tokens.weight"]
        theirs.load_state_dict(state, assign=True)
        theirs.tie_weights()
        rotary = type(theirs.model.rotary_emb)
        theirs.model.rotary_emb = rotary(theirs.config)  # its buffers are in no file
        theirs.generation_config.eos_token_id = None
        return cls(ours, theirs.eval())

    def prompts(self, batch: int) -> Tensor:
        """Return so many prompts of one length."""
        rows = []
        for i in range(batch):
            ids = self.ours.tokenizer(TEXTS[i % len(TEXTS)] * 8).ids
            rows.append(ids[i : i + PROMPT])
        return torch.tensor(rows)


def write_ours(model: DecoderOnly, ids: Tensor, new: int = NEW) -> list[list[int]]:
    """Write greedily after each prompt."""
    return [list(w.ids) for w in write(model, ids.tolist(), Sampling(max_tokens=new))]


@torch.inference_mode()
def write_theirs(model: Any, ids: Tensor, new: int = NEW) -> list[list[int]]:
    """Write greedily after each prompt, by Hugging Face's `generate`."""
    whole = model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=new, min_new_tokens=new,
        do_sample=False, pad_token_id=0,
    )  # fmt: skip
    return [row[ids.shape[1] :].tolist() for row in whole]


def agreement(one: Sequence[Sequence[int]], other: Sequence[Sequence[int]]) -> float:
    """Share of tokens, from the first on, before two texts depart; 1 where they are the same."""
    shares = []
    for a, b in zip(one, other, strict=True):
        same = next((i for i, (x, y) in enumerate(zip(a, b, strict=True)) if x != y), len(a))
        shares.append(same / len(a))
    return sum(shares) / len(shares)


def generation(writers: Writers, batch: int, pace: Pace) -> tuple[Timing, float]:
    """Time whole texts; return also how far the two agree."""
    ids = writers.prompts(batch)
    ours, theirs = (
        partial(write_ours, writers.ours, ids),
        partial(write_theirs, writers.theirs, ids),
    )
    same = agreement(ours(), theirs())
    return interleave({OURS: ours, THEIRS: theirs}, pace), same


def step(model: DecoderOnly) -> Callable[[], object]:
    """Return what reads one more token after a prompt."""
    cache = model.new_cache(PROMPT + NEW)
    one = torch.tensor([[5]])

    def call() -> Tensor:
        with torch.inference_mode():
            if cache.length == PROMPT + NEW:
                cache.cut(PROMPT)
            return model.next(one, cache)

    model.next(torch.randint(1000, (1, PROMPT)), cache)
    return call


PRODUCTS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "F.linear": F.linear,
    "mv": lambda x, w: torch.mv(w, x[0]),
    "our linear": linear,
}


def floor(model: DecoderOnly) -> tuple[str, Callable[[], object]]:
    """Return the fastest way to multiply all weights with one row, and its name."""
    matrices = [p.detach().clone(memory_format=torch.contiguous_format) for p in model.parameters()]
    rows = [w for w in matrices if w.dim() == 2]
    columns = [w.t().contiguous().t() for w in rows]
    inputs = {w.shape[1]: torch.randn(1, w.shape[1]).to(w.dtype) for w in rows}
    calls: dict[str, Callable[[], object]] = {}
    for layout, weights in (("rows", rows), ("columns", columns)):
        for name, product in PRODUCTS.items():

            def call(weights: list[Tensor] = weights, product: Any = product) -> list[Tensor]:
                with torch.inference_mode():
                    return [product(inputs[w.shape[1]], w) for w in weights]

            calls[f"{name}, {layout}"] = call
    parameters, blocks = [torch.nn.Parameter(w, requires_grad=False) for w in rows], Laid()

    def laid() -> list[Tensor]:
        with torch.inference_mode(), blocks.used():
            return [linear(inputs[w.shape[1]], w) for w in parameters]

    calls["our linear, blocks"] = laid
    timing = interleave(calls, Pace(seconds=10, least=8, most=12))
    best = min(calls, key=timing.median)
    return best, calls[best]


def run(pace: Pace, batches: Sequence[int]) -> tuple[list[Bar], list[dict[str, Any]]]:
    """Measure everything once, and print it."""
    bars: list[Bar] = []
    records: list[dict[str, Any]] = []
    for name, dtype in DTYPES.items():
        writers = Writers.load(dtype)
        for batch in batches:
            timing, same = generation(writers, batch, pace)
            faster = FASTER[name, batch]
            bar = Bar(f"{THEIRS}, {name}, batch {batch} (its time / {faster})", 1 / faster,
                      timing.ratio(OURS, THEIRS))  # fmt: skip
            rates = {who: NEW * batch / timing.median(who) for who in (OURS, THEIRS)}
            said = ", ".join(f"{who} {rate:.1f} tokens/s" for who, rate in rates.items())
            print(f"\n{name}, batch {batch}: {said}; the same text for {same:.0%} of its length")
            print(timing_table(timing, OURS), f"  {bar}", sep="\n", flush=True)
            if name == "float32" and same < 1:
                raise SystemExit("the texts in float32 are not the same: nothing can be compared")
            bars.append(bar)
            records.append({"case": f"{name}, batch {batch}", "seconds": timing.seconds,
                            "same": same, "bar": bar_record(bar)})  # fmt: skip
        how, products = floor(writers.ours)
        timing = interleave(
            {OURS: step(writers.ours), FLOOR: products}, Pace(pace.seconds, 20, 100)
        )
        bar = Bar(f"floor ({how}), {name}, a step", ABOVE_FLOOR, timing.ratio(OURS, FLOOR))
        print(f"\n{name}, one token\n{timing_table(timing, OURS)}\n  {bar}", flush=True)
        bars.append(bar)
        records.append({"case": f"{name}, step", "floor": how, "seconds": timing.seconds,
                        "bar": bar_record(bar)})  # fmt: skip
    return bars, records


def options() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.generate", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--runs", type=int, default=1, help="repeat the whole; 3 for a verdict")
    parser.add_argument("--batches", type=int, nargs="*", default=(1, 8), choices=(1, 8))
    parser.add_argument("--json", type=Path, help="also write the measurements to this file")
    return parser.parse_args()


def main() -> int:
    """Measure, print, and return 1 if something was missed."""
    given = options()
    pace = Pace(seconds=20, least=6, most=12)
    reached, records = [], []
    for _ in range(given.runs):
        bars, measured = run(pace, given.batches)
        reached += [bar.met for bar in bars]
        records.append(measured)
    if given.json:
        write_json(given.json, records, torch=torch.__version__, threads=torch.get_num_threads())
    return 0 if all(reached) else 1


if __name__ == "__main__":
    sys.exit(main())
