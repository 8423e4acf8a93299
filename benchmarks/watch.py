"""What watching costs: a BERT plain, watched, summarised, and beside those who form n × n matrices.

    python -m benchmarks.watch --runs 3 --json watch.json

Six layers of 384 with 12 heads, on inputs of 128, 512, 2048 and 8192 tokens. In turns are timed:
the model alone; under a mode that does nothing, which is the least that any such recording can
cost; watched; watched with every summary computed at once (`keep="summary"`) and the table asked
for; and Hugging Face's own way, eager attention that returns its weights. Where attnread is
installed it reads the same heads of a Llama of the same sizes (it knows no BERT). Memory is the
most that was resident during one run, less what was before, each in a process of its own that had
imported everything, built the model and run it once on 16 tokens.
"""

import argparse
import json
import subprocess
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

if not __package__:  # run as a file: the checkout's root stands in for this folder
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import qkv
from benchmarks.pairing import (
    QUICK,
    Bar,
    Call,
    Pace,
    Timing,
    bar_record,
    interleave,
    table,
    timing_table,
    write_json,
)

PLAIN, NOTHING, WATCHED = "plain", "a mode that does nothing", "watched"
SUMMARISED, EAGER, ATTNREAD = "watched, all summaries", "eager, output_attentions", "attnread"
SIDES = (PLAIN, NOTHING, WATCHED, SUMMARISED, EAGER)

LAYERS, WIDTH, HEADS = 6, 384, 12
TOKENS = (128, 512, 2048, 8192)
PACES = {
    128: Pace(seconds=10),
    512: Pace(seconds=20),
    2048: Pace(seconds=60, least=20),
    8192: Pace(seconds=120, least=6, most=20),
}
ROOM = 4_000_000_000
"""Bytes of weights that eager mode may return here; beyond them its memory is computed."""

WATCHING = {512: 1.10, 2048: 1.05, 8192: 1.05}
"""Watched over plain, at most."""
GROWTH, SHARE = 4.5, 1 / 20
"""Memory of all summaries: at four times the tokens over before, and over that of eager mode."""
WRITTEN, WRITING_MEMORY = 1000, 2_000_000_000
"""Tokens that a model of SmolLM2's size writes while it is watched, and bytes that may take."""


class Nothing(TorchDispatchMode):
    """Hands every operation on."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Call what was called."""
        return func(*args, **(kwargs or {}))


@dataclass(frozen=True)
class Result:
    """What was measured at one length; bytes of eager mode may be computed."""

    tokens: int
    timing: Timing
    bars: list[Bar]
    memory: dict[str, int]

    def record(self) -> dict[str, Any]:
        """Return it as JSON takes it."""
        names = [name for name in self.timing.seconds if name != PLAIN]
        return {
            "tokens": self.tokens,
            "rounds": self.timing.rounds,
            "median_ms": {n: 1e3 * self.timing.median(n) for n in self.timing.seconds},
            "to_plain": {n: vars(self.timing.ratio(n, PLAIN)) for n in names},
            "bars": [bar_record(bar) for bar in self.bars],
            "memory_bytes": self.memory,
        }


def bert(implementation: str) -> nn.Module:
    """Return the model, with room for the longest input."""
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=1000,
        hidden_size=WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        intermediate_size=4 * WIDTH,
        max_position_embeddings=max(TOKENS),
        attn_implementation=implementation,
    )
    return BertModel(config, add_pooling_layer=False).eval()


def side(name: str) -> Callable[[Tensor], object]:
    """Return what is timed, as a function of the ids of the tokens."""
    model = bert("eager" if name == EAGER else "sdpa")

    def nothing(ids: Tensor) -> object:
        with Nothing():
            return model(ids)

    def watched(ids: Tensor) -> object:
        with qkv.watch(model) as seen:
            model(ids)
        return seen

    def summarised(ids: Tensor) -> object:
        with qkv.watch(model, keep="summary") as seen:
            model(ids)
        return seen.table()

    return {
        PLAIN: model,
        NOTHING: nothing,
        WATCHED: watched,
        SUMMARISED: summarised,
        EAGER: lambda ids: model(ids, output_attentions=True),
    }[name]


def ids_of(tokens: int) -> Tensor:
    """Return a sentence without meaning."""
    return torch.randint(1000, (1, tokens), generator=torch.Generator().manual_seed(1))


def returned(tokens: int) -> int:
    """Bytes of the weights that eager mode returns: all heads of all layers, n × n float32."""
    return LAYERS * HEADS * tokens**2 * 4


def compare(tokens: int) -> None:
    """Confirm that the watched weights are those that eager mode returns.

    Raises:
        AssertionError: they differ by more than 1e-5.
    """
    wanted = side(EAGER)(ids_of(tokens)).attentions  # type: ignore[attr-defined]
    seen = side(WATCHED)(ids_of(tokens))
    for call, weights in zip(seen, wanted, strict=True):  # type: ignore[call-overload]
        distance = float((call.weights.dense() - weights).abs().max())
        if not distance <= 1e-5:
            raise AssertionError(f"{call.path} is {distance:.1e} from what eager mode returns")


def measure(tokens: int, pace: Pace) -> Result:
    """Time one length and measure its memory."""
    ids = ids_of(tokens)
    names = [name for name in SIDES if name != EAGER or returned(tokens) <= ROOM]
    with torch.no_grad():
        if tokens == min(TOKENS):
            compare(tokens)
        calls: dict[str, Call] = {name: _call(side(name), ids) for name in names}
        timing = interleave(calls, pace)
    memory = {name: peak(name, tokens) for name in names}
    memory.setdefault(EAGER, returned(tokens))
    return Result(tokens, timing, bars(tokens, timing), memory)


def _call(run: Callable[[Tensor], object], ids: Tensor) -> Call:
    return lambda: run(ids)


def bars(tokens: int, timing: Timing) -> list[Bar]:
    """Return what this length has to reach."""
    found = []
    if tokens in WATCHING:
        found.append(Bar(f"plain, {WATCHED}", WATCHING[tokens], timing.ratio(WATCHED, PLAIN)))
    if tokens >= 512 and EAGER in timing.seconds:
        found.append(Bar(f"{EAGER}, {SUMMARISED}", 1.0, timing.ratio(SUMMARISED, EAGER)))
    return found


def peak(name: str, tokens: int) -> int:
    """Bytes that one run takes at its peak, in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.watch", "--peak", name, str(tokens)]
    root = Path(__file__).resolve().parents[1]
    ended = subprocess.run(command, check=True, capture_output=True, text=True, cwd=root)
    return int(json.loads(ended.stdout.splitlines()[-1]))


def peak_here(name: str, tokens: int) -> int:
    """The same in this process, whose imports and first run are over."""
    run, ids = writing() if name == "writing" else (side(name), ids_of(tokens))
    run(ids[:, :16])
    before = _resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5", "ascii")
    kept = run(ids)
    most = _resident("VmHWM") - before
    del kept
    return most


def _resident(key: str) -> int:
    lines = Path("/proc/self/status").read_text("ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(key))


def writing() -> tuple[Callable[[Tensor], object], Tensor]:
    """Return what writes tokens while it is watched, and a prompt: sizes of SmolLM2-135M."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        tie_word_embeddings=True,
    )
    model = LlamaForCausalLM(config).eval()

    def write(ids: Tensor) -> object:
        new = 2 if ids.shape[1] == 16 else WRITTEN
        with qkv.watch(model) as seen:
            model.generate(
                ids, max_new_tokens=new, min_new_tokens=new, do_sample=False, pad_token_id=0
            )
        return seen

    return write, ids_of(24)


def attnread_beside(tokens: int, pace: Pace) -> Timing:
    """Time attnread and a watch that forms the same weights, on a Llama of the same sizes."""
    from attnread import extract_attention
    from transformers import LlamaConfig, LlamaModel

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=1000,
        hidden_size=WIDTH,
        intermediate_size=4 * WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=HEADS,
    )
    model, ids = LlamaModel(config).eval(), ids_of(tokens)

    def watched() -> list[Tensor]:
        with qkv.watch(model) as seen:
            model(ids, use_cache=False)
        return [call.weights.dense() for call in seen]

    def read() -> dict[tuple[str, int, int], Tensor]:
        return extract_attention(model, {"input_ids": ids})  # type: ignore[no-any-return]

    with torch.no_grad():
        ours, theirs = watched(), read()
        for (_, layer, head), weights in theirs.items():
            torch.testing.assert_close(ours[layer][:, head], weights, rtol=0, atol=1e-4)
        return interleave({"watched, all weights formed": watched, ATTNREAD: read}, pace)


def report(result: Result) -> None:
    """Print times, memory and verdicts of one length."""
    print(f"\n{result.tokens} tokens: {result.timing.rounds} rounds")
    print(timing_table(result.timing, PLAIN, over=True))
    rows = [("peak above the start", "MB")]
    rows += [(name, f"{size / 1e6:.0f}") for name, size in result.memory.items()]
    print(table(rows))
    for bar in result.bars:
        print(f"  {bar}")
    sys.stdout.flush()


def of_memory(results: list[Result]) -> list[tuple[str, float, float]]:
    """What memory has to reach, as (what, limit, got)."""
    memory = {result.tokens: result.memory for result in results}
    found = []
    if {2048, 8192} <= memory.keys():
        got = memory[8192][SUMMARISED] / memory[2048][SUMMARISED]
        found.append((f"memory of {SUMMARISED}, 8192 over 2048 tokens", GROWTH, got))
    if 8192 in memory:
        got = memory[8192][SUMMARISED] / memory[8192][EAGER]
        found.append((f"memory of {SUMMARISED} over {EAGER}, 8192 tokens", SHARE, got))
    return found


def options() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.watch", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--runs", type=int, default=1, help="repeat the whole; 3 for a verdict")
    parser.add_argument("--quick", action="store_true", help="few rounds: for development")
    parser.add_argument("--only", type=int, nargs="+", choices=TOKENS, help="lengths, in tokens")
    parser.add_argument("--no-writing", action="store_true", help="without the 1,000 tokens")
    parser.add_argument("--threads", type=int, help="threads of PyTorch; its own choice otherwise")
    parser.add_argument("--json", type=Path, help="also write the measurements to this file")
    parser.add_argument("--peak", nargs=2, metavar=("SIDE", "TOKENS"), help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> int:
    """Measure, print, and return 1 if a bar was missed."""
    warnings.filterwarnings("ignore")
    given = options()
    if given.threads:
        torch.set_num_threads(given.threads)
    if given.peak:
        with torch.no_grad():
            print(json.dumps(peak_here(given.peak[0], int(given.peak[1]))))
        return 0
    print(f"PyTorch {torch.__version__}, {torch.get_num_threads()} threads")
    runs = [run(given) for _ in range(given.runs)]
    memory = [] if given.no_writing else [_writing()]
    missed = [line for results in runs for line in lines(results) if line.startswith("MISSED")]
    missed += [line for line in memory if line.startswith("MISSED")]
    if given.json:
        about = {"torch": torch.__version__, "threads": torch.get_num_threads()}
        write_json(given.json, [[r.record() for r in results] for results in runs], **about)
    print("\n" + "\n".join(["missed:", *missed] if missed else ["every bar met"]))
    return 1 if missed else 0


def run(given: argparse.Namespace) -> list[Result]:
    """Measure every length once, and print each as it is done."""
    results = []
    for tokens in given.only or TOKENS:
        results.append(measure(tokens, QUICK if given.quick else PACES[tokens]))
        report(results[-1])
        if find_spec("attnread") is not None and tokens <= 512:
            print(timing_table(attnread_beside(tokens, QUICK), ATTNREAD))
    for bar in of_memory(results):
        print(_judged(*bar))
    return results


def lines(results: list[Result]) -> list[str]:
    """Every verdict of a run, in words."""
    times = [f"{bar}, {result.tokens} tokens" for result in results for bar in result.bars]
    return times + [_judged(*bar) for bar in of_memory(results)]


def _judged(what: str, limit: float, got: float) -> str:
    return f"{'met' if got <= limit else 'MISSED':<6}  {what} ≤ {limit:.3g}: {got:.3g}"


def _writing() -> str:
    megabytes = peak("writing", 0) / 1e6
    said = _judged(f"MB for {WRITTEN} written tokens", WRITING_MEMORY / 1e6, megabytes)
    print("\n" + said)
    return said


if __name__ == "__main__":
    sys.exit(main())
