"""FlexAttention is recorded with the functions that it was given, as what they do to the scores."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import qkv
from qkv.errors import RecordingError
from qkv.recording.calls.call import Call
from qkv.recording.observing.flex import Closed

BATCH, HEADS, TOKENS, D_K = 2, 6, 37, 8
DOCUMENTS = torch.arange(TOKENS) // 11
SLOPES = torch.linspace(0.1, 0.6, HEADS)
LENGTHS = torch.tensor([TOKENS, 20])

Made = Callable[..., Tensor]

MASKS: dict[str, Made] = {
    "causal": lambda b, h, i, j: j <= i,
    "a window": lambda b, h, i, j: (j <= i) & (i - j < 9),
    "documents": lambda b, h, i, j: DOCUMENTS[i] == DOCUMENTS[j],
    "padding": lambda b, h, i, j: j < LENGTHS[b],
    "heads of their own": lambda b, h, i, j: j <= i + h,
    "rows that may look at nothing": lambda b, h, i, j: (j <= i) & (i % 5 != 3),
}
SCORES: dict[str, Made] = {
    "ALiBi": lambda s, b, h, i, j: s + SLOPES[h] * (j - i),
    "a soft cap": lambda s, b, h, i, j: 3 * torch.tanh(s / 3),
    "a triangle in the scores": lambda s, b, h, i, j: torch.where(j <= i, s, -torch.inf),
}


@pytest.fixture(autouse=True)
def _quiet() -> Any:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "flex_attention called without torch.compile")
        yield


def tensors(kv_heads: int = HEADS) -> tuple[Tensor, Tensor, Tensor]:
    shapes = ((BATCH, HEADS, TOKENS, D_K), *[(BATCH, kv_heads, TOKENS, D_K)] * 2)
    q, k, v = (torch.randn(shape) for shape in shapes)
    return q * 2, k, v


def places() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """b, h, i, j of every pair."""
    sizes = (BATCH, HEADS, TOKENS, TOKENS)
    return torch.meshgrid(*(torch.arange(n) for n in sizes), indexing="ij")


def dense(q: Tensor, k: Tensor, mask: Made | None, score: Made | None, scale: float) -> Tensor:
    """The weights, in float64 and without FlexAttention."""
    x = q.double() @ k.double().repeat_interleave(HEADS // k.shape[1], 1).mT * scale
    x = x if score is None else score(x, *places())
    x = x if mask is None else x.masked_fill(~mask(*places()), -torch.inf)
    return x.softmax(-1).nan_to_num(0.0)


def block_mask(mask: Made | None, batch: int | None = None, heads: int | None = None) -> Any:
    if mask is None:
        return None
    return create_block_mask(mask, batch, heads, TOKENS, TOKENS, device="cpu")


def watched(run: Callable[[], Tensor]) -> tuple[Call, Tensor, Tensor]:
    plain = run()
    with qkv.watch() as seen:
        again = run()
    torch.testing.assert_close(again, plain, atol=0, rtol=0)
    (call,) = list(seen)
    return call, plain, again


CASES = [
    *[(mask, None) for mask in MASKS],
    *[(None, score) for score in SCORES],
    ("a window", "ALiBi"),
    ("documents", "a soft cap"),
    (None, None),
]


@pytest.mark.parametrize(("mask", "score"), CASES)
def test_weights_are_those_of_a_dense_calculation(mask: str | None, score: str | None) -> None:
    (q, k, v), hides, changes = tensors(), MASKS.get(mask or ""), SCORES.get(score or "")
    blocks = block_mask(hides, BATCH, HEADS)
    with torch.no_grad():
        call, *_ = watched(lambda: flex_attention(q, k, v, changes, blocks))
    expected = dense(q, k, hides, changes, D_K**-0.5)
    torch.testing.assert_close(call.weights.dense().double(), expected, atol=1e-5, rtol=0)
    rows = call.weights.rows(range(5, 9)).double()
    torch.testing.assert_close(rows, expected[..., 5:9, :], atol=1e-5, rtol=0)
    one = call.explain(head=4, batch=1)
    shown = torch.tensor(one["weights"]).double()
    torch.testing.assert_close(shown, expected[1, 4], atol=1e-5, rtol=0)
    one.verify()
    assert call.error_eps <= 16
    assert call.how == "flex_attention"
    assert call.scale == pytest.approx(D_K**-0.5)
    for mine, theirs in zip((call.q, call.k, call.v), (q, k, v), strict=True):
        assert mine.data_ptr() == theirs.data_ptr(), "by reference"


@pytest.mark.parametrize("kv_heads", [1, 2, 3])
def test_grouped_heads_are_kept_as_they_were(kv_heads: int) -> None:
    q, k, v = tensors(kv_heads)
    given = {"enable_gqa": True, "scale": 0.3, "score_mod": SCORES["ALiBi"]}
    blocks = block_mask(MASKS["causal"])
    with torch.no_grad():
        call, *_ = watched(lambda: flex_attention(q, k, v, block_mask=blocks, **given))
    assert call.k.shape[1] == call.v.shape[1] == kv_heads
    expected = dense(q, k, MASKS["causal"], SCORES["ALiBi"], 0.3)
    torch.testing.assert_close(call.weights.dense().double(), expected, atol=1e-5, rtol=0)
    assert call.error_eps <= 16


def test_masks_are_recognised_when_asked_for() -> None:
    q, k, v = tensors()

    def blocking(name: str) -> str:
        blocks = block_mask(MASKS[name], BATCH if name == "padding" else None)
        return str(watched(lambda: flex_attention(q, k, v, block_mask=blocks))[0].blocking)

    assert blocking("causal") == "causal"
    assert "window" in blocking("a window")
    assert "hidden" in blocking("padding")


def test_the_functions_are_called_only_when_something_is_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    of, tiles = Closed.of, list[tuple[range, range]]()

    def counted(self: Closed, scores: Any, rows: range, columns: range) -> Tensor:
        tiles.append((rows, columns))
        return of(self, scores, rows, columns)

    monkeypatch.setattr(Closed, "of", counted)
    (q, k, v), blocks = tensors(), block_mask(MASKS["causal"])
    with torch.no_grad(), qkv.watch() as seen:
        flex_attention(q, k, v, SCORES["ALiBi"], blocks)
    (call,) = list(seen)
    assert not tiles
    weights = call.weights
    tiles.clear()
    weights.tile(range(3, 6), range(2, 4))
    assert tiles[-1] == (range(3, 6), range(TOKENS))


def test_what_a_function_reads_is_kept_as_it_was() -> None:
    (q, k, v), slopes = tensors(), SLOPES.clone()
    with torch.no_grad(), qkv.watch() as seen:
        flex_attention(q, k, v, lambda s, b, h, i, j: s + slopes[h] * (j - i))
        slopes.zero_()
    (call,) = list(seen)
    expected = dense(q, k, None, SCORES["ALiBi"], D_K**-0.5)
    torch.testing.assert_close(call.weights.dense().double(), expected, atol=1e-5, rtol=0)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(48, 3 * HEADS * D_K), nn.Linear(HEADS * D_K, 48)
        self.blocks = block_mask(MASKS["causal"])

    def forward(self, x: Tensor) -> Tensor:
        parts = self.qkv(x).unflatten(-1, (3, HEADS, D_K)).permute(2, 0, 3, 1, 4)
        y = flex_attention(*parts, SCORES["a soft cap"], self.blocks)
        return self.out(y.transpose(1, 2).flatten(2))


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_in_a_module_it_is_followed_from_its_source_to_its_projection(context: Made) -> None:
    model, x = Attention(), torch.randn(BATCH, TOKENS, 48)
    with context():  # PyTorch has no backward pass for it on the CPU
        call, plain, _ = watched(lambda: model(x))
    assert (call.kind, call.path, call.file) == ("self", "Attention", __file__)
    assert call.error_eps <= 16
    W = call.operands.projection()
    y = torch.einsum("bhtd,hdo->bto", call.output, W) + model.out.bias
    torch.testing.assert_close(y, plain)


def test_a_mask_is_saved_as_what_it_hid_and_a_score_mod_is_not(tmp_path: Path) -> None:
    q, k, v = tensors()
    with torch.no_grad(), qkv.watch() as masked:
        flex_attention(q, k, v, block_mask=block_mask(MASKS["documents"]))
    masked.save(tmp_path / "masked")
    (call,) = list(qkv.Recording.load(tmp_path / "masked"))
    expected = dense(q, k, MASKS["documents"], None, D_K**-0.5)
    torch.testing.assert_close(call.weights.dense().double(), expected, atol=1e-5, rtol=0)
    with torch.no_grad(), qkv.watch() as changed:
        flex_attention(q, k, v, SCORES["ALiBi"])
    with pytest.raises(RecordingError, match="score_mod"):
        changed.save(tmp_path / "changed")
    assert not (tmp_path / "changed").exists()
