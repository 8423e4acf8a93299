"""Packed heads: views on each, the article's layout and the packed one, and nothing replaced."""

import copy
import itertools

import pytest
import torch

from qkv import MultiHeadAttention, SelfAttention
from qkv.errors import ArgumentError, ModelError
from qkv.nn.packed import HeadView, ProjectionView
from tests.reference import agree, array

SHAPES = {
    "plain": {"n_embed": 4, "num_heads": 3},
    "biased": {"n_embed": 4, "num_heads": 3, "d_k": 2, "d_v": 5, "n_out": 3, "bias": True},
    "grouped": {"n_embed": 4, "num_heads": 4, "kv_heads": 2, "d_k": 3, "bias": ("WK",)},
}
EACH = pytest.mark.parametrize("options", SHAPES.values(), ids=SHAPES)


def test_a_head_is_a_view_on_its_rows() -> None:
    layer = MultiHeadAttention(4, num_heads=4, kv_heads=2, d_k=3, d_v=5, bias=True)
    head = layer.heads[3]
    assert torch.equal(head.WQ.weight, layer.WQ.weight[9:12])
    assert torch.equal(head.WK.weight, layer.WK.weight[3:6])
    assert torch.equal(head.WV.weight, layer.WV.weight[5:10])
    assert torch.equal(head.WV.bias, layer.WV.bias[5:10])
    assert (
        head.WQ.weight.untyped_storage().data_ptr() == layer.WQ.weight.untyped_storage().data_ptr()
    )
    assert torch.equal(layer.heads[2].WK.weight, head.WK.weight), "heads 2 and 3 share: 0 0 1 1"
    assert not torch.equal(layer.heads[1].WK.weight, head.WK.weight)
    assert MultiHeadAttention(4).heads[0].WQ.bias is None


def test_writing_into_a_view_changes_the_layer() -> None:
    layer = MultiHeadAttention(4, num_heads=2)
    with torch.no_grad():
        layer.heads[1].WQ.weight.fill_(3.0)
    assert (layer.WQ.weight[4:] == 3).all()
    assert (layer.WQ.weight[:4] != 3).all()


def test_heads_are_a_read_only_sequence() -> None:
    heads = MultiHeadAttention(4, num_heads=3).heads
    assert len(heads) == 3
    assert len(list(heads)) == 3
    assert all(isinstance(head, HeadView) for head in heads)
    assert isinstance(heads[0].WQ, ProjectionView)
    assert torch.equal(heads[-1].WV.weight, heads[2].WV.weight)
    assert [h.WQ.rows for h in heads[1:]] == [slice(4, 8), slice(8, 12)]
    with pytest.raises(IndexError):
        heads[3]
    assert repr(heads).startswith("3 heads of MultiHeadAttention(")


@pytest.mark.usefixtures("as_shipped")
def test_assigning_is_refused_and_names_the_packed_parameter() -> None:
    layer = MultiHeadAttention(4, num_heads=2)
    copy_into = r"copy into it, {}\.copy_\(…\), under torch\.no_grad\(\)"
    why = r"the packed parameter WQKV: its weight cannot be replaced; "
    with pytest.raises(ArgumentError, match=why + copy_into.format(r"WQ\.weight")):
        layer.heads[1].WQ.weight = torch.zeros(4, 4)
    with pytest.raises(ArgumentError, match=r"the packed parameter bQKV: its bias cannot be"):
        layer.WV.bias = torch.zeros(8)
    why = r"the packed parameter WQKV: its WV cannot be replaced; "
    with pytest.raises(ArgumentError, match=why + copy_into.format(r"WV\.weight")):
        layer.heads[1].WV = torch.nn.Linear(4, 4)
    with pytest.raises(TypeError):
        layer.heads[1] = layer.heads[0]
    for name in ("WQ", "WK", "WV", "heads"):
        for value in (torch.nn.Linear(4, 8), torch.nn.ModuleList([SelfAttention(4)]), None):
            with pytest.raises(ArgumentError, match=f"^{name} is a view on the packed parameter"):
                setattr(layer, name, value)
    assert torch.equal(layer.heads[1].WQ.weight, layer.WQKV[4:8])


def test_a_view_computes_what_the_linear_layer_of_its_rows_would() -> None:
    layer = MultiHeadAttention(4, num_heads=2, d_k=3, bias=("WK",))
    x = torch.randn(2, 5, 4)
    key, query = layer.heads[1].WK, layer.heads[1].WQ
    agree(key(x), array(x) @ array(key.weight).T + array(key.bias), 1e-6)
    agree(query(x), array(x) @ array(query.weight).T, 1e-6)
    agree(layer.WK(x)[..., 3:], array(key(x)), 1e-6)
    assert repr(query) == "WQ: 3 × 4"


@pytest.mark.parametrize("bias", [("WQ",), ("WK",), ("WV",), ("WQ", "WV"), ("WK", "WV"), True])
def test_some_projections_may_have_a_bias_and_others_none(bias: object) -> None:
    layer = MultiHeadAttention(4, num_heads=4, kv_heads=2, d_k=3, d_v=5, bias=bias)
    x = torch.randn(2, 5, 4)
    packed, apart = layer(x, x, x), layer(x, x.clone(), x.clone())
    agree(packed, array(apart), 1e-6)
    for name in ("WQ", "WK", "WV"):
        assert (getattr(layer, name).bias is not None) == (bias is True or name in bias)
    twin = MultiHeadAttention(4, num_heads=4, kv_heads=2, d_k=3, d_v=5, bias=bias)
    twin.load_state_dict(layer.state_dict())
    assert torch.equal(twin(x, x, x), packed)


def test_the_state_dict_speaks_of_the_projections_apart() -> None:
    layer = MultiHeadAttention(4, num_heads=2, n_out=4, bias=("WQ", "WO"))
    names = {"WQ.weight", "WQ.bias", "WK.weight", "WV.weight", "WO.weight", "WO.bias"}
    assert set(layer.state_dict()) == names
    assert {n for n, _ in layer.named_parameters()} == {"WQKV", "bQKV", "WO.weight", "WO.bias"}
    kept = layer.state_dict(keep_vars=True)
    assert kept["WK.weight"].requires_grad
    for name in ("WQ", "WK", "WV"):
        assert torch.equal(kept[f"{name}.weight"], getattr(layer, name).weight)
    assert not layer.state_dict()["WK.weight"].requires_grad


def test_weights_may_be_assigned_to_a_layer_without_numbers() -> None:
    saved = MultiHeadAttention(4, num_heads=2, n_out=4, bias=True)
    empty = MultiHeadAttention(4, num_heads=2, n_out=4, bias=True, device="meta")
    empty.load_state_dict(saved.state_dict(), assign=True)
    x = torch.randn(2, 5, 4)
    assert torch.equal(empty(x, x, x), saved(x, x, x))
    assert empty.WQKV.requires_grad
    assert isinstance(empty.WQKV, torch.nn.Parameter)


def test_parts_of_a_state_dict_may_be_loaded_and_are_accounted_for() -> None:
    layer, other = (MultiHeadAttention(4, num_heads=2, bias=True) for _ in range(2))
    before = {name: value.clone() for name, value in layer.state_dict().items()}
    part = {"WK.weight": other.WK.weight.detach(), "WX.weight": torch.zeros(1)}
    result = layer.load_state_dict(part, strict=False)
    assert result.unexpected_keys == ["WX.weight"]
    assert set(result.missing_keys) == set(before) - {"WK.weight"}
    for name, value in layer.state_dict().items():
        assert torch.equal(value, other.WK.weight if name == "WK.weight" else before[name])


def test_loading_changes_the_dtype_of_what_is_loaded_not_of_the_layer() -> None:
    layer = MultiHeadAttention(4, num_heads=2)
    layer.load_state_dict(MultiHeadAttention(4, num_heads=2, dtype=torch.bfloat16).state_dict())
    assert layer.WQKV.dtype == torch.float32


@EACH
def test_both_layouts_round_trip(options: dict[str, object]) -> None:
    saved, loaded, other = (MultiHeadAttention(**options) for _ in range(3))
    x = torch.randn(5, 4)
    assert not torch.equal(loaded(x, x, x), saved(x, x, x))
    loaded.load_state_dict(saved.state_dict())
    assert torch.equal(loaded(x, x, x), saved(x, x, x))
    articles = {f"heads.{key}": value for key, value in saved.heads.state_dict().items()}
    articles |= {key: value for key, value in saved.state_dict().items() if key.startswith("WO")}
    before = dict(articles)
    other.load_state_dict(articles)
    assert torch.equal(other(x, x, x), saved(x, x, x))
    assert articles.keys() == before.keys(), "the caller's dictionary is left as it was"
    for name, value in saved.state_dict().items():
        assert torch.equal(other.state_dict()[name], value)


def test_the_articles_own_module_list_loads() -> None:
    class Article(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.heads = torch.nn.ModuleList([SelfAttention(2, 0, 1) for _ in range(3)])

    article = Article()
    assert list(article.state_dict())[:3] == [
        "heads.0.WQ.weight",
        "heads.0.WK.weight",
        "heads.0.WV.weight",
    ]
    mha = MultiHeadAttention(2, 0, 1, num_heads=3)
    mha.load_state_dict(article.state_dict())
    c = torch.randn(4, 2)
    agree(mha(c, c, c), array(torch.cat([head(c) for head in article.heads], -1)), 1e-6)
    ours = {f"heads.{key}" for key in mha.heads.state_dict()}
    assert ours == set(article.state_dict())
    article.load_state_dict({f"heads.{key}": v for key, v in mha.heads.state_dict().items()})


def test_a_layer_inside_a_model_loads_both_layouts() -> None:
    model = torch.nn.ModuleDict({"attention": MultiHeadAttention(4, num_heads=2, n_out=4)})
    other = copy.deepcopy(model)
    torch.nn.init.zeros_(other["attention"].WQ.weight)
    state = model.state_dict()
    heads = model["attention"].heads.state_dict()
    state = {f"attention.heads.{k}": v for k, v in heads.items()} | {
        k: v for k, v in state.items() if "WO" in k
    }
    other.load_state_dict(state)
    for name, value in model.state_dict().items():
        assert torch.equal(other.state_dict()[name], value)


def test_grouped_heads_whose_shared_keys_differ_are_refused() -> None:
    layer = MultiHeadAttention(4, num_heads=4, kv_heads=2)
    for name, (a, b) in itertools.product(("WK", "WV"), ((0, 1), (2, 3))):
        state = {f"heads.{k}": v.clone() for k, v in layer.heads.state_dict().items()}
        state[f"heads.{b}.{name}.weight"] += 1
        why = rf"heads\.{b}\.{name}\.weight differs from heads\.{a}\.{name}\.weight, but kv_heads=2"
        with pytest.raises(ModelError, match=why):
            layer.load_state_dict(state)


def test_a_layout_that_lacks_or_has_too_much_is_reported_by_name() -> None:
    layer = MultiHeadAttention(4, num_heads=2)
    state = {f"heads.{k}": v for k, v in layer.heads.state_dict().items()}
    del state["heads.1.WK.weight"]
    with pytest.raises(RuntimeError, match=r'Missing key.*"WK\.weight"'):
        layer.load_state_dict(dict(state))
    more = {
        f"heads.{k}": v for k, v in MultiHeadAttention(4, num_heads=3).heads.state_dict().items()
    }
    with pytest.raises(RuntimeError, match=r'Unexpected key.*"heads\.2\.WQ\.weight"'):
        layer.load_state_dict(more)
    with pytest.raises(RuntimeError, match=r"size mismatch for WQ\.weight"):
        layer.load_state_dict(MultiHeadAttention(4, num_heads=3).state_dict())


def test_weights_that_are_not_numbers_are_loaded_as_they_are() -> None:
    layer = MultiHeadAttention(4, num_heads=2)
    state = {
        f"heads.{k}": torch.full_like(v, torch.nan) for k, v in layer.heads.state_dict().items()
    }
    layer.load_state_dict(state)
    assert layer.WK.weight.isnan().all()


def test_the_articles_layout_is_detached_and_shares_memory() -> None:
    layer = MultiHeadAttention(4, num_heads=2, bias=True)
    state = layer.heads.state_dict()
    assert list(state)[:2] == ["0.WQ.weight", "0.WQ.bias"]
    assert len(state) == 12
    assert not any(value.requires_grad for value in state.values())


def test_a_head_drawn_with_a_bias_is_drawn_as_pytorch_draws_it() -> None:
    torch.manual_seed(5)
    layer = MultiHeadAttention(4, num_heads=2, kv_heads=1, d_v=3, bias=True, n_out=6)
    torch.manual_seed(5)
    order = [("WQ", 0, 4), ("WK", 0, 4), ("WV", 0, 3), ("WQ", 4, 4)]
    for name, start, size in order:
        linear = torch.nn.Linear(4, size)
        rows = slice(start, start + size)
        assert torch.equal(getattr(layer, name).weight[rows], linear.weight)
        assert torch.equal(getattr(layer, name).bias[rows], linear.bias)
    assert torch.equal(layer.WO.weight, torch.nn.Linear(6, 6).weight)
