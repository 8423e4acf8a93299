"""How text is written: the numbers that can be said, checked without PyTorch."""

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from numbers import Real
from typing import Any

from qkv.errors import ArgumentError


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

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> "Sampling":
        """Take options by their names.

        Raises:
            ArgumentError: one that there is not, or as above.
        """
        known = [field.name for field in fields(cls)]
        unknown = [name for name in options if name not in known]
        if unknown:
            raise ArgumentError(f"there is no option {unknown[0]}; known are {', '.join(known)}")
        return cls(**options)

    def __post_init__(self) -> None:
        """Check every number, then what goes together."""
        for name in ("max_tokens", "beams", "chunk"):
            _whole(name, getattr(self, name), 1)
        _whole("seed", self.seed, None)
        if self.top_k is not None:
            _whole("top_k", self.top_k, 1)
        _number("temperature", self.temperature, lambda x: x >= 0, "0 or more")
        for name in ("top_p", "min_p"):
            share = getattr(self, name)
            if share is not None:
                _number(name, share, lambda x: 0 < x <= 1, "above 0, up to 1, or None")
        penalty = self.repetition_penalty
        _number("repetition_penalty", penalty, lambda x: x > 0, "above 0 (1 for none)")
        _number("length_penalty", self.length_penalty, lambda x: abs(x) <= 100, "from -100 to 100")
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


def _whole(name: str, value: object, least: int | None) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or (least and value < least):
        wanted = "a whole number" if least is None else f"a whole number, {least} or more"
        raise ArgumentError(f"{name} is {value!r}; wanted {wanted}")


def _number(name: str, value: Any, fits: Callable[[Any], bool], wanted: str) -> None:
    real = isinstance(value, Real) and not isinstance(value, bool)
    if not real or not abs(value) <= sys.float_info.max or not fits(value):
        raise ArgumentError(f"{name} is {value!r}; wanted a number {wanted}")


def _texts(stop: Any) -> tuple[str, ...]:
    if isinstance(stop, str):
        raise ArgumentError(f"stop is {stop!r}; wanted a tuple of texts: ({stop!r},)")
    texts = tuple(stop) if isinstance(stop, Iterable) else (stop,)
    if not all(isinstance(text, str) and text for text in texts):
        raise ArgumentError(f"stop is {stop!r}; wanted texts of a character or more")
    return texts
