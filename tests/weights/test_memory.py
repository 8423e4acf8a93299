"""Memory grows with the number of tokens, not with its square, whatever is asked and masked."""

from collections.abc import Callable

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from qkv.core.mask import Mask
from qkv.weights.matrix import Weights

HEADS, WIDTH = 2, 8

SIZES = dict.fromkeys(("none", "causal", "window", "documents"), (1100, 2200)) | {
    "alibi": (2100, 4200)  # above the size up to which a mask is handed to the kernel whole
}


def ask_everything(n: int, mask: Mask | None) -> None:
    q, k, x = (torch.randn(1, HEADS, n, WIDTH) for _ in range(3))
    w = Weights(q, k, mask=mask)
    w @ x
    w.mT @ x
    w.entropy()
    w.received()
    w.top(8)
    w.map()
    w.diagonal()
    w.rows(3)
    Weights(q, k, mask=mask, sinks=torch.zeros(HEADS)) @ x
    w.summary(words=torch.arange(n)[None] % 500)


def with_gradients(n: int, mask: Mask | None) -> None:
    q, k = (torch.randn(1, HEADS, n, WIDTH, requires_grad=True) for _ in range(2))
    w = Weights(q, k, mask=mask)
    (w.entropy().sum() + w.received().square().sum()).backward()


def peak(work: Callable[[], None]) -> int:
    """Most bytes held at one time, from every allocation and release that PyTorch reports."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as record:
        work()
    events = record.profiler.kineto_results.events()
    changes = [(e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]"]
    held = most = 0
    for _, change in sorted(changes, key=lambda pair: pair[0]):
        held += change
        most = max(most, held)
    assert most > 0, "the profiler saw no allocation"
    return most


MASKS = {
    "none": lambda n: None,
    "causal": lambda n: Mask.causal(),
    "window": lambda n: Mask.causal() & Mask.window(64),
    "documents": lambda n: Mask.documents(torch.arange(n) // 100) & Mask.padding([n - 3]),
    "alibi": lambda n: Mask.causal() & Mask.alibi(HEADS),
}


@pytest.mark.parametrize(
    ("kind", "work"),
    [*((kind, ask_everything) for kind in MASKS), ("causal", with_gradients)],
)
def test_memory_grows_with_n_and_not_with_its_square(
    kind: str, work: Callable[[int, Mask | None], None]
) -> None:
    small, large = SIZES[kind]
    before, after = (peak(lambda n=n: work(n, MASKS[kind](n))) for n in (small, large))
    matrix = HEADS * large**2 * 4
    assert after <= 2.3 * before  # twice, and what is rounded up to whole blocks
    assert after < matrix
