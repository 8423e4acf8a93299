"""A line a head: measured over all that ran, and named."""

import pytest
import torch

from qkv.errors import ArgumentError
from qkv.recording.memory.joining import Key
from qkv.recording.recording import Recording
from qkv.recording.table import layer_of
from qkv.recording.watching import watch
from tests.recording import small

TOKENS = ["[CLS]", "a", "map", "a", "map", ",", "a"]


@pytest.fixture(scope="module")
def ids() -> torch.Tensor:
    return torch.randint(5, 90, (2, 7), generator=torch.Generator().manual_seed(2))


@pytest.fixture(scope="module")
def mask() -> torch.Tensor:
    mask = torch.ones(2, 7, dtype=torch.long)
    mask[1, 4:] = 0
    return mask


@pytest.fixture(scope="module")
def seen(ids: torch.Tensor, mask: torch.Tensor) -> Recording:
    model = small.bert("eager")
    with torch.no_grad(), watch(model, tokens=TOKENS) as seen:
        model(ids, attention_mask=mask)
    return seen


def test_every_head_is_measured_over_the_tokens_that_are_no_padding(
    seen: Recording, ids: torch.Tensor, mask: torch.Tensor
) -> None:
    with torch.no_grad():
        weights = small.bert("eager")(ids, attention_mask=mask, output_attentions=True).attentions
    real = mask.double()[:, None, :]
    for row in seen.table():
        assert row.layer is not None
        p = weights[row.layer][:, row.head].double()
        i = torch.arange(7)

        def mean(x: torch.Tensor) -> float:
            return float((x * real[:, 0]).sum() / real.sum())

        entropy = -torch.special.xlogy(p, p).sum(-1)
        distance = (p * (i[:, None] - i).abs()).sum(-1)
        separators = p[..., [0, 5]].sum(-1)
        assert row.entropy == pytest.approx(mean(entropy), abs=1e-5)
        assert row.distance == pytest.approx(mean(distance), abs=1e-5)
        assert row.first == pytest.approx(mean(p[..., 0]), abs=1e-5)
        assert row.itself == pytest.approx(mean(p.diagonal(dim1=-2, dim2=-1)), abs=1e-5)
        assert row.separators == pytest.approx(mean(separators), abs=1e-5)


def test_rows_come_in_the_order_of_the_model(seen: Recording) -> None:
    table = seen.table()
    assert [(row.layer, row.head) for row in table] == [(m, h) for m in range(2) for h in range(4)]
    assert {row.path for row in table} == set(seen.paths)
    assert len(table) == 8


def test_heads_of_a_kind_come_with_the_clearest_first(seen: Recording) -> None:
    table = seen.table()
    kinds = {row.kind for row in table}
    for kind in kinds:
        found = seen.find(kind)
        assert {row.kind for row in found} == {kind}
        assert [row.measure for row in found] == sorted((r.measure for r in found), reverse=True)
    assert sum(len(seen.find(kind)) for kind in kinds) == len(table)


def test_a_kind_that_is_none_lists_them(seen: Recording) -> None:
    with pytest.raises(ArgumentError, match="kind is 'odd'; wanted one of induction, same word"):
        seen.find("odd")


def test_what_needs_tokens_says_so_without_them(ids: torch.Tensor) -> None:
    model = small.bert()
    with torch.no_grad(), watch(model) as seen:
        model(ids)
    for kind in ("induction", "same word", "separator"):
        with pytest.raises(ArgumentError, match=rf"'{kind}', but what a head does with words"):
            seen.find(kind)
    assert "seen.with_tokens" in repr(seen.table())
    assert "induction" not in repr(seen.table()).split("\n")[1]


def test_tokens_that_are_not_those_of_the_keys_count_as_none(seen: Recording) -> None:
    table = seen.with_tokens(["a", "b"]).table()
    assert table[0].separators is None
    keys = seen[seen.paths[0]].shape[-1]
    assert f"there are 2 tokens, and {keys} keys" in repr(table)


def test_it_prints_a_line_a_head(seen: Recording) -> None:
    lines = repr(seen.table()).split("\n")
    assert lines[0] == "8 heads of BertModel"
    assert lines[1].split()[:5] == ["path", "head", "kind", "measure", "entropy"]
    assert len(lines) == 10
    assert len({len(line.rstrip()) for line in lines[2:]}) == 1  # numbers end below each other


def test_means_over_several_inputs_are_weighted_by_their_queries(ids: torch.Tensor) -> None:
    model = small.bert()
    with torch.no_grad(), watch(model) as seen:
        model(ids)
        model(ids[:1, :4])
    first, second = (run.table().heads[3].entropy for run in seen.runs)
    assert seen.table().heads[3].entropy == pytest.approx((14 * first + 4 * second) / 18)


@pytest.mark.parametrize("keep", ["inputs", "summary"])
def test_between_two_texts_nothing_is_said_of_positions(keep: str, ids: torch.Tensor) -> None:
    model = small.bart()
    with torch.no_grad(), watch(model, keep=keep) as seen:  # type: ignore[arg-type]
        model(input_ids=ids, decoder_input_ids=ids)  # as many, and still two texts
    table = seen.table()
    cross = [head for head in table if head.path.endswith("encoder_attn")]
    assert len(cross) == 8
    for head in cross:
        assert (head.distance, head.previous, head.itself) == (None, None, None)
        assert head.kind not in ("previous token", "itself")
        assert head.entropy > 0
    for head in table:
        if head not in cross:
            assert None not in (head.distance, head.previous, head.itself)
    line = next(line for line in repr(table).split("\n") if "encoder_attn" in line)
    assert line.split()[-4:].count("–") == 3
    alone = repr(seen.select("*encoder_attn").table()).split("\n")[1]
    assert "distance" not in alone


@pytest.mark.parametrize(
    ("path", "several", "layer"),
    [
        ("encoder.layer.3.attention.self", False, 3),
        ("decoder.block.2.layer.1.EncDecAttention", False, 2),
        ("h.11", False, 11),
        ("conv1d.attention2", False, None),
        (None, False, None),
        ("albert.group.0.attention", True, 5),
    ],
)
def test_layers_are_numbered_by_the_path(
    path: str | None, several: bool, layer: int | None
) -> None:
    assert layer_of(Key(path, 5), several) == layer


def test_shared_layers_are_numbered_by_the_pass() -> None:
    model = small.peaked(small.Shared())
    with torch.no_grad(), watch(model) as seen:
        model(torch.randn(2, 5, 8))
    rows = list(seen.table())
    assert [(row.path, row.layer, row.head) for row in rows[:3]] == [
        ("attention[0]", 0, 0),
        ("attention[0]", 0, 1),
        ("attention[1]", 1, 0),
    ]
    assert seen[rows[2].path].index == 1  # as a path of the table is asked for


@pytest.mark.parametrize("keep", ["inputs", "summary"])
def test_a_head_that_is_not_a_number_is_called_so(keep: str, ids: torch.Tensor) -> None:
    model = small.bert()
    model.encoder.layer[1].attention.self.query.weight.data[:8] = torch.nan  # of four heads one
    with torch.no_grad(), watch(model, keep=keep) as seen:  # type: ignore[arg-type]
        model(ids)
    table = seen.table()
    assert [head.kind == "not a number" for head in table] == [False] * 4 + [True] + [False] * 3
    assert [(one.layer, one.head) for one in seen.find("not a number")] == [(1, 0)]
    assert "5.00" not in repr(table)
