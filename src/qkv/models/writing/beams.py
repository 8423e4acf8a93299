"""Beam search: several texts are followed at the same time, and the best of them is kept."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from qkv.models.language import LanguageModel
from qkv.models.text.tokenizer import Tokenizer
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
)
from qkv.models.writing.restrictions import Restrictions
from qkv.models.writing.streaming import Text, ending, spell
from qkv.models.writing.written import Reason, Written
from qkv.nn.cache import KeyValueCache


@dataclass(frozen=True, eq=False)
class Beam:
    """A text so far, as its last token and what stands before that.

    Attributes:
        total: log-probability of all its tokens.
        token: the last one.
        before: the beam that it goes on from; None where nothing is written yet.
        place: where that one stood among the beams of its row.
        text: its text, where stop texts ask for it.
    """

    total: float
    token: int = -1
    before: "Beam | None" = field(default=None, repr=False)
    place: int = 0
    text: Text | None = None

    @property
    def ids(self) -> tuple[int, ...]:
        """The tokens that were written."""
        return tuple(self._backwards())[::-1]

    def _backwards(self) -> Iterator[int]:
        beam = self
        while beam.before is not None:
            yield beam.token
            beam = beam.before


@dataclass(frozen=True, eq=False)
class Finished:
    """A text that has ended: its score is its log-probability / tokens^length_penalty."""

    score: float
    beam: Beam
    reason: Reason


class Search:
    """The beams of one prompt.

    Args:
        prompt: stands before them.
        limit: tokens that are written at most.
        sampling: number of beams, length penalty.
        ends: tokens that end texts.
        text: of nothing yet, where stop texts ask for it.
    """

    def __init__(
        self,
        prompt: Prompt,
        limit: int,
        sampling: Sampling,
        ends: frozenset[int],
        text: Text | None,
    ) -> None:
        """One beam, on which nothing is written."""
        self.prompt, self._limit, self._sampling, self._ends = prompt, limit, sampling, ends
        self.beams = [Beam(0.0, text=text)]
        self.finished: list[Finished] = []
        self.done = False

    @property
    def candidates(self) -> int:
        """So many that enough go on, however many of the best end."""
        return self._sampling.beams * max(2, 1 + len(self._ends))

    def grow(self, candidates: Sequence[tuple[float, int, int]], written: int) -> None:
        """Go on with the best candidates.

        Only those among the first `beams` may end; the others stand by for their places. The
        search is over when as many texts have ended as there are beams, and the best that goes
        on is no better for its length than the worst of them.

        Args:
            candidates: log-probability, place of the beam that it goes on from, and token; the
                best first.
            written: tokens of each, this one included.

        Raises:
            ModelError: logits that are no numbers.
        """
        if math.isnan(candidates[0][0]):  # `topk` puts it before all numbers
            raise no_numbers(len(self.prompt) + written - 1)
        size, last = self._sampling.beams, written >= self._limit
        going: list[Beam] = []
        for rank, (total, place, token) in enumerate(candidates):
            beam = self._grown(total, place, token)
            reason = ending(token, beam.text, self._ends, last)
            if reason is None:
                going.append(beam)
            elif rank < size and total > -math.inf:
                self._finish(Finished(self._score(total, written), beam, reason))
        self._settle(going[:size], written)

    def written(self, tokenizer: Tokenizer | None) -> Written:
        """Return the best text that has ended."""
        if not self.finished:
            raise all_forbidden()
        best = self.finished[0]
        text = None if best.beam.text is None else best.beam.text.given
        if text is None and tokenizer is not None:
            text = spell(tokenizer, self.prompt, best.beam.ids, self._ends)
        return Written(best.beam.ids, best.reason, best.score, text)

    def _grown(self, total: float, place: int, token: int) -> Beam:
        before = self.beams[place]
        text = None if before.text is None else before.text.fork()
        return Beam(total, token, before, place, text)

    def _score(self, total: float, written: int) -> float:
        """log p / tokens^α        Wu et al. 2016, section 7, in its simplest form"""
        return float(total / written**self._sampling.length_penalty)

    def _finish(self, text: Finished) -> None:
        """Keep the best, the earlier of two that are equal."""
        self.finished.append(text)
        self.finished.sort(key=lambda finished: -finished.score)
        del self.finished[self._sampling.beams :]

    def _settle(self, going: list[Beam], written: int) -> None:
        """Keep what goes on, filled up to the number of beams; see whether the search is over."""
        size = self._sampling.beams
        if not going:
            self.done = True
            return
        full = len(self.finished) == size
        best = self._score(going[0].total, written)
        self.done = full and best <= self.finished[-1].score
        # one without any probability, where so many end that fewer than wanted go on
        self.beams = going + [replace(going[0], total=-math.inf)] * (size - len(going))


@torch.inference_mode()
def search(
    model: LanguageModel,
    prompts: Sequence[Prompt],
    sampling: Sampling,
    cache: KeyValueCache | None = None,
) -> list[Written]:
    """Return the best text after each prompt that a search with several beams finds.

    Args:
        model, prompts, cache: as `qkv.models.writing.generate.write` takes them.
        sampling: number of beams, length penalty, stop texts, and the longest text.

    Raises:
        ArgumentError, ModelError: as `write`.
    """
    prompts = checked(model, prompts, cache)
    most = limits(model, prompts, sampling)
    tokenizer = model.tokenizer if sampling.stop else found_tokenizer(model)
    restrictions = Restrictions(model.rules, sampling.repetition_penalty, prompts, most)
    rows = []
    for prompt, limit in zip(prompts, most, strict=True):
        text = Text(tokenizer, prompt, sampling.stop) if tokenizer and sampling.stop else None
        rows.append(Search(prompt, limit, sampling, model.rules.ends, text))
    cache = model.new_cache() if cache is None else cache
    logits, live, written = read(model, prompts, cache, sampling.chunk), rows, 0
    while True:
        chances = restrictions(exact(logits).log_softmax(-1), written)
        written += 1
        _grow(live, chances, written)
        width = len(chances) // len(live)
        parents = _parents(live, width)
        live = [row for row in live if not row.done]
        if not live:
            return [row.written(tokenizer) for row in rows]
        tokens = torch.tensor([b.token for row in live for b in row.beams], device=logits.device)
        _reorder(cache, torch.tensor(parents, device=logits.device), len(chances), width)
        restrictions.keep(parents)
        restrictions.wrote(tokens)
        logits = model.next(tokens[:, None], cache)


def _grow(rows: Sequence[Search], chances: Float[Tensor, "beams vocabulary"], written: int) -> None:
    """Let each row go on with the best of all continuations of all its beams."""
    size = chances.shape[-1]
    totals = chances.new_tensor([beam.total for row in rows for beam in row.beams])
    sums = (totals[:, None] + chances).view(len(rows), -1)
    found, places = sums.topk(min(rows[0].candidates, sums.shape[-1]))
    for row, values, ids in zip(rows, found.tolist(), places.tolist(), strict=True):
        row.grow([(v, *divmod(i, size)) for v, i in zip(values, ids, strict=True)], written)


def _reorder(cache: KeyValueCache, parents: Int[Tensor, "beams"], before: int, width: int) -> None:
    """Let beams go on from their parents, of `before`; memory stays while all keep to their row."""
    beams = torch.arange(before, device=parents.device)
    if not torch.equal(parents, beams):
        stays = torch.equal(parents // width, beams // width)
        cache.reorder(parents, memory=not stays)


def _parents(rows: Sequence[Search], width: int) -> list[int]:
    """Where what the beams go on from stood among those of all rows, `width` each."""
    return [
        i * width + beam.place for i, row in enumerate(rows) if not row.done for beam in row.beams
    ]
