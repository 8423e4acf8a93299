"""A teacher's own numbers, from JSON or from a workbook of ours."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from openpyxl import load_workbook

import qkv
from qkv.errors import ArgumentError, FileError
from qkv.explaining.given import explain_given
from qkv.explaining.text import explain_words


def written(tmp_path: Path, **content) -> Path:
    path = tmp_path / "given.json"
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def matrix(*shape: int) -> list[list[float]]:
    return torch.randn(*shape).tolist()


def test_json_with_weights_of_its_own_gives_what_pytorch_gives(tmp_path):
    x, wq, wk, wv = (torch.randn(5, 3), torch.randn(2, 3), torch.randn(2, 3), torch.randn(7, 3))
    told = explain_given(
        written(
            tmp_path,
            tokens=list("abcde"),
            encodings=x.tolist(),
            mask="causal",
            WQ=wq.tolist(),
            WK=wk.tolist(),
            WV=wv.tolist(),
        )
    )
    similarities = (x @ wq.T) @ (x @ wk.T).T / 2**0.5
    masked = similarities.masked_fill(torch.ones(5, 5).triu(1) > 0, -torch.inf)
    np.testing.assert_allclose(told.result, (masked.softmax(-1) @ (x @ wv.T)).numpy(), atol=1e-5)
    assert told.step("weights").rows == tuple("abcde")
    told.verify()


def test_weights_that_are_not_given_come_from_the_seed(tmp_path):
    path = written(tmp_path, encodings=[[1.16, 0.23], [0.57, 1.36], [4.41, -2.16]])
    np.testing.assert_allclose(explain_given(path).result[0], [1.0100, 1.0641], atol=5e-5)
    assert not np.allclose(explain_given(path, seed=1).result[0], [1.0100, 1.0641], atol=1e-2)


def test_heads_biases_and_the_layer_behind_them_may_be_given(tmp_path):
    heads = [{name: matrix(2, 3) for name in ("WQ", "WK", "WV")} for _ in range(3)]
    heads[1]["bQ"] = [0.5, -0.25]
    path = written(tmp_path, encodings=matrix(4, 3), heads=heads, WO=matrix(3, 6), bO=[1, 2, 3])
    told = explain_given(path)
    told.verify()
    np.testing.assert_allclose(told["head 2/bQ"], [[0.5, -0.25]])
    np.testing.assert_allclose(told["head 3/WV"], heads[2]["WV"], rtol=1e-6)
    np.testing.assert_allclose(told["bO"], [[1, 2, 3]])


def test_keys_may_come_from_another_sentence(tmp_path):
    path = written(
        tmp_path, tokens=["el"], encodings=matrix(1, 2),
        **{"key tokens": ["the", "sky"], "key encodings": matrix(2, 2)},
    )  # fmt: skip
    weights = explain_given(path).step("weights")
    assert (weights.rows, weights.columns) == (("el",), ("the", "sky"))


def test_a_mask_of_true_and_false_blocks_where_false(tmp_path):
    path = written(tmp_path, encodings=matrix(2, 2), mask=[[True, False], [False, False]])
    told = explain_given(path)
    np.testing.assert_array_equal(told["weights"], [[1, 0], [0, 0]])


@pytest.mark.parametrize(
    "record",
    [
        lambda: explain_words(["draw", "a", "map"], mask=True),
        lambda: explain_words(["dogs", "chase", "cats"], num_heads=2),
        lambda: qkv.MultiHeadAttention(3, num_heads=2, n_out=3, bias=True).explain(
            torch.randn(4, 3), mask=True, tokens=list("abcd")
        ),
        lambda: qkv.Attention(2).explain(torch.randn(3, 2), torch.randn(5, 2)),
        lambda: qkv.explain(*(torch.randn(2, 3, 4) for _ in range(3)), mask=qkv.Mask.causal()),
        lambda: qkv.Attention(2, scale=2.0, softcap=0.5).explain(torch.randn(3, 2)),
        lambda: qkv.MultiHeadAttention(2, num_heads=2, scale=0.3, softcap=1.5).explain(
            torch.randn(3, 2)
        ),
        lambda: qkv.explain(
            *(torch.randn(2, 3, 4) for _ in range(3)), scale=0.3, softcap=1.5, tokens=list("abc")
        ),
        lambda: qkv.Attention(2).explain(*(torch.randn(3, 2) for _ in range(3))),
        lambda: qkv.MultiHeadAttention(4, num_heads=3).explain(torch.randn(3, 4), head=1),
        lambda: qkv.MultiHeadAttention(4, num_heads=2).explain(
            torch.randn(3, 4), mask=qkv.Mask.allow(torch.ones(1, 2, 3, 3).tril() > 0)
        ),
    ],
    ids=[
        "masked",
        "drawn words",
        "projection",
        "cross",
        "tensors",
        "scale and cap",
        "scale and cap of heads",
        "scale and cap of tensors",
        "values of their own",
        "one head",
        "masks of heads",
    ],
)
def test_a_workbook_of_ours_comes_back_as_the_same_calculation(tmp_path, record):
    before = record()
    before.to_excel(tmp_path / "book.xlsx")
    after = explain_given(tmp_path / "book.xlsx")
    np.testing.assert_allclose(after.result, before.result, rtol=1e-6, atol=1e-7)
    after.verify()
    for name in ("weights", "head 2/weights"):
        if name in {step.name for step in before}:
            np.testing.assert_allclose(after[name], before[name], atol=1e-7)
            assert after.step(name).rows == before.step(name).rows
            assert after.step(name).columns == before.step(name).columns


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({}, "holds no encodings"),
        ({"encodings": [[1, 2], [3]]}, "rows of different lengths"),
        ({"encodings": "much"}, '"encodings" has to be a matrix'),
        ({"encodings": [[1, 2]], "WX": [[1]]}, 'holds "WX", which means nothing here'),
        ({"encodings": [[1, 2]], "WQ": [[1, 2, 3]]}, r"WQ is \(1, 3\).*it has to be \(1, 2\)"),
        ({"encodings": [[1, 2]], "tokens": ["a", "b"]}, "2 tokens for the 1 rows"),
        ({"encodings": [[1, 2]], "tokens": "a"}, '"tokens" has to be a list of texts'),
        ({"encodings": [[1, 2]], "mask": [[True, True]]}, r"mask is \(1, 2\)"),
        ({"encodings": [[1, 2]], "heads": [1]}, '"heads" has to be a list of objects'),
        ({"encodings": [[1, 2]], "heads": []}, '"heads" has to be a list of objects'),
        ({"encodings": [[1, 2]], "heads": [{}]}, 'head 1 of "heads" is empty'),
        ({"encodings": [[1, 2]], "heads": [{"WO": [[1]]}]}, 'holds "WO", which means nothing'),
        ({"encodings": [[1, 2]], "heads": [{"WQ": [[1, 2]]}], "WQ": [[1, 2]]}, "in which head"),
        ({"encodings": [[1, 2]], "head 1/WQ": [[1, 2]]}, 'holds "head 1/WQ"'),
        ({"encodings": [[True, 2]]}, "a matrix of numbers; it holds True"),
        ({"encodings": [["1", 2]]}, "a matrix of numbers; it holds '1'"),
        ({"encodings": [[10**400, 2]]}, "a number too large"),
        ({"encodings": [[1e30, 2]]}, "similarities grow beyond what float32 can hold"),
        ({"encodings": [[1, 2]], "bO": [1, 2]}, '"bO" but no "WO"'),
        ({"encodings": [[1, 2]], "key tokens": ["a"]}, '"key tokens", but no "key encodings"'),
        ({"encodings": [[1, 2]], "queries": [[1]]}, "holds queries, which cannot go with encod"),
        ({n: [[1, 2]] for n in ("queries", "keys", "values", "WQ")}, "holds WQ, which cannot go"),
        (
            {"heads": [{n: matrix(2, w) for n in ("queries", "keys", "values")} for w in (2, 3)]},
            r"head 2/queries is \(2, 3\), head 1/queries is \(2, 2\)",
        ),
        (
            {
                "encodings": [[1, 2]],
                "heads": [{"WQ": [[1, 2]], "mask": [[True]]}, {"WQ": [[1, 2]]}],
            },
            "masks in some heads",
        ),
    ],
)
def test_what_makes_no_calculation_is_named(tmp_path, content, message):
    with pytest.raises(ArgumentError, match=message):
        explain_given(written(tmp_path, **content))


@pytest.mark.parametrize("mask", [[[1, 1], [0, 1]], [[0, -100000], [0, 0]]])
def test_a_mask_of_integers_could_mean_either_and_is_refused(tmp_path, mask):
    path = written(tmp_path, encodings=matrix(2, 2), mask=mask)
    with pytest.raises(ArgumentError, match=r'"mask" holds integers.*numbers with a point'):
        explain_given(path)


@pytest.mark.parametrize("far", [-100000.0, "-inf"])
def test_a_mask_of_numbers_with_a_point_is_added(tmp_path, far):
    path = written(tmp_path, encodings=matrix(2, 2), mask=[[0.0, far], [0.25, 0.0]])
    told = explain_given(path)
    np.testing.assert_array_equal(told["mask"], [[0, float(far)], [0.25, 0]])
    assert told["weights"][0].tolist() == [1, 0]
    assert 0 < told["weights"][1, 0] < 1
    np.testing.assert_allclose(told["masked"], told["scaled"] + told["mask"], atol=1e-6)


def test_a_head_without_a_bias_beside_one_that_has_one_gets_none(tmp_path):
    heads = [{"WQ": matrix(2, 3)}, {"WQ": matrix(2, 3), "bQ": [0.5, -0.25]}]
    told = explain_given(written(tmp_path, encodings=matrix(4, 3), heads=heads))
    np.testing.assert_array_equal(told["head 1/bQ"], [[0, 0]])
    np.testing.assert_array_equal(told["head 2/bQ"], [[0.5, -0.25]])


def test_heads_that_lack_different_weights_are_all_there(tmp_path):
    heads = [{"WQ": matrix(2, 3)}, {"WK": matrix(2, 3)}, {"bV": [1, 2, 3]}]
    told = explain_given(written(tmp_path, encodings=matrix(4, 3), heads=heads))
    np.testing.assert_allclose(told["head 1/WQ"], heads[0]["WQ"], rtol=1e-6)
    np.testing.assert_allclose(told["head 2/WK"], heads[1]["WK"], rtol=1e-6)
    np.testing.assert_allclose(told["head 3/bV"], [[1, 2, 3]])


def test_heads_are_as_many_as_are_asked_for_unless_the_file_says_otherwise(tmp_path):
    path = written(tmp_path, encodings=matrix(4, 2))
    assert explain_given(path, num_heads=3).sections[1:4] == ("head 1", "head 2", "head 3")
    path = written(tmp_path, encodings=matrix(4, 2), WQ=matrix(2, 2))
    with pytest.raises(ArgumentError, match=r"num_heads is 2, but .* the numbers of 1"):
        explain_given(path, num_heads=2)


def test_queries_keys_and_values_keep_their_tokens(tmp_path):
    q, k, v = matrix(2, 3), matrix(4, 3), matrix(4, 5)
    path = written(
        tmp_path, queries=q, keys=k, values=v, tokens=["a", "b"], **{"key tokens": list("wxyz")}
    )
    told = explain_given(path)
    assert (told.step("weights").rows, told.step("weights").columns) == (("a", "b"), tuple("wxyz"))
    q, k, v = (torch.tensor(x) for x in (q, k, v))
    wanted = (q @ k.T / 3**0.5).softmax(-1) @ v
    np.testing.assert_allclose(told.result, wanted.numpy(), atol=1e-5)


@pytest.mark.parametrize("mask", ["causal", [[True, False], [True, True]]])
def test_a_second_mask_is_refused(tmp_path, mask):
    path = written(tmp_path, encodings=matrix(2, 2), mask=mask)
    with pytest.raises(ArgumentError, match="has a mask of its own"):
        explain_given(path, mask=True)


def test_more_weights_than_anybody_reads_are_refused_before_they_are_made(tmp_path):
    path = written(tmp_path, encodings=[[1.0, 2.0]] * 2001)
    with pytest.raises(ArgumentError, match=r"2001 × 2001 weights; .* choose fewer tokens"):
        explain_given(path)


def test_numbers_that_are_not_finite_are_refused(tmp_path):
    path = tmp_path / "nan.json"
    path.write_text('{"encodings": [[NaN, 1]]}', encoding="utf-8")
    with pytest.raises(ArgumentError, match="encodings holds nan in row 0, column 0"):
        explain_given(path)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("absent.json", None, "is not there"),
        ("broken.json", b"{", "is not JSON"),
        ("binary.json", b"\xff\xfe\x00", "is not JSON"),
        ("list.json", b"[1]", r"holds a list; wanted a dict; wanted \{"),
        ("deep.json", b"[" * 100_000, "is not JSON"),
        ("long.json", b'{"encodings": [[' + b"9" * 5000 + b"]]}", "is not JSON"),
        ("absent.xlsx", None, "cannot be read"),
        ("broken.xlsx", b"PK", "is not a workbook"),
    ],
)
def test_files_that_cannot_be_read_are_named(tmp_path, name, content, message):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(FileError, match=message):
        explain_given(tmp_path / name)


def test_a_constant_that_follows_from_the_sizes_cannot_be_changed(tmp_path):
    before = explain_words(["draw", "a", "map"])
    before.to_excel(tmp_path / "book.xlsx")
    book = load_workbook(tmp_path / "book.xlsx")
    (cell,) = (
        cell
        for row in book["calculation"].iter_rows()
        for cell in row
        if isinstance(cell.value, float) and abs(cell.value - 2**0.5) < 1e-9
    )
    cell.value = 2.0
    book.save(tmp_path / "changed.xlsx")
    with pytest.raises(ArgumentError, match=r"√d_k is 2 in .*: 1\.41421; change it back"):
        explain_given(tmp_path / "changed.xlsx")
