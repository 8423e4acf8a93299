"""Translating: a text in, the same in another language out, whatever model reads and writes it."""

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from qkv.errors import ArgumentError
from qkv.models.language import LanguageModel
from qkv.models.reading import Lengths
from qkv.models.writing.generate import write
from qkv.models.writing.options import Sampling
from qkv.models.writing.written import Written
from qkv.nn.cache import KeyValueCache


class Translator(LanguageModel):
    """Reads a text with an encoder and writes with a decoder; a model says how it reads: `read`."""

    from_source = "model.translate(texts)"

    @abstractmethod
    def read(self, source: Tensor, lengths: Lengths = None) -> KeyValueCache:
        """Return a cache that holds what the encoder makes of a source, for `next` to write from.

        Args:
            source: tokens, padded on the right.
            lengths: real tokens of each row; all of them by default.
        """

    def translate(
        self, texts: str | Sequence[str], *, batch_size: int = 8, **options: Any
    ) -> list[Written]:
        """Translate texts, each by itself.

        Args:
            texts: a text, or several.
            batch_size: texts that are read and written together.
            options: how to choose, and when to end: `qkv.models.writing.options.Sampling`; by
                default a translation has 512 tokens at most.

        Raises:
            ArgumentError: no texts, an empty one, one that is too long, or options that do not fit.
            ModelError: the model has no tokenizer.
        """
        return list(self.translations(texts, batch_size=batch_size, **options))

    def translations(
        self, texts: str | Sequence[str], *, batch_size: int = 8, **options: Any
    ) -> Iterator[Written]:
        """Give out each translation when its batch is complete; as `translate`."""
        texts = [texts] if isinstance(texts, str) else texts
        if not texts or batch_size < 1:
            raise ArgumentError(
                f"there are {len(texts)} texts, {batch_size} at a time; wanted 1 or more"
            )
        rows = [self.source_ids(text, f"text {n}") for n, text in enumerate(texts, start=1)]
        sampling = Sampling.of({"max_tokens": 512, **options})
        batches = (rows[i : i + batch_size] for i in range(0, len(rows), batch_size))
        return (written for batch in batches for written in self._translated(batch, sampling))

    def source_ids(self, text: str, name: str = "the text") -> tuple[int, ...]:
        """Return the tokens of a text that is to be translated; `name` is for the errors.

        Raises:
            ArgumentError: an empty text, or one that is too long for the model.
            ModelError: the model has no tokenizer.
        """
        ids = self.tokenizer(text).ids
        if self.most is not None and len(ids) > self.most:
            raise ArgumentError(
                f"{name} ({text[:40]!r}…) has {len(ids)} tokens, the model takes 1 to "
                f"{self.most}; make several texts of it, one a sentence"
            )
        return ids

    @torch.inference_mode()
    def _translated(self, rows: Sequence[Sequence[int]], sampling: Sampling) -> list[Written]:
        source = pad_sequence(
            [torch.tensor(row) for row in rows], batch_first=True, padding_value=self.rules.pad
        )
        cache = self.read(source.to(self.device), [len(row) for row in rows])
        return write(self, [()] * len(rows), sampling, cache)
