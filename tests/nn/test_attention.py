"""The four modules: every option, every axis, every device; and what PyTorch does to modules."""

import copy

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from qkv import Attention, Mask, MaskedSelfAttention, MultiHeadAttention, SelfAttention
from qkv.errors import ArgumentError, MaskError, ShapeError
from qkv.nn.rotary import Rotary
from tests import reference
from tests.reference import agree, array

KINDS = [SelfAttention, MaskedSelfAttention, Attention, MultiHeadAttention]
EACH = pytest.mark.parametrize("kind", KINDS)
OPTIONS = {
    "plain": {"n_embed": 5, "num_heads": 3},
    "sizes": {"n_embed": 7, "num_heads": 3, "d_k": 5, "d_v": 2, "n_out": 11},
    "equal sizes": {"n_embed": 4, "num_heads": 4, "d_k": 4, "d_v": 4, "n_out": 4},
    "grouped": {
        "n_embed": 6,
        "num_heads": 4,
        "kv_heads": 2,
        "d_k": 3,
        "d_v": 5,
        "bias": True,
        "n_out": 6,
    },
    "one key/value head": {"n_embed": 6, "num_heads": 4, "kv_heads": 1, "bias": ("WQ", "WV")},
    "scaled and capped": {
        "n_embed": 4,
        "num_heads": 2,
        "scale": 0.7,
        "softcap": 1.5,
        "n_out": 3,
        "bias": ["WK", "WO"],
    },
}


def called(layer: nn.Module, x: Tensor) -> Tensor:
    return layer(x) if isinstance(layer, SelfAttention | MaskedSelfAttention) else layer(x, x, x)


def by_numpy(layer: MultiHeadAttention, x: Tensor, y: Tensor, added: object = 0.0) -> np.ndarray:
    """The layer in float64, from its named parameters alone."""
    parameters = {name: array(p) for name, p in layer.state_dict().items()}

    def projected(name: str, z: np.ndarray, heads: int) -> np.ndarray:
        flat = z @ parameters[f"{name}.weight"].T + parameters.get(f"{name}.bias", 0.0)
        return np.stack(np.split(flat, heads, axis=-1), axis=1)

    q = projected("WQ", array(x), layer.num_heads)
    k, v = (projected(name, array(y), layer.kv_heads) for name in ("WK", "WV"))
    out = reference.attention(q, k, v, added, layer.scale, layer.softcap)
    joined = np.concatenate([out[:, head] for head in range(layer.num_heads)], axis=-1)
    if "WO.weight" in parameters:
        joined = joined @ parameters["WO.weight"].T + parameters.get("WO.bias", 0.0)
    return joined


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("masked", [False, True], ids=["open", "masked by head"])
@pytest.mark.parametrize(("batch", "queries", "keys"), [(2, 5, 7), (4, 4, 4)])
def test_every_option_equals_the_reference(
    options: dict[str, object],
    batch: int,
    queries: int,
    keys: int,
    masked: bool,
    device: torch.device,
) -> None:
    layer = MultiHeadAttention(**options, dtype=torch.float64, device=device)
    width = layer.n_embed
    x, y = (torch.randn(batch, n, width, device=device).double() for n in (queries, keys))
    if not masked:
        agree(layer(x, y, y), by_numpy(layer, x, y), 1e-12)
        agree(layer(x, x, x), by_numpy(layer, x, x), 1e-12)
        return
    heads = layer.num_heads
    may_look = (torch.rand(batch, heads, queries, keys) < 0.6).to(device)
    out = layer(x, y, y, mask=Mask.allow(may_look))
    agree(out, by_numpy(layer, x, y, reference.blocked(may_look.cpu())), 1e-12)
    out.square().sum().backward()
    for parameter in layer.parameters():
        assert parameter.grad.isfinite().all()
        assert parameter.grad.abs().max() > 0


@given(
    st.integers(1, 3), st.integers(1, 3), st.integers(1, 5), st.integers(1, 5), st.integers(1, 4),
    st.sampled_from([None, 3]), st.booleans(), st.integers(0, 99),
)  # fmt: skip
def test_any_sizes_equal_the_reference(
    kv_heads: int, group: int, n_embed: int, d_k: int, d_v: int, n_out: int | None, bias: bool,
    seed: int,
) -> None:  # fmt: skip
    torch.manual_seed(seed)
    layer = MultiHeadAttention(
        n_embed, num_heads=kv_heads * group, kv_heads=kv_heads, d_k=d_k, d_v=d_v, n_out=n_out,
        bias=bias, dtype=torch.float64,
    )  # fmt: skip
    x, y = torch.randn(2, 3, n_embed).double(), torch.randn(2, 4, n_embed).double()
    agree(layer(x, y, y), by_numpy(layer, x, y), 1e-12)
    causal = reference.causal(3, 4)
    agree(layer(x, y, y, mask=True), by_numpy(layer, x, y, causal), 1e-12)


def test_single_heads_are_multi_head_attention_with_one() -> None:
    x, y = torch.randn(2, 5, 4).double(), torch.randn(2, 7, 4).double()
    options = {
        "d_k": 3,
        "d_v": 2,
        "bias": True,
        "scale": 0.4,
        "softcap": 2.0,
        "dtype": torch.float64,
    }
    torch.manual_seed(1)
    one = MultiHeadAttention(4, **options)
    for kind in KINDS[:3]:
        torch.manual_seed(1)
        layer = kind(4, **options)
        agree(called(layer, x), by_numpy(one, x, x), 1e-12)
    attention = layer
    agree(attention(x, y, y), by_numpy(one, x, y), 1e-12)
    torch.manual_seed(1)
    window = MaskedSelfAttention(4, mask=Mask.window(1), **options)
    agree(window(x), by_numpy(one, x, x, reference.band(5, 5, 1, 0)), 1e-12)


def test_keys_and_values_may_come_from_two_places() -> None:
    layer = MultiHeadAttention(4, num_heads=2, dtype=torch.float64)
    x, y, z = (torch.randn(2, n, 4).double() for n in (5, 7, 7))
    q = layer.WQ(x).unflatten(-1, (2, 4)).transpose(1, 2)
    k = layer.WK(y).unflatten(-1, (2, 4)).transpose(1, 2)
    v = layer.WV(z).unflatten(-1, (2, 4)).transpose(1, 2)
    wanted = reference.attention(array(q), array(k), array(v))
    agree(layer(x, y, z), np.concatenate([wanted[:, 0], wanted[:, 1]], -1), 1e-12)


@EACH
def test_any_number_of_batch_axes(kind: type) -> None:
    layer = kind(3, dtype=torch.float64)
    x = torch.randn(2, 3, 4, 5, 3).double()
    out = called(layer, x)
    assert out.shape == (2, 3, 4, 5, 3)
    agree(out[1, 2, 3], array(called(layer, x[1, 2, 3])), 1e-13)


def test_a_mask_may_differ_by_example_and_by_head() -> None:
    layer = MultiHeadAttention(3, num_heads=2, dtype=torch.float64)
    x = torch.randn(2, 3, 5, 3).double()
    may_look = torch.rand(2, 3, 2, 5, 5) < 0.6
    out = layer(x, x, x, mask=Mask.allow(may_look))
    for b in range(2):
        for i in range(3):
            added = reference.blocked(may_look[b, i])[None]
            agree(out[b, i], by_numpy(layer, x[b, i][None], x[b, i][None], added)[0], 1e-12)


def test_padding_reaches_every_head_and_hides_not_a_number() -> None:
    layer = MultiHeadAttention(4, num_heads=4, kv_heads=2, n_out=4, dtype=torch.float64)
    x = torch.randn(2, 5, 4).double()
    y = x.clone()
    y[1, 3:] = float("nan")
    mask = Mask.padding([5, 3])
    out, clean = layer(x, y, y, mask=mask), layer(x, x, x, mask=mask)
    agree(out, array(clean), 1e-12)
    agree(clean, by_numpy(layer, x, x, reference.padded([5, 3], 5)), 1e-12)
    assert not torch.equal(clean[1], layer(x, x, x)[1])


def test_dropout_only_in_training() -> None:
    layer = MultiHeadAttention(4, num_heads=2, dropout=0.5)
    x = torch.randn(1, 6, 4)
    assert not torch.equal(layer(x, x, x), layer(x, x, x))
    layer.eval()
    assert torch.equal(layer(x, x, x), layer(x, x, x))
    agree(layer(x, x, x), by_numpy(layer, x, x), 1e-6)
    plain = MultiHeadAttention(4, num_heads=2)
    assert torch.equal(plain(x, x, x), plain(x, x, x))


@EACH
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_any_precision_comes_out_as_it_went_in(kind: type, dtype: torch.dtype) -> None:
    layer = kind(4, dtype=dtype)
    x = torch.randn(2, 5, 4, dtype=dtype)
    out = called(layer, x)
    assert out.dtype == dtype
    double = copy.deepcopy(layer).double()
    agree(out, array(called(double, x.double())), 30 * torch.finfo(dtype).eps)


@EACH
def test_shapes_are_known_on_any_device(kind: type, shape_device: torch.device) -> None:
    layer = kind(6, d_k=5, d_v=4, bias=True, device=shape_device)
    x = torch.randn(2, 3, 6, device=shape_device)
    out = called(layer, x)
    assert out.shape == (2, 3, 4)
    assert out.device.type == shape_device.type


def test_many_heads_have_shapes_without_numbers() -> None:
    layer = MultiHeadAttention(512, num_heads=8, d_k=64, d_v=64, n_out=512, device="meta")
    x, y = (torch.empty(2, n, 512, device="meta") for n in (10, 20))
    assert layer(x, y, y, mask=Mask.causal() & Mask.padding([20, 3])).shape == (2, 10, 512)
    assert sum(p.numel() for p in layer.parameters()) == 4 * 512 * 512
    assert layer.to_empty(device="cpu").WQ.weight.shape == (512, 512)


def test_the_three_ways_back_down_to_n_embed() -> None:
    x = torch.randn(5, 4)
    assert MultiHeadAttention(4, num_heads=2)(x, x, x).shape == (5, 8)
    assert MultiHeadAttention(4, num_heads=2, n_out=4)(x, x, x).shape == (5, 4)
    assert MultiHeadAttention(4, num_heads=2, d_v=2)(x, x, x).shape == (5, 4)


@pytest.mark.parametrize(
    ("bias", "names"),
    [
        (False, set()), (True, {"WQ", "WK", "WV", "WO"}), (("WQ", "WV"), {"WQ", "WV"}),
        ({"WO"}, {"WO"}), ([], set()),
    ],
)  # fmt: skip
def test_a_bias_is_where_it_was_asked_for(bias: object, names: set[str]) -> None:
    layer = MultiHeadAttention(4, num_heads=2, n_out=4, bias=bias)
    found = {name for name in ("WQ", "WK", "WV", "WO") if getattr(layer, name).bias is not None}
    assert found == names
    assert {n.removesuffix(".bias") for n in layer.state_dict() if n.endswith(".bias")} == names
    assert sum(p.numel() for p in layer.parameters()) == 4 * (8 + 8 + 8 + 8) + 8 * len(
        names - {"WO"}
    ) + 4 * ("WO" in names)


def test_the_scale_stands_in_for_the_root() -> None:
    torch.manual_seed(0)
    a = SelfAttention(4, scale=0.5)
    torch.manual_seed(0)
    b = SelfAttention(4)
    x = torch.randn(3, 4)
    assert torch.equal(a(x), b(x))
    assert repr(b) == (
        "SelfAttention(\n  n_embed=4, num_heads=1, d_k=4, d_v=4\n"
        "  (WQ): Linear(in_features=4, out_features=4, bias=False)\n"
        "  (WK): Linear(in_features=4, out_features=4, bias=False)\n"
        "  (WV): Linear(in_features=4, out_features=4, bias=False)\n)"
    )


def test_a_deep_copy_is_independent_and_equal() -> None:
    layer = MultiHeadAttention(4, num_heads=2, n_out=4)
    x = torch.randn(2, 5, 4)
    twin = copy.deepcopy(layer)
    assert torch.equal(twin(x, x, x), layer(x, x, x))
    with torch.no_grad():
        twin.heads[0].WQ.weight.zero_()
    assert layer.heads[0].WQ.weight.abs().max() > 0


def test_functional_call_uses_the_parameters_that_it_is_given() -> None:
    layer = MultiHeadAttention(4, num_heads=2, n_out=4)
    other = MultiHeadAttention(4, num_heads=2, n_out=4)
    x = torch.randn(2, 5, 4)
    out = torch.func.functional_call(layer, dict(other.named_parameters()), (x, x, x))
    assert torch.equal(out, other(x, x, x))


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW])
def test_an_optimizers_step_changes_every_packed_weight(kind: type) -> None:
    layer = MultiHeadAttention(4, num_heads=4, kv_heads=2, n_out=4, bias=True)
    before = {name: p.clone() for name, p in layer.state_dict().items()}
    assert set(before) == {f"W{letter}.{part}" for letter in "QKVO" for part in ("weight", "bias")}
    optimizer = kind(layer.parameters(), lr=0.1)
    x = torch.randn(2, 5, 4)
    layer(x, x, x).square().sum().backward()
    optimizer.step()
    for name, p in layer.state_dict().items():
        if name != "WK.bias":  # adds the same to every similarity of a row: softmax ignores it
            assert (p != before[name]).any(), name


def test_a_layer_learns_to_copy_the_first_token() -> None:
    layer = MultiHeadAttention(4, num_heads=2, n_out=4)
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.02)
    losses = []
    for _ in range(60):
        x = torch.randn(16, 3, 4)
        x[:, 0, 0] = 3.0
        loss = (layer(x, x, x) - x[:, :1]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 2


def test_autocast_computes_in_bfloat16() -> None:
    layer = MultiHeadAttention(8, num_heads=2, n_out=8)
    x = torch.randn(2, 5, 8)
    with torch.autocast("cpu", torch.bfloat16):
        out = layer(x, x, x, mask=Mask.causal() & Mask.bias(torch.zeros(5, 5)))
        capped = MultiHeadAttention(8, num_heads=2, softcap=2.0)(x, x, x, mask=True)
    assert out.dtype == capped.dtype == torch.bfloat16
    agree(out, by_numpy(layer, x, x, reference.causal(5, 5)), 3e-2)
    out.float().sum().backward()
    assert layer.WQKV.grad.dtype == torch.float32


def test_autocast_turns_by_positions_and_stays_in_bfloat16() -> None:
    layer = MultiHeadAttention(8, num_heads=2, n_out=8, rotary=Rotary(8))
    x = torch.randn(2, 5, 8)
    with torch.autocast("cpu", torch.bfloat16):
        out = layer(x, x, x, mask=True)
    assert out.dtype == torch.bfloat16
    agree(out, layer(x, x, x, mask=True).detach(), 3e-2)


BAD = [
    (
        lambda: MultiHeadAttention(512, 8),
        "row is 8 and col is -1; wanted -2 and -1 .* num_heads=8?",
    ),
    (lambda: MultiHeadAttention(4, 1, 2), r"row is 1 and col is 2; wanted -2 and -1 \(or 0 and 1"),
    (lambda: SelfAttention(4, 0), "row is 0 and col is -1"),
    (lambda: SelfAttention(0), "n_embed is 0; wanted a whole number, 1 or more"),
    (
        lambda: MultiHeadAttention(4, num_heads=0),
        "num_heads is 0; wanted a whole number, 1 or more",
    ),
    (lambda: MultiHeadAttention(4, num_heads=3, kv_heads=2), "num_heads=3 cannot share kv_heads=2"),
    (
        lambda: MultiHeadAttention(4, num_heads=2, kv_heads=0),
        "kv_heads is 0; wanted a whole number, 1 or more",
    ),
    (lambda: MultiHeadAttention(4, num_heads=2, kv_heads=4), "num_heads=2 cannot share kv_heads=4"),
    (lambda: MultiHeadAttention(4, n_out=0), "n_out is 0; wanted a whole number, 1 or more"),
    (lambda: SelfAttention(4, d_k=0), "d_k is 0"),
    (lambda: SelfAttention(4, d_v=-1), "d_v is -1"),
    (lambda: SelfAttention(4, dropout=1.0), "dropout is 1.0; wanted 0 to below 1"),
    (lambda: SelfAttention(4, bias="WQ"), "bias is 'WQ'; wanted a bool or some of"),
    (lambda: SelfAttention(4, bias=("WX",)), r"bias is \('WX',\); wanted a bool or some of"),
]


@pytest.mark.usefixtures("as_shipped")
@pytest.mark.parametrize(("make", "why"), BAD)
def test_arguments_that_cannot_be_meant_are_named(make: object, why: str) -> None:
    with pytest.raises(ArgumentError, match=why):
        make()


@pytest.mark.usefixtures("as_shipped")
def test_the_hint_to_num_heads_is_given_only_where_there_is_such_an_argument() -> None:
    with pytest.raises(ArgumentError) as caught:
        SelfAttention(512, 8)
    assert "num_heads" not in str(caught.value)


@pytest.mark.usefixtures("as_shipped")
@EACH
def test_encodings_that_do_not_fit_are_named(kind: type) -> None:
    layer = kind(4)
    with pytest.raises(ShapeError, match=r"enc_q is \(5, 3\); wanted \(…, tokens, n_embed=4\)"):
        called(layer, torch.zeros(5, 3))
    with pytest.raises(ShapeError, match=r"enc_q is \(4,\); wanted"):
        called(layer, torch.zeros(4))
    flat = kind(4, 0, 1)
    assert called(flat, torch.zeros(5, 4)).shape == (5, 4)
    with pytest.raises(ShapeError, match="enc_q has 3 axes, but row=0, col=1 name the tokens and"):
        called(flat, torch.zeros(2, 5, 4))


@pytest.mark.usefixtures("as_shipped")
def test_keys_values_and_masks_that_do_not_fit_are_named() -> None:
    layer = MultiHeadAttention(4, num_heads=2)
    x = torch.zeros(2, 5, 4)
    with pytest.raises(ShapeError, match=r"enc_v is \(2, 5, 3\)"):
        layer(x, x, torch.zeros(2, 5, 3))
    with pytest.raises(ShapeError, match="keys and values differ in number, 5 ≠ 6"):
        layer(x, x, torch.zeros(2, 6, 4))
    with pytest.raises(MaskError, match="mask got a bare tensor; say what True means"):
        layer(x, x, x, mask=torch.ones(5, 5, dtype=torch.bool))
    with pytest.raises(MaskError, match="mask got int; wanted a Mask"):
        layer(x, x, x, mask=1)
    with pytest.raises(MaskError, match="mask got str; wanted a Mask"):
        MaskedSelfAttention(4, mask="causal")
    with pytest.raises(MaskError, match="5 queries look at 3 keys"):
        layer(x, x[:, :3], x[:, :3], mask=True)
    with pytest.raises(MaskError, match="batch or heads differ"):
        layer(x, x, x, mask=Mask.padding([5, 3, 1]))


@pytest.mark.usefixtures("as_shipped")
def test_encodings_of_another_dtype_are_named_with_the_way_out() -> None:
    layer = MultiHeadAttention(4, num_heads=2)
    for dtype in (torch.float64, torch.int64):
        x = torch.ones(3, 4, dtype=dtype)
        with pytest.raises(ArgumentError, match=r"enc_q is torch.*say enc_q.to\(torch.float32\)"):
            layer(x, x, x)


def test_a_bias_of_an_output_projection_that_is_not_there_is_refused() -> None:
    for make in (
        lambda: SelfAttention(4, bias=("WO",)),
        lambda: MultiHeadAttention(4, bias=["WO"]),
    ):
        with pytest.raises(ArgumentError, match="bias names WO, but there is none; say n_out"):
            make()


@pytest.mark.parametrize("shape", [(0, 5), (2, 0), (0, 0)])
@pytest.mark.parametrize("kv_heads", [4, 2])
@pytest.mark.parametrize("d_v", [8, 6])
def test_no_examples_and_no_tokens_give_none(
    shape: tuple[int, int], kv_heads: int, d_v: int
) -> None:
    layer = MultiHeadAttention(24, num_heads=4, kv_heads=kv_heads, d_k=8, d_v=d_v, n_out=24)
    x = torch.zeros(*shape, 24)
    for mask in (False, True):
        assert layer(x, x, x, mask).shape == (*shape, 24)
    one = torch.zeros(shape[0], 1, 24)
    assert layer(one, x, x).shape == (shape[0], 1, 24)
