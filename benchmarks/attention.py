"""Our `MultiHeadAttention` beside four peers and the floor, in one run.

    python -m benchmarks.attention --runs 3 --json attention.json

Everybody gets the same input and, where it has the same parameters, the same weights; before
anything is timed the results are compared. The floor is what cannot be left out: four bare matrix
products and one call of the fused kernel, of the same sizes, on tensors that lie ready for it.
"""

import argparse
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import BertConfig
from transformers.models.bert.modeling_bert import BertSelfAttention
from x_transformers.x_transformers import Attention as XAttention

if not __package__:  # run as a file: the checkout's root stands in for this folder
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks.pairing import (
    QUICK,
    Bar,
    Pace,
    Timing,
    bar_record,
    interleave,
    timing_table,
    write_json,
)
from qkv.nn.attention import MultiHeadAttention

OURS, FLOOR, TORCH = "ours", "floor", "nn.MultiheadAttention"
PEERS = (TORCH, f"{TORCH}, need_weights", "x-transformers", "Hugging Face BERT")
FASTEST, ABOVE_FLOOR, BACKWARD = 1.05, 1.15, 1.03
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}
"""Largest distance from the plain calculation, as a share of its largest number."""


class Size(NamedTuple):
    """One input: (batch, tokens, width), and how many heads read it."""

    batch: int
    tokens: int
    width: int
    heads: int


SIZES = (Size(1, 16, 384, 12), Size(8, 128, 512, 8), Size(8, 512, 512, 8), Size(1, 2048, 512, 8))


class Case(NamedTuple):
    """A size in a dtype, in inference or with gradients of the input and all parameters."""

    size: Size
    dtype: torch.dtype
    backward: bool

    def __str__(self) -> str:
        kind = "forward with backward" if self.backward else "forward"
        return f"{tuple(self.size)} {str(self.dtype).removeprefix('torch.')}, {kind}"


class Contestant(NamedTuple):
    """Something to be timed, and what it wants gradients for besides the input."""

    call: Callable[[Tensor], Tensor | tuple[Tensor, ...]]
    parameters: Sequence[Tensor]


@dataclass(frozen=True)
class Result:
    """What was measured in a case."""

    case: Case
    timing: Timing
    bars: list[Bar]

    def record(self) -> dict[str, Any]:
        """Return it as JSON takes it."""
        names = [name for name in self.timing.seconds if name != OURS]
        return {
            "case": str(self.case),
            "rounds": self.timing.rounds,
            "calls_a_sample": self.timing.inner,
            "median_ms": {n: 1e3 * self.timing.median(n) for n in self.timing.seconds},
            "ours_to": {n: vars(self.timing.ratio(OURS, n)) for n in names},
            "bars": [bar_record(bar) for bar in self.bars],
        }


def contestants(case: Case) -> dict[str, Contestant]:
    """Build everybody with the weights of ours, in the same mode."""
    _, _, n, h = case.size
    ours = MultiHeadAttention(n, num_heads=h, d_k=n // h, d_v=n // h, n_out=n, bias=True)
    fused = nn.MultiheadAttention(n, h, batch_first=True)
    x_transformers = XAttention(n, heads=h, dim_head=n // h, flash=True)
    bert = BertSelfAttention(_bert_config(n, h)), nn.Linear(n, n)
    _copy(ours, fused, x_transformers, *bert)
    modules = (ours, fused, x_transformers, *bert)
    for module in modules:
        module.to(case.dtype).train(case.backward)
    shared = list(fused.parameters())
    return {
        OURS: Contestant(lambda x: ours(x, x, x), list(ours.parameters())),
        PEERS[0]: Contestant(lambda x: fused(x, x, x, need_weights=False)[0], shared),
        PEERS[1]: Contestant(lambda x: fused(x, x, x, need_weights=True)[0], shared),
        PEERS[2]: Contestant(x_transformers, list(x_transformers.parameters())),
        PEERS[3]: Contestant(
            lambda x: bert[1](bert[0](x)[0]), [p for part in bert for p in part.parameters()]
        ),
        FLOOR: _floor(case, [weight for weight, _ in _projections(ours.parameters())]),
    }


def _projections(parameters: Iterable[Tensor]) -> list[tuple[Tensor, Tensor]]:
    """Weights and biases of WQ, WK, WV and WO, from the packed parameters of ours."""
    weight, bias, out, out_bias = (parameter.detach() for parameter in parameters)
    return [*zip(weight.chunk(3), bias.chunk(3), strict=True), (out, out_bias)]


def _bert_config(width: int, heads: int) -> BertConfig:
    return BertConfig(
        hidden_size=width,
        num_attention_heads=heads,
        attention_probs_dropout_prob=0.0,
        attn_implementation="sdpa",
    )


@torch.no_grad()
def _copy(
    ours: MultiHeadAttention,
    fused: nn.MultiheadAttention,
    x_transformers: XAttention,
    bert: BertSelfAttention,
    dense: nn.Linear,
) -> None:
    """Give the peers our weights; x-transformers has no biases."""
    (q, q_bias), (k, k_bias), (v, v_bias), (o, o_bias) = _projections(ours.parameters())
    fused.in_proj_weight.copy_(torch.cat([q, k, v]))
    fused.in_proj_bias.copy_(torch.cat([q_bias, k_bias, v_bias]))
    linears = (bert.query, bert.key, bert.value, dense)
    weights, biases = (q, k, v, o), (q_bias, k_bias, v_bias, o_bias)
    for part, weight, bias in zip(linears, weights, biases, strict=True):
        part.weight.copy_(weight)
        part.bias.copy_(bias)
    fused.out_proj.load_state_dict(dense.state_dict())
    its = x_transformers.to_q, x_transformers.to_k, x_transformers.to_v, x_transformers.to_out
    for part, weight in zip(its, weights, strict=True):
        part.weight.copy_(weight)


def _floor(case: Case, weights: list[Tensor]) -> Contestant:
    batch, tokens, width, heads = case.size
    shape = batch, heads, tokens, width // heads
    q, k, v = (torch.randn(shape, dtype=case.dtype) for _ in range(3))
    for tensor in (q, k, v):
        tensor.requires_grad_(case.backward)
    weights = [w.clone().requires_grad_(case.backward) for w in weights]

    def call(x: Tensor) -> tuple[Tensor, ...]:
        return F.scaled_dot_product_attention(q, k, v), *(F.linear(x, w) for w in weights)

    return Contestant(call, [*weights, q, k, v])


def plain(x: Tensor, projections: list[tuple[Tensor, Tensor]], heads: int, biased: bool) -> Tensor:
    """Attention written out, in the dtype of x: softmax(Q Kᵀ / √d_k) V, joined, times WOᵀ."""
    w = [(weight.to(x), bias.to(x) if biased else None) for weight, bias in projections]
    q, k, v = (F.linear(x, *p).unflatten(-1, (heads, -1)).transpose(1, 2) for p in w[:3])
    weights = torch.softmax(q @ k.mT / q.shape[-1] ** 0.5, -1)
    return F.linear((weights @ v).transpose(1, 2).flatten(-2), *w[3])


def compare(case: Case, everybody: dict[str, Contestant], x: Tensor) -> None:
    """Confirm that ours and every peer calculate the same.

    Raises:
        AssertionError: one of them is further from the plain calculation than the tolerance.
    """
    projections = _projections(everybody[OURS].parameters)
    for name in (OURS, *PEERS):
        biased = name != "x-transformers"
        wanted = plain(x.detach().float(), projections, case.size.heads, biased).detach()
        got = everybody[name].call(x)
        assert isinstance(got, Tensor)
        got = got.detach()
        distance = float((got.float() - wanted).abs().max() / wanted.abs().max())
        if not distance <= TOLERANCE[case.dtype]:
            raise AssertionError(f"{case}: {name} is {distance:.1e} from the plain calculation")


def step(contestant: Contestant, x: Tensor) -> Callable[[], object]:
    """Return what is timed: the forward, or the forward with all gradients."""
    if not x.requires_grad:
        return partial(contestant.call, x)
    outputs = contestant.call(x)
    ones = outputs if isinstance(outputs, tuple) else (outputs,)
    above = [torch.randn_like(output) for output in ones]
    wanted = [x, *contestant.parameters]

    def call() -> object:
        outputs = contestant.call(x)
        return torch.autograd.grad(outputs, wanted, above)

    return call


def measure(case: Case, pace: Pace) -> Result:
    """Compare, warm up, and time one case."""
    torch.manual_seed(0)
    batch, tokens, width, _ = case.size
    everybody = contestants(case)
    x = torch.randn(batch, tokens, width, dtype=case.dtype, requires_grad=case.backward)
    with torch.set_grad_enabled(case.backward):
        compare(case, everybody, x)
        timing = interleave({name: step(one, x) for name, one in everybody.items()}, pace)
    return Result(case, timing, bars(case, timing))


def bars(case: Case, timing: Timing) -> list[Bar]:
    """Return what this case has to reach."""
    if case.backward:
        return [Bar(TORCH, BACKWARD, timing.ratio(OURS, TORCH))]
    fastest = min(PEERS, key=timing.median)
    found = [Bar(f"fastest peer ({fastest})", FASTEST, timing.ratio(OURS, fastest))]
    if case.size.tokens >= 128:
        found.append(Bar(FLOOR, ABOVE_FLOOR, timing.ratio(OURS, FLOOR)))
    return found


def run(cases: list[Case], pace: Pace) -> list[Result]:
    """Measure all cases and print each as it is done."""
    results = []
    for case in cases:
        results.append(result := measure(case, pace))
        print(f"\n{case}: {result.timing.rounds} rounds, {result.timing.inner} calls a sample")
        print(timing_table(result.timing, OURS))
        for bar in result.bars:
            print(f"  {bar}")
        sys.stdout.flush()
    return results


def verdict(runs: list[list[Result]]) -> str:
    """Return what there is to say at the end."""
    if failures := missed(runs):
        return "\n".join(["missed:", *failures])
    in_a_row = {1: "", 3: ", three in a row"}.get(len(runs), f", {len(runs)} in a row")
    found = [bar for results in runs for result in results for bar in result.bars]
    wide = sum(not bar.steady for bar in found)
    doubt = f"; {wide} of {len(found)} intervals are too wide to mean much" if wide else ""
    return f"every bar met{in_a_row}{doubt}"


def missed(runs: list[list[Result]]) -> list[str]:
    """Return the bars that were missed, with the run in which."""
    return [
        f"run {number}: {result.case}: {bar}"
        for number, results in enumerate(runs, 1)
        for result in results
        for bar in result.bars
        if not bar.met
    ]


def options() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.attention", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--runs", type=int, default=1, help="repeat the whole; 3 for a verdict")
    parser.add_argument("--quick", action="store_true", help="few rounds: for development")
    tokens = [size.tokens for size in SIZES]
    parser.add_argument("--only", type=int, nargs="+", choices=tokens, help="sizes, by tokens")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], help="only this one")
    parser.add_argument("--kind", choices=["forward", "backward"], help="only this one")
    parser.add_argument("--threads", type=int, help="threads of PyTorch; its own choice otherwise")
    parser.add_argument("--json", type=Path, help="also write the measurements to this file")
    return parser.parse_args()


def chosen(given: argparse.Namespace) -> list[Case]:
    """Return the cases that the command line asks for."""
    return [
        Case(size, dtype, backward)
        for dtype in TOLERANCE
        for size in SIZES
        for backward in (False, True)
        if given.only is None or size.tokens in given.only
        if given.dtype in (None, str(dtype).removeprefix("torch."))
        if given.kind in (None, "backward" if backward else "forward")
    ]


def main() -> int:
    """Measure, print the verdict, and return 1 if a bar was missed."""
    given = options()
    if given.threads:
        torch.set_num_threads(given.threads)
    print(f"PyTorch {torch.__version__}, {torch.get_num_threads()} threads")
    runs = []
    for number in range(1, given.runs + 1):
        if given.runs > 1:
            print(f"\nrun {number} of {given.runs}")
        runs.append(run(chosen(given), QUICK if given.quick else Pace()))
    if given.json:
        records = [[result.record() for result in results] for results in runs]
        about = {"torch": torch.__version__, "threads": torch.get_num_threads()}
        write_json(given.json, records, **about)
    print("\n" + verdict(runs))
    return 1 if missed(runs) else 0


if __name__ == "__main__":
    sys.exit(main())
