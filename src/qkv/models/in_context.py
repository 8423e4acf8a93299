"""A word's embedding where it stands: the same word is another row in another text."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from qkv.errors import ArgumentError
from qkv.models.bert import Bert


@dataclass(frozen=True)
class Place:
    """Where a word stands: the number of the text, and from which character to which."""

    text: int
    start: int
    stop: int


@dataclass(frozen=True, eq=False)
class InContext:
    """A word in several places.

    Attributes:
        places: where it was found.
        table: its row in the table of words, the same wherever it stands.
        layers: its row in each place, as each layer gives it.
    """

    places: tuple[Place, ...]
    table: Float[Tensor, "places n_embed"]
    layers: Float[Tensor, "layers places n_embed"]


@torch.no_grad()
def in_context(model: Bert, texts: Sequence[str], word: str) -> InContext:
    """Return the embeddings of a word in every place of some texts where it stands.

    A word that is cut into several tokens is their mean. The table knows the word alone; what
    the layers add to it comes from the position and, through attention, from the other words.

    Args:
        model: reads the texts.
        texts: each holds the word once or more.
        word: as a whole word, or several; upper and lower case are the same.

    Raises:
        ArgumentError: the word is not in a text, or a text is too long for the model.
    """
    places = find(texts, word)
    table, layers = [], []
    for number, text in enumerate(texts):
        found = model.tokenizer(text)
        ids = torch.tensor([found.ids], device=model.embedding.token.weight.device)
        states = torch.cat(model.hidden_states(ids)[1:])
        spans = [(*span, i) for i, span in enumerate(found.offsets) if not found.special[i]]
        for place in (p for p in places if p.text == number):
            tokens = [i for a, b, i in spans if a < place.stop and b > place.start]
            table.append(model.embedding.token.weight[ids[0, tokens]].mean(dim=0))
            layers.append(states[:, tokens].mean(dim=1))
    return InContext(tuple(places), torch.stack(table), torch.stack(layers, dim=1))


def find(texts: Sequence[str], word: str) -> list[Place]:
    """Return every place of a word in some texts; ArgumentError where one is without it."""
    return [place for i, text in enumerate(texts) for place in _places(i, text, word)]


def _places(number: int, text: str, word: str) -> Iterator[Place]:
    found = list(re.finditer(rf"(?<!\w){re.escape(word)}(?!\w)", text, re.IGNORECASE))
    if not word.strip() or not found:
        short = text if len(text) <= 60 else f"{text[:60]}…"
        raise ArgumentError(
            f"word is {word!r}, which is not in text {number + 1} ({short!r}); wanted a word that "
            f"is in every text"
        )
    yield from (Place(number, *match.span()) for match in found)
