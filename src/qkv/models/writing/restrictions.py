"""What must not be written: the rules of a model, and the penalty on what is there already."""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from qkv.models.language import WritingRules


class Restrictions:
    """Logits of the rows of a batch, as the rules of a model let them be.

    Args:
        rules: which tokens are never written, or only last.
        penalty: on tokens that the text holds already; 1 for none.
        prompts: what stands before what is written, in each row.
        limits: tokens that are written at most, in each row.
    """

    def __init__(
        self,
        rules: WritingRules,
        penalty: float,
        prompts: Sequence[Sequence[int]],
        limits: Sequence[int],
    ) -> None:
        """Nothing has been written yet."""
        self._rules, self._penalty = rules, penalty
        self._prompts, self._limits = prompts, list(limits)
        self._never: dict[frozenset[int], Tensor] = {}
        self._seen: Tensor | None = None

    def __call__(
        self, logits: Float[Tensor, "rows vocabulary"], written: int
    ) -> Float[Tensor, "rows vocabulary"]:
        """Return the logits with −∞ for what must not come next; `written` counts what did."""
        if self._penalty != 1:
            logits = self._penalised(logits)
        for never in (self._rules.never, self._rules.never_first if written == 0 else frozenset()):
            if never:
                logits = logits.index_fill(-1, self._indices(never, logits.device), -math.inf)
        return logits if self._rules.last is None else self._ended(logits, written)

    def wrote(self, tokens: Int[Tensor, "rows"]) -> None:
        """Remember what was written."""
        if self._seen is not None:
            self._seen.scatter_(1, tokens[:, None], True)

    def keep(self, rows: Sequence[int]) -> None:
        """Let row i go on from row rows[i]."""
        self._limits = [self._limits[row] for row in rows]
        if self._seen is not None:
            self._seen = self._seen[torch.tensor(rows, device=self._seen.device)]

    def _penalised(self, logits: Tensor) -> Tensor:
        """x / penalty, or x · penalty where x < 0: both are less        Keskar et al. 2019"""
        if self._seen is None:
            self._seen = torch.zeros_like(logits, dtype=torch.bool)
            for row, prompt in zip(self._seen, self._prompts, strict=True):
                row[torch.tensor(prompt, dtype=torch.long, device=logits.device)] = True
        penalised = torch.where(logits < 0, logits * self._penalty, logits / self._penalty)
        return torch.where(self._seen, penalised, logits)

    def _indices(self, never: frozenset[int], device: torch.device) -> Tensor:
        if never not in self._never:
            self._never[never] = torch.tensor(sorted(never), device=device)
        return self._never[never]

    def _ended(self, logits: Tensor, written: int) -> Tensor:
        """Leave rows that write their last token but one choice."""
        rows = [i for i, limit in enumerate(self._limits) if written == limit - 1]
        if not rows:
            return logits
        logits = logits.clone()
        logits[rows] = -math.inf
        logits[rows, self._rules.last] = 0.0
        return logits
