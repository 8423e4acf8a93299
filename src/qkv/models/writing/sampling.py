"""Which token comes next: the best one, or one drawn from those that are likely enough."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from qkv.errors import ArgumentError

FEW = 1024
"""Tokens that are sorted first for top-p: seldom are more wanted, and all of them take longer."""

BELOW_ONE = 1 - 2**-52
"""The largest number that, times a sum of float64, still is below that sum."""


@dataclass(frozen=True)
class Sampling:
    """How text is written.

    Args:
        max_tokens: tokens that are written at most; the model's last position may come before.
        temperature: 0 takes the best token each time (greedy); above 0 a token is drawn, and
            what is less likely more often the higher it is.
        top_k: draw from so many tokens, the most likely (Fan et al. 2018).
        top_p: draw from the fewest tokens that are so likely together (Holtzman et al. 2020).
        min_p: draw from tokens that are so likely beside the most likely (Nguyen et al. 2024).
        repetition_penalty: above 1 makes tokens of the text so far less likely (Keskar et al.
            2019, section 4.1).
        beams: texts that are followed at the same time (beam search); 1 follows one.
        length_penalty: a beam's score is its log-probability / tokens^length_penalty.
        stop: texts before which the text ends; the one that is complete first counts.
        seed: of what is drawn; each row of a batch has its own numbers.
        chunk: tokens of a prompt that are read at a time.

    The filters come in the order of this list: the penalty, temperature, top_k, top_p, min_p.

    Raises:
        ArgumentError: a number out of its range, or one that would have no effect.
    """

    max_tokens: int = 128
    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float = 1.0
    beams: int = 1
    length_penalty: float = 1.0
    stop: Sequence[str] = ()
    seed: int = 0
    chunk: int = 512

    def __post_init__(self) -> None:
        """Check every number, then what goes together."""
        for name in ("max_tokens", "beams", "chunk"):
            _whole(name, getattr(self, name), 1)
        _whole("seed", self.seed, None)
        if self.top_k is not None:
            _whole("top_k", self.top_k, 1)
        _number("temperature", self.temperature, self.temperature >= 0, "0 or more")
        for name in ("top_p", "min_p"):
            share = getattr(self, name)
            if share is not None:
                _number(name, share, 0 < share <= 1, "above 0, up to 1, or None")
        penalty = self.repetition_penalty
        _number("repetition_penalty", penalty, penalty > 0, "above 0 (1 for none)")
        _number("length_penalty", self.length_penalty, True, "finite")
        object.__setattr__(self, "stop", _texts(self.stop))
        self._check_together()

    def _check_together(self) -> None:
        filters = [name for name in ("top_k", "top_p", "min_p") if getattr(self, name) is not None]
        if self.beams > 1 and self.temperature > 0:
            raise ArgumentError(
                f"beams is {self.beams} and temperature is {self.temperature}: a beam search draws "
                f"nothing; say beams=1 to draw, or temperature=0 to search"
            )
        if filters and self.temperature == 0:
            name = filters[0]
            raise ArgumentError(
                f"{name} is {getattr(self, name)}, but at temperature 0 nothing is drawn; say "
                f"temperature=1.0, or leave {name} out"
            )
        if self.length_penalty != 1 and self.beams == 1:
            raise ArgumentError(
                f"length_penalty is {self.length_penalty}, but one beam has none to be compared "
                f"with; say beams=4, or leave length_penalty out"
            )


class Candidates(NamedTuple):
    """Tokens that may come next.

    Attributes:
        logits: how well each fits.
        ids: their numbers, the best first; None where all tokens are there as they are.
    """

    logits: Float[Tensor, "rows candidates"]
    ids: Int[Tensor, "rows candidates"] | None = None


def best(logits: Float[Tensor, "rows vocabulary"]) -> Int[Tensor, "rows"]:
    """Return the token that fits best, of each row."""
    return logits.argmax(-1)


def draw(
    logits: Float[Tensor, "rows vocabulary"], sampling: Sampling, at: Sequence[float]
) -> Int[Tensor, "rows"]:
    """Draw a token of each row.

    Args:
        logits: how well each token fits.
        sampling: temperature and filters.
        at: a random number of each row, evenly from 0 to below 1.
    """
    few = likely(logits, sampling)
    up_to = few.logits.softmax(-1).cumsum(-1, dtype=torch.float64)
    numbers = [[min(number, BELOW_ONE)] for number in at]
    # The first token up to which the probabilities exceed the number; one of 0 never does.
    aim = torch.tensor(numbers, dtype=torch.float64, device=logits.device) * up_to[:, -1:]
    place = torch.searchsorted(up_to, aim, right=True).clamp(max=up_to.shape[-1] - 1)
    return (place if few.ids is None else few.ids.gather(-1, place)).squeeze(-1)


def likely(logits: Float[Tensor, "rows vocabulary"], sampling: Sampling) -> Candidates:
    """Return what may be drawn: temperature, then top-k, top-p and min-p."""
    few = Candidates(logits / sampling.temperature)
    if sampling.top_k is not None:
        few = top_k(few, sampling.top_k)
    if sampling.top_p is not None and sampling.top_p < 1:
        few = top_p(few, sampling.top_p)
    if sampling.min_p is not None:
        few = min_p(few, sampling.min_p)
    return few


def top_k(few: Candidates, k: int) -> Candidates:
    """Keep k of them, the most likely, the best first."""
    logits, places = few.logits.topk(min(k, few.logits.shape[-1]))
    return Candidates(logits, places if few.ids is None else few.ids.gather(-1, places))


def top_p(few: Candidates, p: float) -> Candidates:
    """Keep the fewest that are as likely as p together: those before which less than p stands."""
    size = few.logits.shape[-1]
    total = few.logits.logsumexp(-1, keepdim=True)
    for k in (min(FEW, size), size):
        sorted_few = top_k(few, k)
        probabilities = (sorted_few.logits - total).exp()
        before = probabilities.cumsum(-1) - probabilities
        beyond = before >= p
        if k == size or bool(beyond[:, -1].all()):
            break
    return Candidates(sorted_few.logits.masked_fill(beyond, -math.inf), sorted_few.ids)


def min_p(few: Candidates, p: float) -> Candidates:
    """Keep those that are p times as likely as the best, or more."""
    least = few.logits.amax(-1, keepdim=True) + math.log(p)
    return Candidates(few.logits.masked_fill(few.logits < least, -math.inf), few.ids)


def _whole(name: str, value: object, least: int | None) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or (least and value < least):
        wanted = "a whole number" if least is None else f"a whole number, {least} or more"
        raise ArgumentError(f"{name} is {value!r}; wanted {wanted}")


def _number(name: str, value: float, fits: bool, wanted: str) -> None:
    if not fits or not math.isfinite(value):
        raise ArgumentError(f"{name} is {value!r}; wanted a number {wanted}")


def _texts(stop: Sequence[str]) -> tuple[str, ...]:
    if isinstance(stop, str):
        raise ArgumentError(f"stop is {stop!r}; wanted a tuple of texts: ({stop!r},)")
    if not all(isinstance(text, str) and text for text in stop):
        raise ArgumentError(f"stop is {stop!r}; wanted texts of a character or more")
    return tuple(stop)
