"""Targets: what stands before them, how wrong a model is, and what is not counted."""

import math

import numpy as np
import pytest
import torch

from qkv.train.targets import IGNORED, before, nats, perplexity


def test_before_each_token_stands_the_one_before_it() -> None:
    wanted = torch.tensor([[5, 7, 9, 1], [8, 1, IGNORED, IGNORED], [1, IGNORED, IGNORED, IGNORED]])
    assert before(wanted, 3, 4).tolist() == [[3, 5, 7, 9], [3, 8, 4, 4], [3, 4, 4, 4]]
    assert wanted[0].tolist() == [5, 7, 9, 1]


@pytest.mark.parametrize("smoothing", [0.0, 0.3])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_nats_are_summed_over_what_is_to_be_told(
    smoothing: float, dtype: torch.dtype, seed: int
) -> None:
    random = torch.Generator().manual_seed(seed)
    logits = torch.randn(3, 5, 7, generator=random, dtype=torch.float64).to(dtype)
    wanted = torch.randint(7, (3, 5), generator=random)
    wanted[1, 2:] = IGNORED
    expected = 0.0
    for row, target in zip(logits.double().flatten(0, 1).numpy(), wanted.flatten(), strict=True):
        if target != IGNORED:
            p = row - np.log(np.exp(row).sum())
            expected -= (1 - smoothing) * p[target] + smoothing * p.mean()
    found = nats(logits, wanted, smoothing)
    assert found.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert float(found) == pytest.approx(expected, rel=1e-12 if dtype == torch.float64 else 1e-5)


def test_a_perplexity_is_a_number_however_wrong_a_model_is() -> None:
    assert perplexity(math.log(17)) == pytest.approx(17)
    assert math.isfinite(perplexity(1e9))
    assert math.isnan(perplexity(math.nan))
