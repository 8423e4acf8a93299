"""What writes text token by token: all that generation knows of a model."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from qkv.errors import ModelError
from qkv.models.formats.files import Files
from qkv.models.text.tokenizer import Tokenizer
from qkv.models.writing.options import Sampling
from qkv.models.writing.written import Written
from qkv.nn.cache import KeyValueCache


@dataclass(frozen=True)
class WritingRules:
    """Which tokens begin and end a text, and which are never written.

    Attributes:
        starts: what stands before the first token that is written, where no prompt does.
        ends: tokens that end a text.
        pad: fills the rows of a batch; never looked at.
        never: tokens that are never written.
        never_first: tokens that are never written first.
        last: what the last token has to be where a text grows too long, or None.
    """

    starts: tuple[int, ...] = ()
    ends: frozenset[int] = frozenset()
    pad: int = 0
    never: frozenset[int] = frozenset()
    never_first: frozenset[int] = frozenset()
    last: int | None = None

    @classmethod
    def of(cls, config: Any, files: Files | None = None) -> "WritingRules":
        """Read the rules from config.json and generation_config.json, which has the last word.

        Raises:
            ModelError: a token that is no number of the vocabulary, or forbidden words of
                several tokens.
        """
        said = (None if files is None else files.json("generation_config.json")) or {}
        start = "decoder_start_token_id"
        names = (start, "bos_token_id", "eos_token_id", "pad_token_id", "forced_eos_token_id",
                 "suppress_tokens", "begin_suppress_tokens", "bad_words_ids")  # fmt: skip
        told = {name: said.get(name, getattr(config, name, None)) for name in names}
        ends = _numbers("eos_token_id", told["eos_token_id"], config.vocab_size)
        pads = _numbers("pad_token_id", told["pad_token_id"], config.vocab_size)
        alone = _alone(told["bad_words_ids"])
        never = (*_numbers("suppress_tokens", told["suppress_tokens"], config.vocab_size),
                 *_numbers("bad_words_ids", alone, config.vocab_size))  # fmt: skip
        first = told["begin_suppress_tokens"]
        begins = "bos_token_id" if told[start] is None else start
        last = _numbers("forced_eos_token_id", told["forced_eos_token_id"], config.vocab_size)
        return cls(
            starts=_numbers(begins, told[begins], config.vocab_size),
            ends=frozenset(ends),
            pad=pads[0] if pads else ends[0] if ends else 0,
            never=frozenset(never),
            never_first=frozenset(_numbers("begin_suppress_tokens", first, config.vocab_size)),
            last=last[0] if last else None,
        )


def _numbers(name: str, value: object, size: int) -> tuple[int, ...]:
    """Tokens that a file names: one, several or none."""
    values = () if value is None else value if isinstance(value, list | tuple) else (value,)
    for number in values:
        if isinstance(number, bool) or not isinstance(number, int) or not -1 <= number < size:
            raise ModelError(f"{name} is {value!r}; wanted tokens of the vocabulary, below {size}")
    return tuple(number for number in values if number >= 0)


def _alone(value: Any) -> list[Any]:
    """Forbidden words of a token each; those of several are not known here."""
    listed = value if isinstance(value, list | tuple) else [value]
    for words in () if value is None else listed:
        if not isinstance(words, list | tuple) or len(words) != 1:
            raise ModelError(
                f"bad_words_ids holds {words!r}; wanted lists of one token each: words of several "
                f"tokens cannot be forbidden here"
            )
    return [] if value is None else [words[0] for words in listed]


class LanguageModel(nn.Module, ABC):
    """Writes text token by token, by itself or from a memory in its cache.

    Attributes:
        rules: which tokens begin and end a text.
        most: positions that the model has; None where there is no end to them.
        num_layers: layers of the decoder.
        window: how far back a token looks, itself counted, or None.
        from_source: what to call where the model writes from what an encoder read; or None.
    """

    rules: WritingRules
    most: int | None
    num_layers: int
    window: int | None = None
    from_source: str | None = None
    _tokenizer: Tokenizer | None = None

    @property
    def tokenizer(self) -> Tokenizer:
        """What cuts text into this model's tokens; ModelError where its folder had none."""
        if self._tokenizer is None:
            raise ModelError("the model's folder has no tokenizer: give it ids, not text")
        return self._tokenizer

    @abstractmethod
    def next(
        self,
        ids: Int[Tensor, "batch tokens"],
        cache: KeyValueCache,
        lengths: Sequence[int] | Int[Tensor, "batch"] | None = None,
    ) -> Float[Tensor, "batch vocabulary"]:
        """Read tokens, add them to the cache, and return the logits of what may follow each row.

        Args:
            ids: tokens, padded on the left where `lengths` say so.
            cache: what was read before.
            lengths: real tokens of each row; for the first read only, the cache remembers.

        Raises:
            ArgumentError: more tokens than the model has positions for.
        """

    def new_cache(self, most: int | None = None) -> KeyValueCache:
        """Return an empty cache; `most` makes room for so many tokens at once."""
        return KeyValueCache(self.num_layers, most=most, window=self.window)

    def generate(
        self,
        prompts: str | Sequence[str] | Sequence[Sequence[int]],
        *,
        cache: KeyValueCache | None = None,
        **options: Any,
    ) -> list[Written]:
        """Write a text after each prompt.

        Args:
            prompts: a text, or several; or the tokens of several.
            cache: what to write from, such as a memory of what an encoder read; it is used up.
            options: how to choose, and when to end: `qkv.models.writing.options.Sampling`.

        Raises:
            ArgumentError: options, prompts or a cache that do not fit.
            ModelError: a text, but the model has no tokenizer.
        """
        from qkv.models.writing.generate import write

        texts = [prompts] if isinstance(prompts, str) else prompts
        ids = [self.tokenizer(text).ids if isinstance(text, str) else text for text in texts]
        return write(self, ids, Sampling.of(options), cache)

    def stream(
        self,
        prompt: str | Sequence[int],
        *,
        cache: KeyValueCache | None = None,
        **options: Any,
    ) -> Iterator[str]:
        """Write after one prompt, and give out the text as it grows, in whole characters.

        The arguments and errors are those of `generate`; but a search of several beams is refused.
        """
        from qkv.models.writing.generate import stream

        return stream(self, prompt, Sampling.of(options), cache)

    @property
    def device(self) -> torch.device:
        """Where the parameters are."""
        return self.get_parameter("words.weight").device
