"""Two libraries that write attention their own way: x-transformers and timm."""

import json
import os
import subprocess
import sys
import warnings
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import qkv
from tests.recording.zoo.architectures import peaked
from tests.recording.zoo.examining import same_bits
from tests.recording.zoo.timm_models import MODELS

BATCH, TOKENS, EMBEDDED, HEADS, WIDTH = 3, 7, 24, 4, 6
WITHIN, EPS = 1e-5, 16

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # it scripts a function, which PyTorch deprecates
    from x_transformers.x_transformers import Attention

FUSED_OR_NOT: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"causal": True},
    "one head of keys and values": {"one_kv_head": True},
    "two heads of keys and values": {"kv_heads": 2},
    "memory keys and values": {"num_mem_kv": 3},
    "a key and value of zeros": {"add_zero_kv": True},
    "queries and keys on the sphere": {"qk_norm": True},
    "queries and keys by RMSNorm": {"qk_rmsnorm": True},
    "gated values": {"gate_values": True},
    "wider values": {"value_dim_head": 10},
    "scaled heads": {"head_scale": True},
    "a latent for keys and values": {"use_latent_kv": True, "dim_latent_kv": 8},
    "causal, two heads of keys": {"causal": True, "kv_heads": 2},
}
WRITTEN_OUT: dict[str, dict[str, Any]] = {
    "the best three keys": {"sparse_topk": 3},
    "a soft clamp": {"softclamp_logits": True, "logit_softclamp_value": 5.0},
    "a learned sink in every head": {"head_learned_sink": True},
    "relative positions, projected": {"use_rel_proj_pos_bias": True},
}
NOT_PLAIN: dict[str, dict[str, Any]] = {
    "heads that talk before the softmax": {"pre_talking_heads": True},
    "heads that talk after the softmax": {"post_talking_heads": True},
    "sigmoids": {"sigmoid": True},
}
CASES = [
    *(
        (name, settings, flash)
        for name, settings in FUSED_OR_NOT.items()
        for flash in (False, True)
    ),
    *((name, settings, False) for name, settings in WRITTEN_OUT.items()),
]


def _build(settings: dict[str, Any], flash: bool) -> Attention:
    torch.manual_seed(0)
    module = Attention(EMBEDDED, dim_head=WIDTH, heads=HEADS, flash=flash, **settings)
    return peaked(module, gain=1.5).eval()  # type: ignore[return-value]


def _given(settings: dict[str, Any]) -> tuple[Tensor, dict[str, Any]]:
    real = torch.ones(BATCH, TOKENS, dtype=torch.bool)
    real[1, -2:] = False
    positions = {"pos": torch.arange(TOKENS)} if "use_rel_proj_pos_bias" in settings else {}
    return torch.randn(BATCH, TOKENS, EMBEDDED), {"mask": real, **positions}


IDS = [f"{name}, {'fused' if flash else 'written out'}" for name, _, flash in CASES]


@pytest.mark.parametrize(("settings", "flash"), [case[1:] for case in CASES], ids=IDS)
def test_x_transformers(settings: dict[str, Any], flash: bool) -> None:
    module = _build(settings, flash)
    x, given = _given(settings)
    with torch.no_grad():
        plain = module(x, **given)
        with qkv.watch(module) as seen:
            watched = module(x, **given)
        _, kept = _build(settings, flash=False)(x, **given, return_intermediates=True)
    assert same_bits(plain, watched)
    (call,) = list(seen)
    assert call.path == "attend"
    recovered = call.weights.dense()
    wanted = kept.post_softmax_attn[..., -recovered.shape[-1] :]  # a sink stands before the keys
    torch.testing.assert_close(recovered, wanted, rtol=0, atol=WITHIN)
    assert call.error_eps <= EPS


@pytest.mark.parametrize("settings", NOT_PLAIN.values(), ids=NOT_PLAIN.keys())
def test_what_x_transformers_does_besides_is_not_taken_for_attention(
    settings: dict[str, Any],
) -> None:
    module = _build(settings, flash=False)
    x, given = _given(settings)
    with torch.no_grad():
        plain = module(x, **given)
        with qkv.watch(module) as seen:
            watched = module(x, **given)
    assert same_bits(plain, watched)
    assert len(seen) == 0


@cache
def _timm() -> dict[str, list[dict[str, Any]]]:
    """What came out of every model of timm's, by its name; it runs in a process of its own."""
    folder = Path(sys.prefix) / "share" / "qkv" / "timm"
    if not folder.exists() and not os.environ.get("QKV_REQUIRE_PEERS"):
        pytest.skip("timm is not installed beside the environment (tools/environment.sh does)")
    command = [sys.executable, "-m", "tests.recording.zoo.timm_models", str(folder)]
    root = Path(__file__).parents[3]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=root, check=False)
    assert ended.returncode == 0, ended.stderr
    found: dict[str, list[dict[str, Any]]] = {}
    for result in json.loads(ended.stdout):
        found.setdefault(result["model"], []).append(result)
    return found


@pytest.mark.parametrize("name", MODELS)
def test_timm(name: str) -> None:
    for result in _timm()[name]:
        assert result["same_bits"]
        assert result["calls"] >= max(result["wanted"], 2)
        assert all(error <= EPS for error in result["errors"])
        assert all(w is not None and w <= WITHIN for w in result["weights"]), result["weights"]
        assert len(result["weights"]) == result["wanted"]
