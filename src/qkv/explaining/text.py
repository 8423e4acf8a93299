"""A sentence without a model: two values a word, drawn from a seed, and positions added."""

import re

import torch
from torch import Tensor

from qkv.core.calculation import Calculation
from qkv.core.operations import Operation
from qkv.core.positions import sinusoidal
from qkv.core.working import Working
from qkv.errors import ArgumentError
from qkv.nn.attending import as_mask
from qkv.nn.attention import MultiHeadAttention, SelfAttention
from qkv.nn.explain import explain_written

N_EMBED = 2

ARTICLE = ("draw", "a", "map")
"""The three words whose encodings are known."""

MOST = 4_000_000
"""Weights at most, over all heads: each of a dozen steps is kept, recomputed and redone by hand."""

ENCODINGS = ((1.16, 0.23), (0.57, 1.36), (4.41, -2.16))


def words(text: str) -> list[str]:
    """Split into words and punctuation marks.

    Raises:
        ArgumentError: there is no word in it.
    """
    found = re.findall(r"\w+(?:['’-]\w+)*|[^\w\s]", text)
    if not found:
        raise ArgumentError(f"text is {text[:20]!r}; wanted at least one word")
    return found


def explain_words(
    tokens: list[str], *, mask: bool = False, num_heads: int = 1, seed: int = 42
) -> Calculation:
    """Write down self-attention over words, with weights and encodings drawn from the seed.

    The three words "draw a map" have the encodings that are known for them; other words get
    two values each (the same word always the same) plus their position.

    Raises:
        ArgumentError: more words than can be shown, or no head.
    """
    check_size(len(tokens), len(tokens), num_heads)
    layer = drawn_layer(num_heads, seed)
    kind = "Masked self-attention" if mask else "Self-attention"
    heads = f", {num_heads} heads" if num_heads > 1 else ""
    w = Working(f"{kind} of {len(tokens)} word{'s' if len(tokens) > 1 else ''}{heads}")
    x = encode(w, tokens, seed, prefix=layer.recipe().inputs)
    return explain_written(w, layer, x, x, as_mask(mask))


def drawn_layer(num_heads: int, seed: int) -> SelfAttention | MultiHeadAttention:
    """Return a layer for two values a word whose weights come from the seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if num_heads == 1:
            return SelfAttention(N_EMBED)
        return MultiHeadAttention(N_EMBED, num_heads=num_heads)


def encode(w: Working, tokens: list[str], seed: int, *, prefix: str = "", name: str = "") -> str:
    """Write down the encodings of words; `name` tells several sentences apart ("query ")."""
    if tuple(tokens) == ARTICLE:
        return w.given(
            f"{prefix}{name}encodings", torch.tensor(ENCODINGS), symbol="X", rows=tokens,
            says="two values a word",
        )  # fmt: skip
    embeddings = w.given(
        f"{prefix}{name}embeddings", embed(tokens, seed), symbol="E", rows=tokens,
        says=f"two values a word, drawn from the seed {seed}; the same word always the same",
    )  # fmt: skip
    positions = w.given(
        f"{prefix}{name}positions", sinusoidal(len(tokens), N_EMBED), symbol="PE",
        rows=[f"position {i}" for i in range(len(tokens))],
        says="sine and cosine of the position; without them word order would be lost",
    )  # fmt: skip
    return w.step(
        Operation.ADD, f"{prefix}{name}encodings", embeddings, positions, symbol="X",
        says="word and position in one",
    )  # fmt: skip


def embed(tokens: list[str], seed: int) -> Tensor:
    """Draw two values for every different word."""
    different = list(dict.fromkeys(tokens))
    table = torch.randn(len(different), N_EMBED, generator=torch.Generator().manual_seed(seed))
    return table[[different.index(token) for token in tokens]]


def check_size(queries: int, keys: int, heads: int, *, cut: bool = True) -> None:
    """Raise ArgumentError where a calculation would hold too much for any reader or machine.

    `cut` says whether the command can choose tokens.
    """
    if queries * keys * heads > MOST:
        each = f" in each of {heads} heads" if heads > 1 else ""
        advice = f" (in the command: --tokens 0:{min(queries, 100)})" if cut else ""
        raise ArgumentError(
            f"there would be {queries} × {keys} weights{each}; a calculation takes {MOST:,} at "
            f"most: choose fewer tokens{advice}"
        )


def window(count: int, tokens: str | None) -> range:
    """Return which of a text's tokens "A:B" means: A up to before B, either may be left out.

    Raises:
        ArgumentError: it is not of that form, or takes none.
    """
    if tokens is None:
        return range(count)
    match = re.fullmatch(r"\s*(\d{0,9})\s*:\s*(\d{0,9})\s*", tokens)
    if match is None:
        raise ArgumentError(f"tokens is {tokens[:40]!r}; wanted A:B, such as 10:40")
    first, last = int(match[1] or 0), int(match[2] or count)
    taken = range(count)[first:last]
    if not taken:
        raise ArgumentError(f"tokens is {tokens!r}, but the text has tokens 0:{count}")
    return taken


def cut(names: list[str], tokens: str | None) -> list[str]:
    """Return the tokens that "A:B" takes."""
    return [names[i] for i in window(len(names), tokens)]
