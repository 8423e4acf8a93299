"""Texts long enough for weights in blocks: the same as without them, watched or not."""

from pathlib import Path
from typing import Any

import pytest
import torch

import qkv
from qkv.core import laid, product
from qkv.nn.cache import SOON
from tests.models import writers
from tests.models.writers import prompts

PROMPT, TOKENS = 3, SOON + 17
DTYPES = [
    torch.float32,
    pytest.param(
        torch.bfloat16,
        marks=pytest.mark.skipif(not product.BFLOAT16, reason="no products of bfloat16"),
    ),
]


@pytest.fixture(params=["llama", "gpt2", "marian"])
def model(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Small matrices count as large here."""
    monkeypatch.setattr(product, "LARGE", 1)
    made, _ = getattr(writers, request.param)(tmp_path, eos_token_id=None)
    return made


def steps(model: Any, tokens: torch.Tensor) -> list[torch.Tensor]:
    """Logits after a prompt, and after each of the tokens behind it, read one by one."""
    cache = model.new_cache()
    if hasattr(model, "read"):
        cache = model.read(torch.tensor(prompts([9] * len(tokens), 5)))
    parts = tokens.split([PROMPT, *[1] * (tokens.shape[1] - PROMPT)], 1)
    return [model.next(part, cache) for part in parts]


@pytest.mark.usefixtures("as_shipped")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_logits_are_those_without_blocks(
    model: Any, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    model.to(dtype)
    tokens = torch.randint(5, 90, (3, TOKENS))
    with_blocks = steps(model, tokens)
    monkeypatch.setattr(laid, "MOST", 0)
    without = steps(model, tokens)
    assert all(map(torch.equal, with_blocks[:SOON], without[:SOON]))
    size = max(float(one.abs().max()) for one in without)
    room = 64 * torch.finfo(dtype).eps * size  # of three layers
    for a, b in zip(with_blocks, without, strict=True):
        assert float((a - b).abs().max()) <= room


@pytest.mark.usefixtures("as_shipped")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_looking_changes_nothing(model: Any, dtype: torch.dtype) -> None:
    model.to(dtype)
    tokens = torch.randint(5, 90, (2, TOKENS))
    alone = steps(model, tokens)
    with qkv.watch(model):
        watched = steps(model, tokens)
    assert all(map(torch.equal, alone, watched))


@pytest.mark.usefixtures("as_shipped")
def test_another_text_reads_weights_that_changed_meanwhile(model: Any) -> None:
    model.float()
    tokens = torch.randint(5, 90, (2, TOKENS))
    before = steps(model, tokens)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5)
    assert not torch.allclose(steps(model, tokens)[-1], before[-1], rtol=1e-2)


@pytest.mark.usefixtures("as_shipped")
def test_a_watch_sees_as_much_as_without_blocks(
    model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model.float()
    tokens = torch.randint(5, 90, (2, TOKENS))

    def told() -> list[tuple[str | None, str, bool]]:
        with qkv.watch(model) as seen:
            steps(model, tokens)
        joined = [seen[path] for path in dict.fromkeys(call.path for call in seen)]
        calls = (*seen, *joined)
        return [(call.path, call.kind, call.contributions(1).projected) for call in calls]

    with_blocks = told()
    monkeypatch.setattr(laid, "MOST", 0)
    assert with_blocks == told()
    assert [one for one in with_blocks if not one[2] or one[1] == "unknown"] == []
