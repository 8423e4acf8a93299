"""A teacher's own numbers, from JSON or from a workbook of ours."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

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
    ],
    ids=["masked", "drawn words", "projection", "cross", "tensors"],
)
def test_a_workbook_of_ours_comes_back_as_the_same_calculation(tmp_path, record):
    before = record()
    before.to_excel(tmp_path / "book.xlsx")
    after = explain_given(tmp_path / "book.xlsx")
    np.testing.assert_allclose(after.result, before.result, rtol=1e-6, atol=1e-7)
    for name in ("weights", "head 2/weights"):
        if name in {step.name for step in before}:
            np.testing.assert_allclose(after[name], before[name], atol=1e-7)


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
        ({"encodings": [[1, 2]], "mask": [[1, 1]]}, r"mask is \(1, 2\)"),
        ({"encodings": [[1, 2]], "heads": [1]}, '"heads" has to be a list of objects'),
    ],
)
def test_what_makes_no_calculation_is_named(tmp_path, content, message):
    with pytest.raises(ArgumentError, match=message):
        explain_given(written(tmp_path, **content))


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
        ("binary.json", b"\xff\xfe\x00", "cannot be read as text"),
        ("absent.xlsx", None, "cannot read"),
        ("broken.xlsx", b"PK", "is not a workbook"),
    ],
)
def test_files_that_cannot_be_read_are_named(tmp_path, name, content, message):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(FileError, match=message):
        explain_given(tmp_path / name)
