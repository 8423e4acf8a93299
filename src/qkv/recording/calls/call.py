"""`Call`: one attention as it ran."""

from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from qkv.core.calculation import Calculation
from qkv.core.mask import Mask
from qkv.errors import ArgumentError
from qkv.recording.calls import explained
from qkv.recording.calls.blocking import Blocking
from qkv.recording.calls.contributions import Contributions, sizes_of
from qkv.recording.calls.form import Form, form_of
from qkv.recording.calls.operands import Operands
from qkv.recording.calls.place import Place
from qkv.recording.calls.program import narrow
from qkv.recording.calls.readings import Readings
from qkv.recording.calls.undisturbed import undisturbed
from qkv.recording.calls.versions import Versions
from qkv.recording.calls.weighing import distance, tilted, weights_of
from qkv.weights.matrix import Weights
from qkv.weights.summary import Summary

LAID_OUT = ("_laid_out", "_form", "_weights", "_error")
"""What is worked out when it is first asked for, and again after the tensors moved."""


class Call:
    """One attention of a model as it ran; nothing is worked out before it is asked for.

        call.weights @ call.v     the output again: `call.error` says how near it comes
        print(call.blocking)      causal, 3 keys hidden
        call.explain(head=0).to_excel("head.xlsx")

    Attributes:
        place: the module's path, and the source file and line.
        run: number of the outermost forward that it belongs to.
        index: which call of its path it is within its run.
        summary: what is left of it under `keep="summary"`, else None.
        readings: what was read of masks before; those of one recording share it.
    """

    def __init__(self, place: Place, run: int, operands: Callable[[], Operands]) -> None:
        """Keep where it was; its tensors are laid out when first asked for."""
        self.place, self.run, self.index = place, run, 0
        self.summary: Summary | None = None
        self.readings = Readings()
        self._source = operands
        self._versions: Versions | None = None

    def forget_layout(self) -> None:
        """Work everything out again when it is next asked for: a tensor was replaced."""
        self._versions = None
        for name in LAID_OUT:
            self.__dict__.pop(name, None)

    def release(self, operands: Callable[[], Operands]) -> None:
        """Put other operands in the place of these, which are let go."""
        self._source = operands
        self.forget_layout()

    def revise(self, change: Callable[[Operands], Operands]) -> None:
        """Change how its operands are laid out, now and after a tensor was replaced."""
        source = self._source
        self.release(lambda: change(source()))

    def close(self, like: "Call | None" = None) -> None:
        """Take down what its tensors are now: after the block nobody sees what is written.

        Args:
            like: the call whose tensors it reads, where that is another one.
        """
        self._versions = Versions(self.operands) if like is None else like._versions

    @property
    def operands(self) -> Operands:
        """What it was computed from, laid out as (batch, heads, tokens, width).

        Raises:
            RecordingError: one of its tensors was written into after the block.
        """
        self._check()
        return self._laid_out

    def _check(self) -> None:
        """Refuse to answer from tensors that are no longer what ran."""
        if self._versions is not None:
            self._versions.check(self.path or f"{self.file}:{self.line}")

    @cached_property
    def _laid_out(self) -> Operands:
        return self._source()

    @property
    def path(self) -> str | None:
        """The module's path; None outside of every module."""
        return self.place.path

    @property
    def file(self) -> str:
        """The source file."""
        return self.place.file

    @property
    def line(self) -> int:
        """The line in it."""
        return self.place.line

    @property
    def shape(self) -> torch.Size:
        """Of the weights: (batch, heads, queries, keys)."""
        return torch.Size((*self.q.shape[:-1], self.k.shape[-2]))

    @property
    def kind(self) -> Literal["self", "cross", "unknown"]:
        """Whether queries and keys were made of one tensor; unknown where that was not seen."""
        same = self.operands.same_source
        if same is None:
            return "unknown"
        return "self" if same else "cross"

    @property
    def how(self) -> str:
        """The name of the fused operation, or "written out"."""
        return self.operands.how

    @property
    def q(self) -> Float[Tensor, "batch heads queries d_k"]:
        """The queries, by reference."""
        return self.operands.q

    @property
    def k(self) -> Float[Tensor, "batch kv_heads keys d_k"]:
        """The keys, by reference; each of the kv_heads serves a run of heads."""
        return self.operands.k

    @property
    def v(self) -> Float[Tensor, "batch kv_heads keys d_v"]:
        """The values, by reference."""
        return self.operands.v

    @property
    def output(self) -> Float[Tensor, "batch heads queries d_v"]:
        """What the model went on with."""
        return self.operands.output

    @property
    def dropout(self) -> float:
        """Probability that a weight was dropped."""
        return self.operands.dropout

    @property
    def sinks(self) -> Float[Tensor, "#batch #heads #queries number"] | None:
        """Logits beside those of the keys, which took weight and gave nothing (GPT-OSS)."""
        return None if self.operands.sinks is None else self.operands.sinks()

    @property
    def form(self) -> Form:
        """softmax(cap(Q Kᵀ · scale) + M), as far as what the model did is that."""
        self._check()
        return self._form

    @cached_property
    @undisturbed()
    def _form(self) -> Form:
        return form_of(self.operands, self.readings)

    @property
    def scale(self) -> float | Float[Tensor, "#batch #heads #queries 1"]:
        """What the similarities were multiplied by; a tensor where heads differ (SwinV2)."""
        factor = self.form.factor
        return self.form.scale if factor is None else factor * self.form.scale

    @property
    def softcap(self) -> float | None:
        """c of c · tanh(scaled / c), or None."""
        return self.form.softcap

    @property
    def mask(self) -> Mask | None:
        """Who could look at whom, and what was added: recognised, or by reference."""
        return self.form.mask

    @property
    def blocking(self) -> Blocking:
        """What the mask hides, in numbers and in words."""
        return Blocking.of(self.form.mask, *self.shape[-2:])

    @property
    def weights(self) -> Weights:
        """The attention matrix, never formed: softmax of the scores, before dropout.

        What the model did after its softmax belongs to it as far as it hid keys or took a share
        from each, by numbers from 0 to 1: these are then smaller, and rows no longer sum to 1.
        What every weight of a row was multiplied by alike (a gate of a head, p / 2, p divided by
        its row's sum once more) is no share of a key and is not in them: the output is
        weights · V · that factor, and `error` is measured with it.

        Raises:
            RecordingError: what entered the second product were no weights.
        """
        self._check()
        return self._weights

    @cached_property
    @undisturbed()
    def _weights(self) -> Weights:
        return weights_of(self.operands, self.form)

    @property
    def error(self) -> float:
        """max |weights · V − output| in units of the largest |output|.

        It is how far the whole recomputation is from what the model went on with: the weights
        handed out, then dropout's noise where the model made it in sight, and whatever the rows
        were multiplied by after the softmax. NaN where a fused operation dropped weights and
        keeps to itself which; ∞ where one of the two is not a number and the other is.
        """
        self._check()
        return self._error

    @cached_property
    @undisturbed()
    def _error(self) -> float:
        if self.dropout and self.operands.noise is None:
            return float("nan")
        return distance(self.operands, self.weights)

    @property
    def known_error_eps(self) -> float:
        """`error_eps`, where the error was asked for before; else 0."""
        error: float | None = self.__dict__.get("_error")
        return 0.0 if error is None else error / torch.finfo(self._laid_out.output.dtype).eps

    @property
    def error_eps(self) -> float:
        """`error` in units of the precision that the output has: 1 is its last place."""
        return self.error / torch.finfo(self.output.dtype).eps

    @undisturbed()
    def explain(
        self,
        head: int,
        batch: int = 0,
        tokens: Sequence[str] | None = None,
        key_tokens: Sequence[str] | None = None,
    ) -> Calculation:
        """Write one head of one example down, step by step, beside what the model went on with.

        Args:
            head: counted from 0.
            batch: which example.
            tokens: labels of the queries; of the keys, too, where queries are among them: the
                last ones, as in decoding with a cache.
            key_tokens: labels of keys of their own (cross-attention).

        Raises:
            ArgumentError: there is no such head or example.
            ShapeError: there are more or fewer labels than tokens.
        """
        one = self._one(head, batch)
        queries, keys = one.q.shape[-2], one.k.shape[-2]
        labels = explained.Tokens(tokens, key_tokens)
        if tokens is not None and key_tokens is None and len(tokens) == keys:
            labels = explained.Tokens(
                tokens[keys - queries :] if queries <= keys else tokens, tokens
            )
        where = self.path or f"{self.file}:{self.line}"
        title = f"{where}, head {range(self.shape[1])[head] + 1} of {self.shape[1]}"
        return explained.explain(one, form_of(one), title, labels)

    @undisturbed()
    def contributions(self, head: int, batch: int | None = None) -> Contributions:
        """Return p_ij ‖v_j W_O‖ of a head, for one example or (None) for all.

        Raises:
            ArgumentError: there is no such head or example.
        """
        one = self._one(head, batch)
        projection = self.operands.projection and self.operands.projection()
        part = None if projection is None else projection[head]
        sizes, form = sizes_of(one.v, part), form_of(one)
        heavier = partial(tilted, one, form, sizes)
        return Contributions(weights_of(one, form), sizes, part is not None, heavier)

    def _one(self, head: int, batch: int | None) -> Operands:
        examples, heads = self.shape[:2]
        for name, value in (("head", head), ("batch", batch)):
            if not isinstance(value, int) and (name == "head" or value is not None):
                raise ArgumentError(f"{name} is {value!r}; wanted a whole number, from 0")
        if not -heads <= head < heads:
            raise ArgumentError(f"head is {head}; wanted one of the {heads} heads, from 0")
        if batch is not None and not -examples <= batch < examples:
            raise ArgumentError(f"batch is {batch}; wanted one of the {examples} examples, from 0")
        h = head % heads
        first, last = (0, examples) if batch is None else (batch % examples, batch % examples + 1)
        return narrow(self.operands, slice(first, last), slice(h, h + 1))

    def __repr__(self) -> str:
        where = self.path or "outside of every module"
        return f"Call({where}, {self.file}:{self.line}, run {self.run}, index {self.index})"
