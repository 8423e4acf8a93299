"""The calculations of the article, each a Calculation that can be shown and proved."""

from collections.abc import Callable, Mapping

import torch

from qkv.core import steps
from qkv.core.calculation import Calculation
from qkv.core.fused import attention
from qkv.core.operations import Operation
from qkv.core.positions import sinusoidal
from qkv.core.working import Working
from qkv.errors import ArgumentError
from qkv.explaining.text import ARTICLE, embed, encode, explain_words
from qkv.nn.attention import Attention
from qkv.nn.explain import explain_written


def explain_example(name: str, *, seed: int = 42) -> Calculation:
    """Return one of the article's calculations.

    Raises:
        ArgumentError: there is no example of that name; lists those there are.
    """
    if name not in EXAMPLES:
        raise ArgumentError(f"example is {name!r}; there are: {', '.join(EXAMPLES)}")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return EXAMPLES[name](seed)


def _desserts(seed: int) -> Calculation:
    """Softmax of three marks, and why nothing simpler will do."""
    w = Working("Three judges, three desserts: from marks to shares")
    marks = w.given(
        "marks", torch.tensor([[2.0, 1.0, -1.0]]), symbol="X", rows=["mark"],
        columns=["first", "second", "third"], says="what three desserts were given",
    )  # fmt: skip
    total = w.step(Operation.ROW_SUM, "by the sum/sum of marks", marks, symbol="Σ")
    w.step(
        Operation.DIVIDE, "by the sum/shares", marks, total, symbol="X / Σ",
        says="100 %, 50 % and -50 %: a share below nothing means nothing, and a sum of 0 divides "
        "nothing at all",
    )  # fmt: skip
    zero = w.constant("softmax/zero", 0.0, symbol="0", like=marks)
    powers = w.step(
        Operation.EXPONENTIAL, "softmax/exponentials", marks, zero, symbol="U",
        says="e^x is always positive, and turns a gap of 1 into a factor of 2.72",
    )  # fmt: skip
    sums = w.step(Operation.ROW_SUM, "softmax/sums", powers, symbol="z", says="together 10.475")
    w.step(
        Operation.DIVIDE, "softmax/weights", powers, sums, symbol="P",
        says="70.5 %, 26.0 % and 3.5 %: every share positive, together 1",
    )  # fmt: skip
    thousand = w.constant("hard max/sharpness", 1000.0, symbol="1000", like=marks)
    sharp = w.step(
        Operation.MULTIPLY, "hard max/sharpened", marks, thousand, symbol="1000 X",
        says="gaps a thousand times as large",
    )  # fmt: skip
    steps.softmax(w, sharp, section="hard max/")
    return w.finish()


GUESTS = {"Mercer": 537, "Berger": 118, "Brettner": 412, "Miller": 204}


def _hotel(seed: int) -> Calculation:
    """A clerk types Merser: attention over the names of the guests."""
    letters = sorted({letter for name in ("Merser", *GUESTS) for letter in name.lower()})
    w = Working("A hotel clerk types Merser: attention over the guests' names")
    counts = "how often each letter stands in the name"
    query = w.given(
        "query", _letters(["Merser"], letters), symbol="Q", rows=["Merser"], columns=letters,
        says=counts,
    )  # fmt: skip
    keys = w.given(
        "keys", _letters(list(GUESTS), letters), symbol="K", rows=list(GUESTS), columns=letters,
        says=counts,
    )  # fmt: skip
    rooms = w.given(
        "values", torch.tensor([[float(room)] for room in GUESTS.values()]), symbol="V",
        rows=list(GUESTS), columns=["room"], says="what the clerk wants to know",
    )  # fmt: skip
    _cosine(w, query, keys)
    steps.attend(w, query, keys, rooms, section="attention/")
    steps.attend(w, query, keys, rooms, scale=10.0, section="sharper attention/")
    q, k, v = (w.tensor(name) for name in (query, keys, rooms))
    return w.finish(
        {
            "attention/output": attention(q, k, v),
            "sharper attention/output": attention(q, k, v, scale=10.0),
        }
    )


def _letters(names: list[str], letters: list[str]) -> torch.Tensor:
    return torch.tensor([[float(name.lower().count(x)) for x in letters] for name in names])


def _cosine(w: Working, query: str, keys: str) -> None:
    """Q Kᵀ / (|Q| |K|): the dot product without the lengths."""
    at = "cosine similarity/"
    dot = w.step(
        Operation.PRODUCT_TRANSPOSED, f"{at}dot products", query, keys, symbol="Q Kᵀ",
        says="letters in common; a long name has more of them to offer",
    )  # fmt: skip
    lengths = []
    for name, symbol in ((query, "|Q|"), (keys, "|K|")):
        squares = w.step(Operation.SQUARE, f"{at}squares of {name}", name, symbol=f"{symbol[1]}²")
        total = w.step(Operation.ROW_SUM, f"{at}sums of {name}", squares, symbol=f"{symbol}²")
        lengths.append(
            w.step(Operation.SQUARE_ROOT, f"{at}lengths of {name}", total, symbol=symbol)
        )
    by_query = w.step(Operation.DIVIDE, f"{at}by length of query", dot, lengths[0], symbol="D")
    across = w.step(Operation.TRANSPOSE, f"{at}lengths of keys across", lengths[1], symbol="|K|ᵀ")
    w.step(
        Operation.DIVIDE, f"{at}cosines", by_query, across, symbol="cos",
        says="1 would be the same letters in the same proportions, however long the name",
    )  # fmt: skip


def _cross(seed: int) -> Calculation:
    """Spanish words as they are written look at the English sentence."""
    english = ["the", "sky", "is", "blue"]
    spanish = ["<start>", "el", "cielo", "es", "azul"]
    layer = Attention()
    w = Working("Cross-attention: the Spanish sentence looks at the English one")
    y = encode(w, english, seed, name="key ")
    x = encode(w, spanish, seed + 1, name="query ")
    return explain_written(w, layer, x, y, None)


def _lookup(seed: int) -> Calculation:
    """A table gives a word the same numbers wherever it stands; attention does not."""
    tokens = ["dogs", "chase", "cats", "and", "cats", "chase", "dogs"]
    different = list(dict.fromkeys(tokens))
    w = Working("Looking words up one by one, and attending")
    table = w.given(
        "looking up/table", embed(different, seed), symbol="T", rows=different,
        says="two values a word, as in a dictionary",
    )  # fmt: skip
    found = w.step(
        Operation.ROWS, "looking up/found", table, symbol="E", rows=tokens,
        selection=[different.index(token) for token in tokens],
        says="the same word gives the same row wherever it stands: order is lost",
    )  # fmt: skip
    layer = Attention()
    positions = w.given(
        "attending/positions", sinusoidal(len(tokens), 2), symbol="PE", rows=tokens,
        says="sine and cosine of the position",
    )  # fmt: skip
    x = w.step(
        Operation.ADD, "attending/encodings", found, positions, symbol="X",
        says="word and position in one",
    )  # fmt: skip
    head = layer.recipe().heads[0]
    names = [
        steps.project(w, x, getattr(head, weight), name, symbol, weight, "attending/")
        for name, symbol, weight in (
            ("queries", "Q", "WQ"), ("keys", "K", "WK"), ("values", "V", "WV"),
        )
    ]  # fmt: skip
    output = steps.attend(w, *names, section="attending/")
    encodings = w.tensor(x)
    return w.finish({output: layer(encodings, encodings, encodings)})


EXAMPLES: Mapping[str, Callable[[int], Calculation]] = {
    "desserts": _desserts,
    "hotel": _hotel,
    "self": lambda seed: explain_words(list(ARTICLE), seed=seed),
    "masked": lambda seed: explain_words(list(ARTICLE), mask=True, seed=seed),
    "cross": _cross,
    "two-heads": lambda seed: explain_words(list(ARTICLE), num_heads=2, seed=seed),
    "lookup": _lookup,
}
