"""The weights of an attention as it ran, recovered from its operands."""

from dataclasses import dataclass, replace
from math import isnan

import torch
from jaxtyping import Float
from torch import Tensor

from qkv.core.blocks import runs
from qkv.core.mask import Mask
from qkv.core.mask_parts import Part
from qkv.errors import RecordingError
from qkv.recording.calls.form import Form, constant
from qkv.recording.calls.masks import PAIRS, Added, blocks_of, narrowed, open_, part_of, runs_under
from qkv.recording.calls.operands import Operands, Operation
from qkv.recording.calls.program import Program
from qkv.weights.matrix import Weights


@dataclass(frozen=True, eq=False)
class After:
    """What was done to the weights between the softmax and the second product.

    Attributes:
        blocking: what took single weights away, or made them smaller, as operations on logits.
        gain: what every weight of a row was multiplied by; it is no share of a key, and stays
            outside of the weights.
    """

    blocking: tuple[Operation, ...]
    gain: Float[Tensor, "#batch #heads #queries 1"] | float


def weights_of(operands: Operands, form: Form) -> Weights:
    """Return the weights that the second product was made with, before dropout and gain.

    They answer from the form where it says all, so that the fused kernel serves them, and from
    the program itself where it does not.
    """
    form, blocking = _settled(operands, form)
    return _shares(operands, form, blocking) if blocking else _softmax(operands, form)


def tilted(operands: Operands, form: Form, sizes: Float[Tensor, "batch heads keys"]) -> Weights:
    """Return softmax(logits + ln sizes), without sinks: rows in proportion to weights · sizes."""
    form, blocking = _settled(operands, form)
    bias = sizes.log()[:, :, None, :]
    operands = replace(operands, sinks=None)
    if blocking or not _is_all(operands, form):
        program = Program.of(operands).then(*blocking, Operation("add", lambda: bias))
        return Weights.of(program)
    return _softmax(operands, form, Added(bias))


def after(operands: Operands) -> After:
    """Read what was done to the weights.

    Raises:
        RecordingError: weights were made larger one by one, or negative: they are no shares.
    """
    blocking: list[Operation] = []
    gain: Tensor | float = 1.0
    for operation in operands.after:
        number = constant(operation.other, operation.number)
        if operation.kind in ("fill", "where") and number == 0:
            blocking.append(Operation(operation.kind, operation.operand, -torch.inf))
            continue
        if operation.kind == "multiply" and _hides_the_key(operands, operation):
            blocking.append(Operation("share", operation.operand))
            continue
        number = constant(operation.operand, operation.number)
        if operation.kind == "multiply" and number is not None:
            gain = gain * number
            continue
        factor = narrowed(operation.operand()) if operation.operand is not None else None
        if operation.kind == "multiply" and factor is not None and factor.shape[-1] == 1:
            gain = gain * factor
        elif operation.kind == "multiply" and factor is not None and _are_shares(factor):
            blocking.append(Operation("share", operation.operand))
        else:
            raise RecordingError(
                f"after the softmax came {operation.kind!r} with numbers beyond 0 to 1: what "
                f"entered the second product are no weights; ask for q, k, v and output"
            )
    return After(tuple(blocking), gain)


def recomputed(operands: Operands, weights: Weights) -> Float[Tensor, "batch heads queries d_v"]:
    """Return weights · noise · V · gain, with the noise of dropout where it is known."""
    gain = after(operands).gain
    if operands.noise is None:
        return weights @ operands.v * gain
    queries, keys = weights.shape[-2:]
    size = weights.shape[0] * weights.shape[1] * max(1, keys)
    v, noise = operands.v.to(weights.dtype), operands.noise()
    v = v.repeat_interleave(weights.shape[1] // v.shape[1], 1)
    parts = [
        (weights.tile(rows, range(keys)) * part_of(noise, rows, range(keys))) @ v
        for rows in runs(queries, max(1, PAIRS // size))
    ]
    return torch.cat(parts, -2) * gain if parts else weights @ v


def distance(operands: Operands, weights: Weights) -> float:
    """max |recomputed − output| in units of the largest |output|.

    A row that may look at nothing is NaN where a model wrote its softmax out plainly: where the
    weights are empty, too, the two agree.
    """
    ours, theirs = recomputed(operands, weights), operands.output.to(weights.dtype)
    apart = (ours - theirs).abs()
    if not bool(apart.isfinite().all()):
        if not operands.empty_is_zero:
            empty = weights.logsumexp.isneginf()[..., None]
            apart = apart.masked_fill(theirs.isnan() & empty, 0.0)
        apart = apart.masked_fill(ours == theirs, 0.0)  # both infinite
    finite = theirs[theirs.isfinite()]
    scale = float(finite.abs().max()) or 1.0 if finite.numel() else 1.0
    furthest = float(apart.max()) / scale if apart.numel() else 0.0
    return torch.inf if isnan(furthest) else furthest  # NaN beside a number


def _is_all(operands: Operands, form: Form) -> bool:
    """Whether the form gives the program's weights; a sink takes all of a hidden row."""
    return form.plain and (not form.least or operands.sinks is not None)


def _settled(operands: Operands, form: Form) -> tuple[Form, tuple[Operation, ...]]:
    """Return the form to go by, and what is still to be taken from its weights."""
    blocking = after(operands).blocking
    if not blocking or _takes_something(operands, form, blocking):
        return form, blocking
    # What was taken was 0 already, or in a row that a least value hid: now that is 0, too.
    return replace(form, least=False), ()


def _softmax(operands: Operands, form: Form, *more: Part) -> Weights:
    """Return softmax of the scores; `more` is added to them."""
    sinks = None if operands.sinks is None else operands.sinks()
    if not _is_all(operands, form):
        program = Program.of(operands)
        if sinks is not None:
            sinks = sinks.to(program.dtype) - program.shift[..., None]
        return Weights.of(program, sinks)
    q, k = operands.q, operands.k
    if form.factor is not None:  # in half precision it would round the queries once more
        wide = torch.promote_types(q.dtype, torch.float32)
        q = q.to(wide) * form.factor.to(wide)
    parts = (*(() if form.mask is None else form.mask.parts), *more)
    mask = Mask(parts) if parts else None
    return Weights(q, k.to(q), mask=mask, scale=form.scale, softcap=form.softcap, sinks=sinks)


def _shares(operands: Operands, form: Form, blocking: tuple[Operation, ...]) -> Weights:
    """P ∘ A with A from 0 to 1: what A takes away goes to a sink, z_i = ln(e^lse − e^lse′)."""
    program = Program.of(operands)
    sinks = None if operands.sinks is None else operands.sinks()
    if sinks is not None:
        sinks = sinks.to(program.dtype) - program.shift[..., None]
    whole = Weights.of(program, sinks).logsumexp
    left = program.then(*blocking)
    share = (Weights.of(left).logsumexp - whole).exp().clamp(max=1.0)
    taken = (torch.log1p(-share) + whole).masked_fill(whole.isneginf(), -torch.inf)
    return Weights.of(left, taken[..., None])


def _takes_something(operands: Operands, form: Form, blocking: tuple[Operation, ...]) -> bool:
    """Whether a weight above 0 was taken away, or one of a hidden row was left."""
    if form.mask is None or not form.plain or any(o.kind == "share" for o in blocking):
        return True
    queries, keys = operands.q.shape[-2], operands.k.shape[-2]
    device = operands.q.device
    taking = [one.operand().shape[:2] for one in blocking if one.operand is not None]
    for rows in runs_under((*form.mask.leading_axes, *taking), queries, keys):
        columns = range(keys)
        tile = form.mask.tile(rows, columns, queries=queries, keys=keys, device=device)
        if isinstance(tile, bool):
            tile = torch.tensor(tile, device=device).expand(1, 1, len(rows), keys)
        seen = open_(tile)
        taken = torch.zeros((), dtype=torch.bool, device=device)
        for operation in blocking:
            assert operation.operand is not None
            part = part_of(operation.operand(), rows, columns).bool()
            taken = taken | (part if operation.kind == "fill" else ~part)
        empty = ~seen.any(-1, keepdim=True)
        if bool((taken & seen).any()) or bool((~taken & empty).any()):
            return True
    return False


def _are_shares(factor: Tensor) -> bool:
    return all(bool(((block >= 0) & (block <= 1)).all()) for _, block in blocks_of(factor))


def _hides_the_key(operands: Operands, operation: Operation) -> bool:
    """Whether a factor hides the only key that there is: no gain of rows, nor of a whole head."""
    if operation.operand is None or operands.k.shape[-2] != 1:
        return False
    factor = operation.operand()
    return factor.shape[1] == 1 and bool(((factor == 0) | (factor == 1)).all())
