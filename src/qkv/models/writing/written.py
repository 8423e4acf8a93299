"""What was written: tokens, their text, and why it ends."""

from dataclasses import dataclass
from typing import Literal

from qkv.errors import ModelError

Reason = Literal["end", "stop", "length"]


@dataclass(frozen=True)
class Written:
    """What a model wrote after a prompt.

    Attributes:
        ids: the tokens, those that ended the text included.
        reason: why it ends: a token that ends texts, a stop text, or its length.
        score: log-probability of the tokens / their number^length_penalty. Of a beam search, with
            the penalty on repetitions in it, and without the probability of a forced last token.
        spelled: the text, or None where the model has no tokenizer.
    """

    ids: tuple[int, ...]
    reason: Reason
    score: float
    spelled: str | None = None

    @property
    def text(self) -> str:
        """The text alone: without its prompt, the stop text or special tokens.

        Raises:
            ModelError: the model has no tokenizer.
        """
        if self.spelled is None:
            raise ModelError("the model's folder has no tokenizer: there are ids, but no text")
        return self.spelled
