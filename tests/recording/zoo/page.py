"""`docs/watched.md`: the table as it came out."""

from collections.abc import Iterator
from pathlib import Path

from tests.recording.zoo.architectures import Architecture, NotPlain
from tests.recording.zoo.examining import examine, examine_not_plain
from tests.recording.zoo.table import ARCHITECTURES, NOT_PLAIN

PAGE = Path(__file__).parents[3] / "docs" / "watched.md"

_OPENING = """# What was watched

`tests/recording/test_zoo.py` builds each of these models from its Hugging Face configuration,
small, with random weights that make its attention peaked, runs it on each of its paths with and
without `qkv.watch`, and compares. This page is written by the same code
(`python -m tests.recording.zoo`), and a test fails when something else comes out. Nothing about any
of them stands in the recorder.

For every line holds, in float32 on the CPU, unless its last column says otherwise:

- The outputs with and without the watch have the same bits: in evaluation, in `inference_mode`,
  and in training with the same seed, gradients too; padded rows included.
- The recovered weights are within 1e-5 of those that the model itself returns in eager mode
  (`output_attentions=True`), on both of its paths. Rows that may look at nothing are exempt: eager
  mode makes them uniform, fused kernels make them zero.
- The output computed again from what was recorded is within 16 eps of the output's scale.
- Heads, widths, scale, soft cap and mask are those of the configuration.

"written" counts the attentions that were written out as products and a softmax, "fused" those that
were one operation. The mask is given for each different attention of the model: *bias* is added,
*causal*, *window* and *padding* block; "–" is open.

| architecture | class | heads of width | eager | sdpa | scale | mask | |
| --- | --- | --- | --- | --- | --- | --- | --- |
"""

_NOT_PLAIN = """
## Not plain attention

What mixes tokens in another way is not invented. Where nothing was recorded, the recording's error
names what came nearest.

| architecture | class | recorded | what it does |
| --- | --- | --- | --- |
"""

_BESIDES = """
## Besides

- `nn.MultiheadAttention` in nineteen options (masks of every kind, other widths, tokens first,
  learned keys, zero keys, dropout, without a batch, half and double precision), with and without
  `need_weights`, in evaluation, `inference_mode` and training; `nn.TransformerEncoder` on its
  native, nested and plain paths, and `nn.Transformer`.
- x-transformers in seventeen settings, fused and written out; timm's ViT, SigLIP, BEiT, EVA, Swin,
  Swin v2, PVT v2, Twins and LeViT, fused and written out.
- One attention in thirteen spellings (einsum, `baddbmm`, heads by `view` or `chunk`, masks in
  place, by index or as −1e9, the softmax in another precision or by hand), and the article's code.
"""


def page() -> str:
    """Return the page, from what every architecture gives now."""
    return "".join(
        [
            _OPENING,
            *(f"| {' | '.join(_cells(entry))} |\n" for entry in ARCHITECTURES),
            _NOT_PLAIN,
            *(f"| {' | '.join(_named(entry))} |\n" for entry in NOT_PLAIN),
            _BESIDES,
        ]
    )


def _cells(entry: Architecture) -> Iterator[str]:
    paths = {examined.implementation: examined.seen for examined in examine(entry)}
    seen = paths["eager"]
    yield entry.name
    yield f"`{entry.model}`"
    yield ", ".join(
        _once(
            f"{one.heads} × {one.width}"
            if one.heads == one.kv_heads
            else f"{one.heads} over {one.kv_heads} × {one.width}"
            for one in seen
        )
    )
    yield _counted([one.how for one in seen])
    yield _counted([one.how for one in paths["sdpa"]]) if "sdpa" in paths else ""
    yield ", ".join(_once(_scale(one.scale, one.width, one.softcap) for one in seen))
    yield "; ".join(_once(one.mask or "–" for one in seen))
    yield entry.note


def _scale(scale: float | str, width: int, softcap: float | None) -> str:
    if isinstance(scale, str):
        return scale
    plain = abs(scale - width**-0.5) < 1e-6
    said = "1/√d" if plain else f"{scale:.4g}"
    return said if softcap is None else f"{said}, capped at {softcap:g}"


def _counted(how: list[str]) -> str:
    written = how.count("written out")
    fused = len(how) - written
    return ", ".join(f"{n} {kind}" for n, kind in ((written, "written"), (fused, "fused")) if n)


def _once(words: Iterator[str]) -> list[str]:
    return list(dict.fromkeys(words))


def _named(entry: NotPlain) -> Iterator[str]:
    examined, _ = examine_not_plain(entry)
    yield entry.name
    yield f"`{entry.model}`"
    yield str(len(examined.seen) or "nothing")
    yield entry.note
