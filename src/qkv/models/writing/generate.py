"""Text, token by token: the best one each time, one that is drawn, or the best of several beams."""

import math
import random
from collections.abc import Iterator, Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from qkv.errors import ArgumentError
from qkv.models.language import LanguageModel
from qkv.models.text.tokenizer import Tokenizer
from qkv.models.writing.beams import search
from qkv.models.writing.options import Sampling
from qkv.models.writing.prompts import (
    Prompt,
    all_forbidden,
    checked,
    exact,
    found_tokenizer,
    limits,
    no_numbers,
    read,
    room,
)
from qkv.models.writing.restrictions import Restrictions
from qkv.models.writing.sampling import best, draw
from qkv.models.writing.streaming import Text, ending, spell
from qkv.models.writing.written import Reason, Written
from qkv.nn.cache import KeyValueCache


def write(
    model: LanguageModel,
    prompts: Sequence[Prompt],
    sampling: Sampling | None = None,
    cache: KeyValueCache | None = None,
) -> list[Written]:
    """Write a text after each prompt.

    Each row ends by itself: with a token that ends texts, before a stop text, or when it is too
    long, which is also when the model has no position left for what would have to be read. What a
    row writes depends on its prompt and its place in the batch, not on the other rows (up to
    rounding, where two tokens fit equally well).

    Args:
        model: writes.
        prompts: the tokens of one or more texts, of any lengths; an empty one stands for what
            texts of this model begin with.
        sampling: how a token is chosen, and when to end; greedy by default.
        cache: what to write from, such as a memory of what an encoder read; it is used up.

    Returns:
        What was written, without the prompts.

    Raises:
        ArgumentError: prompts or a cache that do not fit the model.
        ModelError: stop texts, but the model has no tokenizer; or logits that are no numbers.
    """
    sampling = Sampling() if sampling is None else sampling
    if sampling.beams > 1:
        return search(model, prompts, sampling, cache)
    writer = Writer(model, prompts, sampling, cache, live=bool(sampling.stop))
    while writer.step():
        pass
    tokenizer, ends = found_tokenizer(model), model.rules.ends
    return [row.written(tokenizer, ends) for row in writer.rows]


def stream(
    model: LanguageModel,
    prompt: str | Prompt,
    sampling: Sampling | None = None,
    cache: KeyValueCache | None = None,
) -> Iterator[str]:
    """Write after one prompt, and give out the text as it grows.

    A piece never ends within a character, and never holds the beginning of a stop text; all of
    them joined are the text that `write` returns.

    Raises:
        ArgumentError, ModelError: as `write`; or a search of several beams, whose text is known
            only at its end.
    """
    sampling = Sampling() if sampling is None else sampling
    if sampling.beams > 1:
        raise ArgumentError(
            f"beams is {sampling.beams}, but the text of a beam search is known only at its end; "
            f"say beams=1, or generate the whole text"
        )
    ids = model.tokenizer(prompt).ids if isinstance(prompt, str) else prompt
    writer = Writer(model, [ids], sampling, cache, live=True)
    return _pieces(writer)


def _pieces(writer: "Writer") -> Iterator[str]:
    (row,) = writer.rows
    given, more = 0, True
    while more:
        more = writer.step()
        piece = "" if row.text is None else row.text.given[given:]
        given += len(piece)
        if piece:
            yield piece


class Row:
    """One text that is being written.

    Args:
        prompt: stands before it.
        limit: tokens that are written at most.
        seed: of numbers of its own.
        text: its text, where that is wanted while it grows.
    """

    def __init__(self, prompt: Prompt, limit: int, seed: str, text: Text | None) -> None:
        """Nothing is written yet."""
        self.prompt, self.limit, self.text = prompt, limit, text
        self.random = random.Random(seed)
        self.ids: list[int] = []
        self.score = 0.0
        self.reason: Reason | None = None

    def add(self, token: int, chance: float, ends: frozenset[int]) -> None:
        """Write a token, whose log-probability is `chance`; note where the text ends."""
        if math.isnan(chance):
            raise no_numbers(len(self.prompt) + len(self.ids))
        self.ids.append(token)
        self.score += chance
        self.reason = ending(token, self.text, ends, len(self.ids) >= self.limit)

    def written(self, tokenizer: Tokenizer | None, ends: frozenset[int]) -> Written:
        """Return what has been written."""
        assert self.reason is not None
        text = None if self.text is None else self.text.given
        if text is None and tokenizer is not None:
            text = spell(tokenizer, self.prompt, self.ids, ends)
        return Written(tuple(self.ids), self.reason, self.score / len(self.ids), text)


class Writer:
    """Writes one token a step on every row of a batch that has not ended.

    Args:
        model, prompts, sampling, cache: as `write` takes them.
        live: whether the text is wanted while it grows.

    Attributes:
        rows: the texts.
    """

    def __init__(
        self,
        model: LanguageModel,
        prompts: Sequence[Prompt],
        sampling: Sampling,
        cache: KeyValueCache | None,
        *,
        live: bool,
    ) -> None:
        """Check everything; nothing is read yet."""
        self._model, self._sampling = model, sampling
        prompts = checked(model, prompts, cache)
        tokenizer, most = model.tokenizer if live else None, limits(model, prompts, sampling)
        self.rows = [
            Row(
                prompt, most[i], f"{sampling.seed} {i}",
                None if tokenizer is None else Text(tokenizer, prompt, sampling.stop),
            )
            for i, prompt in enumerate(prompts)
        ]  # fmt: skip
        self._live, self._written = list(self.rows), 0
        self._tokens: Tensor | None = None
        self._cache = room(model, prompts, most) if cache is None else cache
        penalty = sampling.repetition_penalty
        self._restrictions = Restrictions(model.rules, penalty, prompts, most)

    @torch.inference_mode()
    def step(self) -> bool:
        """Write a token on each row that goes on; return whether any does after that."""
        logits = exact(self._next())
        allowed = self._restrictions(logits, self._written)
        tokens = self._choose(allowed)
        if bool((allowed.gather(-1, tokens[:, None]) == -torch.inf).any()):
            raise all_forbidden()
        chances = logits.gather(-1, tokens[:, None])[:, 0] - logits.logsumexp(-1)
        self._written += 1
        both = zip(self._live, tokens.tolist(), chances.tolist(), strict=True)
        for row, token, chance in both:
            row.add(token, chance, self._model.rules.ends)
        return self._go_on(tokens)

    def _next(self) -> Float[Tensor, "rows vocabulary"]:
        """Return the logits of what may follow each row."""
        if self._tokens is not None:
            return self._model.next(self._tokens[:, None], self._cache)
        prompts = [row.prompt for row in self.rows]
        return read(self._model, prompts, self._cache, self._sampling.chunk)

    def _choose(self, logits: Float[Tensor, "rows vocabulary"]) -> Int[Tensor, "rows"]:
        if self._sampling.temperature == 0:
            return best(logits)
        return draw(logits, self._sampling, [row.random.random() for row in self._live])

    def _go_on(self, tokens: Int[Tensor, "rows"]) -> bool:
        """Leave out the rows that have ended; they would only take time."""
        places = [i for i, row in enumerate(self._live) if row.reason is None]
        if not places:
            return False
        if len(places) < len(self._live):
            self._live = [self._live[i] for i in places]
            which = torch.tensor(places, device=tokens.device)
            tokens = tokens[which]
            self._cache.reorder(which)
            self._restrictions.keep(places)
        self._restrictions.wrote(tokens)
        self._tokens = tokens
        return True
