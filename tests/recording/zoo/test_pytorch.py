"""PyTorch's own attention, in every option and on every path: fused, written out, native."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

import qkv
from qkv.recording.calls.call import Call
from tests.recording.zoo.architectures import peaked
from tests.recording.zoo.examining import same_bits, sow

BATCH, QUERIES, KEYS, WIDTH, HEADS = 3, 5, 7, 24, 4
WITHIN = {torch.float32: 1e-5, torch.float64: 1e-13, torch.bfloat16: 2e-2}
"""Of softmax weights: rounding of logits around 5, in the module's own dtype."""
EPS = 16


class Option(NamedTuple):
    """How a nn.MultiheadAttention is built, and what it is called with besides q, k and v."""

    name: str
    built: dict[str, Any] = {}  # noqa: RUF012
    called: Callable[[], dict[str, Tensor | bool]] = dict
    itself: bool = True
    batched: bool = True
    dtype: torch.dtype = torch.float32


def _padding() -> dict[str, Tensor | bool]:
    padded = torch.zeros(BATCH, KEYS, dtype=torch.bool)
    padded[1, -2:] = True
    return {"key_padding_mask": padded}


def _padding_as_numbers() -> dict[str, Tensor | bool]:
    return {"key_padding_mask": torch.zeros(BATCH, KEYS).masked_fill(_padded(), -torch.inf)}


def _padded() -> Tensor:
    return _padding()["key_padding_mask"]  # type: ignore[return-value]


def _triangle(n: int = KEYS) -> Tensor:
    return torch.ones(n, n, dtype=torch.bool).triu(1)


def _causal() -> dict[str, Tensor | bool]:
    return {"attn_mask": _triangle(), "is_causal": True}


def _by_head() -> dict[str, Tensor | bool]:
    hidden = torch.rand(BATCH * HEADS, KEYS, KEYS) < 0.3
    return {"attn_mask": hidden & ~torch.eye(KEYS, dtype=torch.bool)}


def _bias() -> dict[str, Tensor | bool]:
    return {"attn_mask": torch.randn(KEYS, KEYS)}


OPTIONS = (
    Option("plain"),
    Option("tokens first", {"batch_first": False}),
    Option("without biases", {"bias": False}),
    Option("a learned key and value", {"add_bias_kv": True}),
    Option("a key and value of zeros", {"add_zero_attn": True}),
    Option("both, padded", {"add_bias_kv": True, "add_zero_attn": True}, _padding),
    Option("keys and values of other widths", {"kdim": 10, "vdim": 14}, itself=False),
    Option("attention to something else", itself=False),
    Option("padding", called=_padding),
    Option("padding as numbers", called=_padding_as_numbers),
    Option("causal", called=_causal),
    Option("causal and padding", called=lambda: _causal() | _padding()),
    Option("a mask for each head", called=_by_head),
    Option("a bias", called=_bias),
    Option("a bias and padding", called=lambda: _bias() | _padding_as_numbers()),
    Option("without a batch", batched=False),
    Option("dropout", {"dropout": 0.4}),
    Option("double precision", dtype=torch.float64),
    Option("half precision", dtype=torch.bfloat16),
)


def _build(option: Option) -> tuple[nn.MultiheadAttention, tuple[Tensor, Tensor, Tensor]]:
    settings = {"batch_first": True} | option.built
    module = nn.MultiheadAttention(WIDTH, HEADS, **settings)
    peaked(module, gain=1.4)
    module.to(option.dtype)
    x = torch.randn(BATCH, KEYS, WIDTH)
    inputs = (x, x, x)
    if not option.itself:
        widths = settings.get("kdim") or WIDTH, settings.get("vdim") or WIDTH
        inputs = (x[:, :QUERIES], *(torch.randn(BATCH, KEYS, width) for width in widths))
    if not settings["batch_first"]:
        inputs = tuple(one.transpose(0, 1) for one in inputs)  # type: ignore[assignment]
    if not option.batched:
        inputs = tuple(one[0] for one in inputs)  # type: ignore[assignment]
    if option.itself:  # one and the same tensor, as PyTorch's native path wants it
        inputs = (inputs[0],) * 3
    q, k, v = (one.to(option.dtype) for one in inputs)
    return module, (q, q, q) if option.itself else (q, k, v)


def _eval(module: nn.Module) -> AbstractContextManager[Any]:
    module.eval()
    return torch.no_grad()


def _inference(module: nn.Module) -> AbstractContextManager[Any]:
    module.eval()
    return torch.inference_mode()


def _training(module: nn.Module) -> AbstractContextManager[Any]:
    module.train()
    return nullcontext()


modes = pytest.mark.parametrize("mode", [_eval, _inference, _training])


@modes
@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
def test_multihead_attention(
    option: Option,
    need_weights: bool,
    mode: Callable[[nn.Module], AbstractContextManager[Any]],
) -> None:
    module, inputs = _build(option)
    said = {k: v.to(option.dtype) if _numbers(v) else v for k, v in option.called().items()}
    with mode(module):
        sow()
        plain = module(*inputs, need_weights=need_weights, **said)
        sow()
        with qkv.watch(module) as seen:
            watched = module(*inputs, need_weights=need_weights, **said)
        assert same_bits(plain, watched)
        (call,) = list(seen)
        module.eval()
        said.pop("is_causal", None)
        _, wanted = module(*inputs, need_weights=True, average_attn_weights=False, **said)
    _compare(call, wanted if option.batched else wanted[None], option.dtype)


def _numbers(given: Tensor | bool) -> bool:
    return isinstance(given, Tensor) and given.is_floating_point()


def _compare(call: Call, wanted: Tensor, dtype: torch.dtype) -> None:
    recovered = call.weights.dense()
    assert recovered.shape == wanted.shape
    torch.testing.assert_close(
        recovered.to(wanted), wanted.detach(), rtol=0, atol=WITHIN[dtype], equal_nan=True
    )
    assert call.error_eps <= EPS
    assert call.q.dtype == dtype
    assert call.q.shape[1] == HEADS


def _encoder(norm_first: bool, batch_first: bool, nested: bool) -> nn.TransformerEncoder:
    layer = nn.TransformerEncoderLayer(
        WIDTH, HEADS, 32, dropout=0.2, batch_first=batch_first, norm_first=norm_first
    )
    return peaked(nn.TransformerEncoder(layer, 2, enable_nested_tensor=nested), gain=1.4)  # type: ignore[return-value]


def _by_layer(
    encoder: nn.TransformerEncoder, x: Tensor, padded: Tensor, mask: Tensor | None
) -> Iterator[Tensor]:
    """Weights of each layer: its attention asked for them, outside of the path that runs."""
    for layer in encoder.layers:
        entering = layer.norm1(x) if layer.norm_first else x
        _, weights = layer.self_attn(
            *(entering,) * 3,
            key_padding_mask=padded,
            attn_mask=mask,
            need_weights=True,
            average_attn_weights=False,
        )
        yield weights
        x = layer(x, src_mask=mask, src_key_padding_mask=padded)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors", "ignore:enable_nested")
@pytest.mark.parametrize("mode", [_eval, _inference])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("batch_first", [False, True])
def test_an_encoder_on_every_path(
    batch_first: bool,
    norm_first: bool,
    nested: bool,
    causal: bool,
    mode: Callable[[nn.Module], AbstractContextManager[Any]],
) -> None:
    encoder = _encoder(norm_first, batch_first, nested)
    x = torch.randn(BATCH, KEYS, WIDTH)
    x = x if batch_first else x.transpose(0, 1)
    padded, mask = _padded(), _triangle() if causal else None
    with mode(encoder):
        plain = encoder(x, mask=mask, src_key_padding_mask=padded)
        with qkv.watch(encoder) as seen:
            watched = encoder(x, mask=mask, src_key_padding_mask=padded)
        wanted = list(_by_layer(encoder, x, padded, mask))
    assert same_bits(plain, watched)
    calls = list(seen)
    within = [str(call.path).removesuffix(".self_attn") for call in calls]
    assert within == ["layers.0", "layers.1"]  # the native path never calls self_attn
    real = ~padded[:, None, :, None]  # nested tensors hold no padded queries
    for call, weights in zip(calls, wanted, strict=True):
        difference = (call.weights.dense() - weights) * real
        assert float(difference.abs().max()) <= WITHIN[torch.float32]
        assert call.error_eps <= EPS


def test_an_encoder_in_training_with_its_gradients() -> None:
    encoder = _encoder(norm_first=False, batch_first=True, nested=True).train()
    x, padded = torch.randn(BATCH, KEYS, WIDTH), _padded()

    def trained() -> list[Tensor | None]:
        sow()
        encoder.zero_grad(set_to_none=True)
        encoder(x, src_key_padding_mask=padded).square().mean().backward()
        return [parameter.grad for parameter in encoder.parameters()]

    plain = trained()
    with qkv.watch(encoder) as seen:
        watched = trained()
    assert same_bits(plain, watched)
    assert [call.dropout for call in seen] == pytest.approx([0.2, 0.2])


def test_a_whole_transformer_attends_to_itself_and_to_the_source() -> None:
    transformer = nn.Transformer(WIDTH, HEADS, 1, 2, 32, dropout=0.0, batch_first=True)
    peaked(transformer, gain=1.4).eval()
    source, target = torch.randn(BATCH, KEYS, WIDTH), torch.randn(BATCH, QUERIES, WIDTH)
    given = {
        "src_key_padding_mask": _padded(),
        "memory_key_padding_mask": _padded(),
        "tgt_mask": _triangle(QUERIES),
        "tgt_is_causal": True,
    }
    with torch.no_grad():
        plain = transformer(source, target, **given)
        with qkv.watch(transformer) as seen:
            watched = transformer(source, target, **given)
    assert same_bits(plain, watched)
    assert [(call.path, call.kind, call.weights.shape) for call in seen] == [
        ("encoder.layers.0", "self", (BATCH, HEADS, KEYS, KEYS)),  # the native path
        ("decoder.layers.0.self_attn", "self", (BATCH, HEADS, QUERIES, QUERIES)),
        ("decoder.layers.0.multihead_attn", "cross", (BATCH, HEADS, QUERIES, KEYS)),
        ("decoder.layers.1.self_attn", "self", (BATCH, HEADS, QUERIES, QUERIES)),
        ("decoder.layers.1.multihead_attn", "cross", (BATCH, HEADS, QUERIES, KEYS)),
    ]
    assert [call.blocking.causal for call in seen] == [False, True, False, True, False]
    assert [call.blocking.padding is not None for call in seen] == [True, False, True, False, True]
    assert all(call.error_eps <= EPS for call in seen)
