"""One head of an attention as it ran, written down as a Calculation."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from qkv.core.calculation import Calculation
from qkv.core.operations import Operation as Op
from qkv.core.steps import logits, softmax
from qkv.core.working import Working
from qkv.recording.calls.form import Form
from qkv.recording.calls.operands import Operands
from qkv.recording.calls.program import Program, apply
from qkv.recording.calls.weighing import After, after

Labels = Sequence[str] | None


class Tokens(NamedTuple):
    """Labels of the queries and of the keys."""

    queries: Labels
    keys: Labels


def explain(one: Operands, form: Form, title: str, tokens: Tokens) -> Calculation:
    """Write down one head of one example; what the model went on with stands as `observed`.

    Computed in the coarsest precision that the model used. Where the form does not say all that
    was done to the similarities, the logits are given as the model's own program makes them.
    """
    w = Working(title)
    dtype = max((one.q.dtype, one.v.dtype, one.output.dtype), key=lambda d: torch.finfo(d).eps)
    q, k, v = (tensor[0, 0].to(dtype) for tensor in (one.q, one.k, one.v))
    w.given("queries", q, symbol="Q", rows=tokens.queries, says="what each token looks for")
    w.given("keys", k, symbol="K", rows=tokens.keys, says="what each token is found by")
    w.given("values", v, symbol="V", rows=tokens.keys, says="what each token gives")
    x = _logits(w, one, form) if form.plain else _given_logits(w, one, dtype)
    done = after(one)
    weights = _weights(w, one, form, x, done)
    output = _output(w, one, weights, done, dtype)
    known = one.dropout == 0 or one.noise is not None
    return w.finish({output: one.output[0, 0]} if known else None)


def _logits(w: Working, one: Operands, form: Form) -> str:
    """cap(Q Kᵀ · scale) + M."""
    q, scale = "queries", form.scale
    if form.factor is not None and form.factor.numel() == 1:
        scale *= float(form.factor)
    elif form.factor is not None:
        column = form.factor[0, 0].to(w.tensor(q))
        w.given("factor", column, symbol="f", columns=["f"], says="a scale of each query")
        q = w.step(Op.MULTIPLY, "scaled queries", q, "factor", symbol="f Q")
    usual = abs(scale * one.q.shape[-1] ** 0.5 - 1) < 1e-7
    mask = None if form.mask is None else _matrix(one, form)
    if mask is None or not form.least or one.sinks is not None:  # a sink takes all of such a row
        if mask is not None:
            _write_mask(w, mask)
        return logits(
            w, q, "keys", None if mask is None else "mask",
            scale=None if usual else scale, softcap=form.softcap,
        )  # fmt: skip
    # A finite least value hides some rows whole: their similarities no longer count.
    program = Program.of(one)
    hidden = mask.isneginf().all(-1)
    rows = program.tile(range(len(mask)), range(mask.shape[1]))[0, 0]
    _write_mask(w, torch.where(hidden[:, None], rows.to(mask), mask))
    seeing = (~hidden)[:, None].to(w.tensor(q))
    w.given(
        "seeing", seeing, symbol="s", columns=["s"],
        says="0 where a row is hidden whole, by a number so low that nothing else is left of it",
    )  # fmt: skip
    x = logits(w, q, "keys", scale=None if usual else scale, softcap=form.softcap)
    x = w.step(Op.MULTIPLY, "seen", x, "seeing", symbol="s S")
    return w.step(Op.ADD, "masked", x, "mask", symbol="s S + M", says="−∞ where it may not look")


def _given_logits(w: Working, one: Operands, dtype: torch.dtype) -> str:
    """What a program that has no other form makes of the similarities."""
    w.step(
        Op.PRODUCT_TRANSPOSED, "similarities", "queries", "keys", symbol="Q Kᵀ",
        says="how alike each query and each key are: their dot product",
    )  # fmt: skip
    program = Program.of(one)
    x = program.tile(*(range(size) for size in program.shape[-2:]))[0, 0]
    done = ", ".join(operation.kind for operation in one.scores)
    return w.given(
        "logits", x.to(dtype), symbol="S", blocks=True, rows=w.labels("queries"),
        columns=w.labels("keys"), says=f"the similarities after the model did this: {done}",
    )  # fmt: skip


def _weights(w: Working, one: Operands, form: Form, x: str, done: After) -> str:
    """softmax, with sinks, and what was taken from the weights afterwards."""
    dtype = w.tensor(x).dtype
    staged = bool(done.blocking) or one.sinks is not None
    section = "softmax/" if staged else ""
    if one.sinks is not None:
        sinks = one.sinks()[0, 0].to(dtype)
        sinks = sinks.expand(one.q.shape[-2], sinks.shape[-1])
        if not form.plain:
            sinks = sinks - Program.of(one).shift[0, 0, :, None].to(dtype)
        w.given("sinks", sinks, symbol="Z", rows=w.labels("queries"), says="take weight, give none")
        x = w.step(Op.CONCATENATE, "with sinks", x, "sinks", symbol="[S, Z]")
    weights = softmax(w, x, section=section)
    if one.sinks is not None:
        weights = w.step(
            Op.COLUMNS, "softmax/of keys" if done.blocking else "weights", weights, symbol="P",
            selection=range(one.k.shape[-2]), says="what the sinks took is dropped",
        )  # fmt: skip
    if not done.blocking:
        return weights
    kept = torch.zeros(1, 1, *one.q.shape[2:3], one.k.shape[-2], device=one.q.device)
    for operation in done.blocking:
        kept = apply(operation, kept, range(kept.shape[-2]), range(kept.shape[-1]))
    w.given(
        "kept", kept[0, 0].exp().to(dtype), symbol="A", rows=w.labels("queries"),
        columns=w.labels("keys"), says="what was left of each weight after the softmax",
    )  # fmt: skip
    return w.step(Op.MULTIPLY, "weights", weights, "kept", symbol="P A")


def _output(w: Working, one: Operands, weights: str, done: After, dtype: torch.dtype) -> str:
    """P V, with the noise of dropout where it is known, and the gain of each row."""
    if one.noise is not None:
        noise = one.noise()[0, 0].to(dtype).expand(w.tensor(weights).shape)
        w.given("dropout", noise, symbol="D", rows=w.labels("queries"), columns=w.labels("keys"))
        weights = w.step(
            Op.MULTIPLY, "weights after dropout", weights, "dropout", symbol="P D",
            says="dropped, or made larger for those that were",
        )  # fmt: skip
    gained = isinstance(done.gain, Tensor) or done.gain != 1
    output = w.step(
        Op.PRODUCT, "mixed values" if gained else "output", weights, "values", symbol="P V",
        says="each row mixes the values by its weights",
    )  # fmt: skip
    if not gained:
        return output
    gain = torch.as_tensor(done.gain, dtype=dtype).reshape(-1, 1)
    w.given("gain", gain, symbol="g", rows=None, columns=["g"], says="what each row was times")
    return w.step(Op.MULTIPLY, "output", output, "gain", symbol="g P V")


def _matrix(one: Operands, form: Form) -> Tensor:
    assert form.mask is not None
    queries, keys = one.q.shape[-2], one.k.shape[-2]
    return form.mask.matrix(queries, keys).reshape(-1, queries, keys)[0].to(one.q.device)


def _write_mask(w: Working, matrix: Tensor) -> None:
    biased = bool((matrix.isfinite() & (matrix != 0)).any())
    says = "what is added to a similarity" if biased else "0 where a token may look"
    w.given(
        "mask", matrix.to(w.tensor("queries")), symbol="M", says=f"{says}, −∞ where not",
        blocks=True, rows=w.labels("queries"), columns=w.labels("keys"),
    )  # fmt: skip
