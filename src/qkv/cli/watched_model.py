"""A model under a watch while it reads a text, or writes one."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from qkv.cli.asked import Asked, Reading
from qkv.cli.progress import waiting
from qkv.errors import ArgumentError
from qkv.explaining.attended import CROSS
from qkv.explaining.inputs import Input, Rows, name_of, read
from qkv.models.encoder_decoder import EncoderDecoderModel
from qkv.models.language import LanguageModel
from qkv.models.writing.written import Written
from qkv.recording.calls.call import Call
from qkv.recording.recording import Recording
from qkv.recording.watching import watch


@dataclass(frozen=True, eq=False)
class Watched:
    """A model's attention while it read something.

    Attributes:
        name: of the model.
        seen: its attention.
        rows: the rows of each tower.
        written: the text that it wrote, where it was to write.
    """

    name: str
    seen: Recording
    rows: Mapping[str, Rows]
    written: str | None

    def sides(self, call: Call) -> tuple[Rows, Rows]:
        """The rows that look in a call, and those that are looked at."""
        names = (call.path or "").split(".")
        own = self.rows.get(names[0]) or next(iter(self.rows.values()))
        return own, self.rows["encoder"] if CROSS in names else own


def watch_model(text: str, model: str, reading: Reading, asked: Asked) -> None:
    """Let a model read a text, and say what each head looked at."""
    with waiting(f"loading {model}"):
        taken = read(text, model, reading.tokens, reading.output)
    max_tokens = reading.max_tokens
    if max_tokens is not None:
        _check_writer(taken, model)
    what = "reading" if max_tokens is None else "writing"
    with waiting(what), torch.no_grad(), watch(taken.model, only=asked.only) as seen:
        written = _run(taken, max_tokens)
    rows = taken.rows if written is None else _with_written(taken, written)
    if len(rows) == 1:  # of two towers neither has the tokens of all calls
        (own,) = rows.values()
        seen = seen.with_tokens(list(own.names))
    from qkv.cli.watched import Report

    told = Report(Watched(model, seen, rows, None if written is None else written.text), asked)
    told.write()


def _run(taken: Input, max_tokens: int | None) -> Written | None:
    if max_tokens is None:
        taken.model(*taken.given)
        return None
    assert isinstance(taken.model, LanguageModel)
    (ids,) = taken.given[0].tolist()
    (written,) = taken.model.generate([ids], max_tokens=max_tokens)
    return written


def _check_writer(taken: Input, name: str) -> None:
    writes = isinstance(taken.model, LanguageModel)
    if not writes or isinstance(taken.model, EncoderDecoderModel):
        raise ArgumentError(
            f"--max-tokens lets a decoder write on, such as smollm2; {name} is none"
        )


def _with_written(taken: Input, written: Written) -> dict[str, Rows]:
    """The rows of the prompt, and those of what was written; its last token was never read."""
    ((tower, prompt),) = taken.rows.items()
    assert isinstance(taken.model, LanguageModel)
    tokenizer = taken.model.tokenizer
    new = [name_of(tokenizer, number) for number in written.ids[:-1]]
    start = len(prompt.names)
    own = (*prompt.own, *range(start, start + len(new)))
    return {tower: Rows((*prompt.names, *new), own)}
