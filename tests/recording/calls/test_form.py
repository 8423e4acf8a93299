"""Programs of scores and the form they are read as; weights are compared with float64."""

from dataclasses import replace
from math import inf

import pytest
import torch

from qkv.core.mask_parts import Band, Pairs
from qkv.recording.calls.form import form_of
from qkv.recording.calls.masks import Added, Forbidden
from qkv.recording.calls.operands import Operands, Operation
from tests.recording.programs import (
    BATCH,
    HEADS,
    KEYS,
    LEAST,
    QUERIES,
    Largest,
    Program,
    Scores,
    added,
    call,
    call_of,
    random_qkv,
    real,
    softmax_of,
    triangle,
)
from tests.reference import agree

# Everything runs in float32: eps · the largest logit (about 40 here) · a few.
NEAR = 2e-5


def gpt2(s: Scores) -> None:
    s.multiply(1 / 8)
    s.where(triangle(), torch.full((), LEAST).reshape(1, 1, 1, 1))
    s.add(added(real([KEYS, KEYS - 3]), LEAST))


def bert_of_2019(s: Scores) -> None:
    s.multiply(0.4)
    s.add(added(real([KEYS, KEYS - 3]), -10000.0))


def t5(s: Scores) -> None:
    s.add(torch.randn(1, HEADS, QUERIES, KEYS, generator=torch.manual_seed(1)) * 3)
    s.add(added(real([KEYS - 1, KEYS - 3]), LEAST).expand(BATCH, 1, QUERIES, KEYS))


def gemma2(s: Scores) -> None:
    s.multiply(0.25 / 5)
    s.tanh()
    s.multiply(5.0)
    s.add(added(triangle(), LEAST))


def bloom(s: Scores) -> None:
    slopes = torch.tensor([2.0**-i for i in range(HEADS)])[None, :, None, None]
    s.multiply(0.3)
    s.add((slopes * torch.arange(KEYS)).expand(BATCH, -1, -1, -1))
    s.fill(~triangle(), LEAST)


def xlnet(s: Scores) -> None:
    """Two terms of positions are added first, everything is scaled then."""
    for seed in (2, 3):
        s.add(torch.randn(BATCH, HEADS, QUERIES, KEYS, generator=torch.manual_seed(seed)))
    s.multiply(0.3)
    s.add(added(real([KEYS - 2, KEYS]), 1.0), factor=-1e30)


def falcon(s: Scores) -> None:
    """The mask is a part of the tensor of biases."""
    s.multiply(0.3)
    bias = torch.randn(BATCH, HEADS, QUERIES, KEYS, generator=torch.manual_seed(7))
    s.add(bias.masked_fill(~triangle(), LEAST))


def deberta(s: Scores) -> None:
    terms = [torch.randn(BATCH, HEADS, QUERIES, KEYS, generator=torch.manual_seed(4))] * 2
    s.multiply(0.2)
    for term in terms:
        s.add(term, factor=0.5)


def swin2(s: Scores) -> None:
    s.multiply(torch.linspace(0.5, 3, HEADS)[None, :, None, None])
    s.add(torch.randn(1, HEADS, QUERIES, KEYS, generator=torch.manual_seed(5)))


def opt(s: Scores) -> None:
    s.add(added(triangle(), LEAST))
    s.maximum(torch.full((1, 1, 1, 1), LEAST))


def clamped(s: Scores) -> None:
    s.multiply(0.3)
    s.clamp(-50000.0, 50000.0)
    s.fill(~triangle(), -inf)
    s.clamp(LEAST, None)


def each_query_scaled(s: Scores) -> None:
    s.multiply(torch.linspace(0.1, 2, QUERIES)[None, None, :, None])
    s.negate()


def gpt1(s: Scores) -> None:
    """What is hidden is multiplied by 0 before −10000 is added."""
    visible = triangle().float()
    s.multiply(0.3)
    s.multiply(visible)
    s.add(1 - visible, factor=-1e4)


def switched_off(s: Scores) -> None:
    """What is multiplied by 0 is still looked at."""
    s.multiply(0.3)
    s.multiply(triangle().float())


def bent_twice(s: Scores) -> None:
    s.multiply(0.1)
    s.tanh()
    s.tanh()


def biting(s: Scores) -> None:
    s.clamp(-1.0, 1.5)


def curbed(s: Scores) -> None:
    s.clamp(None, 1.5)


def raised(s: Scores) -> None:
    s.maximum(torch.full((1, 1, 1, 1), -1.0))


def filled_with_little(s: Scores) -> None:
    s.multiply(0.3)
    s.fill(~triangle(), -2.0)


def each_pair_scaled(s: Scores) -> None:
    s.multiply(torch.rand(BATCH, HEADS, QUERIES, KEYS, generator=torch.manual_seed(6)))


PLAIN = [
    gpt2, bert_of_2019, t5, gemma2, bloom, xlnet, deberta, swin2, opt, clamped, each_query_scaled,
    gpt1,
]  # fmt: skip
OTHERS = [switched_off, bent_twice, biting, curbed, raised, filled_with_little, each_pair_scaled]


@pytest.mark.parametrize("program", [*PLAIN, *OTHERS], ids=lambda p: p.__name__)
def test_weights_are_those_of_the_program_in_float64(program: Program) -> None:
    q, k, v = random_qkv(peak=3)
    seen = call_of(program, (q, k, v))
    agree(seen.weights.dense(), softmax_of(program, q, k, torch.float64), NEAR)
    assert seen.error_eps < 16


@pytest.mark.parametrize("program", PLAIN, ids=lambda p: p.__name__)
def test_what_models_do_is_read_as_one_form(program: Program) -> None:
    form = call_of(program, random_qkv()).form
    assert form.plain
    assert not form.least


@pytest.mark.parametrize("program", OTHERS, ids=lambda p: p.__name__)
def test_what_has_no_such_form_says_so(program: Program) -> None:
    assert not call_of(program, random_qkv()).form.plain


def parts_of(program: Program) -> list[type]:
    mask = call_of(program, random_qkv()).form.mask
    return [] if mask is None else [type(part) for part in mask.parts]


@pytest.mark.parametrize(
    ("program", "parts"),
    [
        (gpt2, [Band, Pairs]),
        (bert_of_2019, [Pairs]),
        (t5, [Added, Pairs]),
        (gemma2, [Band]),
        (bloom, [Band, Added]),
        (deberta, [Added, Added]),
        (falcon, [Band, Added]),
        (each_query_scaled, []),
    ],
    ids=lambda p: getattr(p, "__name__", ""),
)
def test_masks_are_recognised_and_biases_kept_by_reference(
    program: Program, parts: list[type]
) -> None:
    assert parts_of(program) == parts


def test_scale_and_soft_cap_come_out_as_the_model_has_them() -> None:
    form = call_of(gemma2, random_qkv()).form
    assert form.scale == pytest.approx(0.25)
    assert form.softcap == pytest.approx(5.0)
    assert call_of(xlnet, random_qkv()).form.scale == pytest.approx(0.3)
    assert call_of(t5, random_qkv()).form.scale == 1.0
    per_head = call_of(swin2, random_qkv()).scale
    agree(per_head.flatten(), torch.linspace(0.5, 3, HEADS), 0)


def test_a_bend_of_the_negative_scale_is_a_soft_cap_too() -> None:
    def program(s: Scores) -> None:
        s.multiply(-0.2)
        s.tanh()
        s.multiply(-4.0)

    form = call_of(program, random_qkv()).form
    assert (form.scale, form.softcap) == (pytest.approx(0.8), pytest.approx(4.0))
    q, k, v = random_qkv()
    agree(
        call_of(program, (q, k, v)).weights.dense(), softmax_of(program, q, k, torch.float64), NEAR
    )


def hidden_by(number: float, how: str) -> Program:
    """The first three keys are padding, so the first rows of a triangle have nothing."""
    visible = triangle(KEYS, KEYS) & real([KEYS, KEYS - 3], side="left")

    def program(s: Scores) -> None:
        s.multiply(0.3)
        if how == "add":
            s.add(added(visible, number))
        else:
            s.fill(~visible, number)

    return program


@pytest.mark.parametrize("how", ["add", "fill"])
@pytest.mark.parametrize("number", [LEAST, -1e9, -10000.0])
def test_a_row_hidden_by_a_finite_number_is_what_the_softmax_makes_of_it(
    number: float, how: str
) -> None:
    q, k, v = random_qkv(queries=KEYS)
    program = hidden_by(number, how)
    seen = call_of(program, (q, k, v))
    assert seen.form.least
    # −10000 + x keeps some of x, rounded as the model rounded it: the reference is the model's.
    agree(seen.weights.dense(), softmax_of(program, q, k, torch.float32), NEAR)
    assert float(seen.weights.dense()[1, 0, 0, -1]) > 0.01
    agree(seen.weights @ torch.ones(BATCH, HEADS, KEYS, 1), torch.ones(BATCH, HEADS, KEYS, 1), NEAR)


def test_a_row_hidden_by_infinity_has_no_weights_and_its_nan_is_no_error() -> None:
    seen = call_of(hidden_by(-inf, "fill"), random_qkv(queries=KEYS))
    assert not seen.form.least
    assert seen.output[1, :, :3].isnan().all()
    assert float(seen.weights.dense()[1, :, :3].abs().max()) == 0
    assert seen.error_eps < 16
    safe = call(replace(seen.operands, empty_is_zero=True))
    assert not safe.error < 1  # a softmax that gives 0 there has no NaN to excuse


def test_a_number_that_does_not_hide_is_not_taken_for_a_mask() -> None:
    """Logits of ±12000 beside a fill of −10000: what is filled is seen."""
    q, k, v = random_qkv(peak=4000)

    def program(s: Scores) -> None:
        s.fill(~triangle(), -10000.0)

    seen = call_of(program, (q, k, v))
    assert not seen.form.plain
    # float32 keeps logits of 1e4 to 1e-3: a weight is only so exact (4 eps · max |logit|).
    agree(seen.weights.dense(), softmax_of(program, q, k, torch.float32), 5e-2)


def scaled_far(s: Scores) -> None:
    """Logits beyond the number that is filled in, by a scale."""
    s.multiply(4000.0)
    s.fill(~triangle(), -10000.0)


def lifted_again(s: Scores) -> None:
    """What was filled is lifted above the rest by what is added later."""
    s.fill(~triangle(), -150.0)
    s.add(torch.where(triangle(), -90.0, 90.0))


def shrunk_again(s: Scores) -> None:
    s.fill(~triangle(), -5000.0)
    s.multiply(1e-3)


@pytest.mark.parametrize(
    "program", [scaled_far, lifted_again, shrunk_again], ids=lambda p: p.__name__
)
def test_everything_that_makes_logits_large_counts_before_a_number_hides(program: Program) -> None:
    q, k, v = random_qkv()
    seen = call_of(program, (q, k, v))
    assert not seen.form.plain
    # Logits of 2e4 are kept to 2e-3 in float32.
    agree(seen.weights.dense(), softmax_of(program, q, k, torch.float32), 1e-2)


@pytest.mark.parametrize("hides", [False, True])
def test_a_mask_that_hides_nothing_is_none(hides: bool) -> None:
    everything = torch.ones(BATCH, 1, QUERIES, KEYS).bool()

    def program(s: Scores) -> None:
        s.multiply(0.4)
        s.fill(~everything, LEAST) if hides else s.add(added(everything, LEAST))

    assert call_of(program, random_qkv()).mask is None


def test_added_numbers_that_hide_one_by_one_are_no_biases() -> None:
    visible = torch.rand(BATCH, 1, QUERIES, KEYS) < 0.5
    visible[..., 2] = True

    def program(s: Scores) -> None:
        s.add(added(visible, LEAST))

    blocking = call_of(program, random_qkv()).blocking
    assert (blocking.other, blocking.biased) == (True, False)
    assert str(blocking) == "pairs hidden one by one (for each example)"


def test_an_added_number_that_does_not_hide_stays_a_bias() -> None:
    q, k, v = random_qkv(peak=4000)

    def program(s: Scores) -> None:
        s.add(added(triangle(), -10000.0))

    form = call_of(program, (q, k, v)).form
    assert form.plain
    assert form.mask is not None
    assert [type(part) for part in form.mask.parts] == [Added]


def test_half_precision_hides_by_its_own_least_number() -> None:
    least = torch.finfo(torch.float16).min
    q, k, v = (tensor.half() for tensor in random_qkv())
    mask = added(triangle(), least).half()
    operations = (Operation("multiply", number=0.4), Operation("add", lambda: mask))
    form = form_of(Operands(q, k, v, q[..., :4], operations))
    assert form.plain
    assert form.mask is not None
    assert [type(part) for part in form.mask.parts] == [Band]


def test_pairs_hidden_one_by_one_are_kept_by_reference() -> None:
    hidden = torch.rand(BATCH, 1, QUERIES, KEYS) < 0.4
    hidden[..., 0] = False
    operations = (Operation("multiply", number=0.4), Operation("fill", lambda: hidden, number=-inf))
    q, k, v = random_qkv()
    seen = call(Operands(q, k, v, q[..., :4], operations))
    assert seen.mask is not None
    (part,) = seen.mask.parts
    assert isinstance(part, Forbidden)
    assert part.values.data_ptr() == hidden.data_ptr()

    def program(s: Scores) -> None:
        s.multiply(0.4)
        s.fill(hidden, -inf)

    agree(seen.weights.dense(), softmax_of(program, q, k, torch.float64), NEAR)


@pytest.mark.parametrize(
    ("operation", "offset"),
    [(Operation("causal"), 0), (Operation("causal", number=KEYS - QUERIES), None)],
)
def test_the_triangle_of_a_fused_operation_needs_no_tensor(
    operation: Operation, offset: int | None
) -> None:
    q, k, v = random_qkv()
    seen = call(Operands(q, k, v, q[..., :4], (Operation("multiply", number=0.4), operation)))
    assert seen.mask is not None
    assert seen.mask.parts[0].offset == offset
    at = KEYS - QUERIES if offset is None else offset

    def program(s: Scores) -> None:
        s.multiply(0.4)
        s.fill(~triangle(offset=at), -inf)

    agree(seen.weights.dense(), softmax_of(program, q, k, torch.float64), NEAR)


@pytest.mark.parametrize("shape", ["causal", "one by one", "padding", "biased"])
@pytest.mark.parametrize("dtype", [torch.bool, torch.float32])
def test_reading_a_mask_makes_no_second_one_of_its_size(shape: str, dtype: torch.dtype) -> None:
    n = 1500
    visible = {
        "causal": triangle(n, n),
        "one by one": torch.rand(1, 1, n, n) < 0.9,
        "padding": real([n - 300], n).expand(1, 1, n, n).contiguous(),
        "biased": triangle(n, n),
    }[shape]
    mask = visible if dtype == torch.bool else added(visible, LEAST)
    if shape == "biased" and dtype == torch.float32:
        mask = mask + torch.rand(1, 1, 1, n)
    operation = Operation("add", lambda: mask)
    if dtype == torch.bool:
        operation = Operation("where", lambda: mask, number=LEAST)
    q, k, v = torch.randn(3, 1, HEADS, n, 4)
    operands = Operands(q, k, v, q, (Operation("multiply", number=0.4), operation))
    with Largest(mask) as largest:
        form = form_of(operands)
    assert form.plain
    assert 0 < largest.numbers < n * n / 2
